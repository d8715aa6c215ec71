//! A10: `chroot`, and the classic escape from one.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::Nook;
use crate::everyday::files::device;
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::inside(
    "a10-root",
    "(pivot_root, chroot and fchdir out of it)",
    escape,
)];

fn report_root(what: &str) {
    out::answer(what, &fs::metadata("/"), |about| {
        let mut names: Vec<_> = fs::read_dir("/")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| out::word(&entry.file_name().to_string_lossy()))
            .collect();
        names.sort();
        format!(
            "dev={} ino={} entries={}",
            device(about.dev()),
            about.ino(),
            names.join(",")
        )
    });
}

fn escape(_: &Args) -> Outcome {
    report_root("root");
    out::answer("dotdot", &fs::metadata("/../../../../.."), |about| {
        format!("dev={} ino={}", device(about.dev()), about.ino())
    });
    let nook = Nook::new();
    let place = nook
        .as_ref()
        .map_or_else(|| "/".into(), |nook| nook.0.clone());
    let place = sys::c_path(place);
    for (name, new, old) in [
        ("dot", c".", c"."),
        ("root", c"/", c"/"),
        ("nook", place.as_c_str(), place.as_c_str()),
    ] {
        let what = format!("pivot_root:{name}");
        sys::apart(&what, || {
            if out::attempt(
                &what,
                sys::call(nr::PIVOT_ROOT, &[sys::text(new), sys::text(old)]),
            ) {
                report_root(&format!("{what}:root"));
            }
        });
    }
    sys::apart("chroot", || {
        let outside = sys::open("/", 0o200_000);
        if !out::attempt("chroot:nook", sys::call(nr::CHROOT, &[sys::text(&place)])) {
            return;
        }
        // A working directory outside the new root may climb: to the real root, and no further.
        if let Ok(outside) = &outside {
            out::attempt("fchdir:outside", sys::call(nr::FCHDIR, &[sys::fd(outside)]));
        }
        for _ in 0..64 {
            let _ = sys::call(nr::CHDIR, &[sys::text(c"..")]);
        }
        out::attempt("chroot:dot", sys::call(nr::CHROOT, &[sys::text(c".")]));
        report_root("escaped");
    });
    Ok(0)
}
