//! A04, A11: the contents of `/dev`, and device nodes created with `mknod`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Nook;
use crate::everyday::files::{device, kind};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("a04-dev", "(every node of /dev)", nodes),
    Command::inside("a11-mknod", "[MAJOR:MINOR of a block device]…", make),
];

const S_IFCHR: u64 = 0o020_000;
const S_IFBLK: u64 = 0o060_000;
const O_PATH: u64 = 0o10_000_000;
const O_NONBLOCK: u64 = 0o4_000;

fn walk(path: &Path, depth: u32) {
    let what = path.to_string_lossy().into_owned();
    let about = fs::symlink_metadata(path);
    out::answer(&what, &about, |about| {
        let mut detail = kind(about.file_type()).to_owned();
        if about.rdev() != 0 {
            detail.push(' ');
            detail.push_str(&device(about.rdev()));
        }
        if let Ok(target) = fs::read_link(path) {
            detail = format!("{detail} {}", target.display());
        }
        format!(
            "{detail} mode={:04o} uid={} gid={}",
            about.mode() & 0o7777,
            about.uid(),
            about.gid()
        )
    });
    if depth < 4 && about.is_ok_and(|about| about.is_dir()) {
        let mut below: Vec<_> = fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        below.sort();
        for path in below {
            walk(&path, depth + 1);
        }
    }
}

fn nodes(_: &Args) -> Outcome {
    let mut about = [0_u64; 15];
    match sys::call(
        nr::STATFS,
        &[sys::text(c"/dev"), sys::slice_mut(&mut about)],
    ) {
        Ok(_) => out::ok("fstype:/dev", &format!("{:#x}", about[0])),
        Err(errno) => out::refused("fstype:/dev", errno, ""),
    }
    walk(Path::new("/dev"), 0);
    out::answer("write:/dev/null", &fs::write("/dev/null", "x"), |()| {
        String::new()
    });
    for path in [
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
        "/dev/full",
        "/dev/tty",
        "/dev/console",
        "/dev/mem",
        "/dev/kmsg",
    ] {
        match sys::open(path, 2 | O_NONBLOCK) {
            Ok(_) => out::ok(&format!("open:{path}"), ""),
            Err(errno) => out::refused(&format!("open:{path}"), errno, ""),
        }
    }
    Ok(0)
}

/// Makes a node, opens it in three ways, reads from it, removes it.
fn try_node(nook: &Nook, name: &str, mode: u64, number: u64) {
    let path = nook.path(name);
    let made = sys::call(
        nr::MKNODAT,
        &[
            sys::HERE,
            sys::text(&sys::c_path(&path)),
            mode | 0o666,
            number,
        ],
    );
    if !out::attempt(&format!("mknod:{name}"), made) {
        return;
    }
    let opened = sys::open(&path, O_NONBLOCK);
    match &opened {
        Ok(file) => {
            let mut sector = [0_u8; 512];
            match sys::read(sys::fd(file), &mut sector) {
                Ok(count) => out::ok(&format!("open:{name}"), &format!("read={count}")),
                Err(errno) => out::ok(&format!("open:{name}"), &format!("read={errno}")),
            }
        }
        Err(errno) => out::refused(&format!("open:{name}"), *errno, ""),
    }
    if let Ok(handle) = sys::open(&path, O_PATH) {
        for way in ["/dev/fd", "/proc/self/fd"] {
            let what = format!("reopen:{way}:{name}");
            match sys::open(format!("{way}/{}", sys::fd(&handle)), O_NONBLOCK) {
                Ok(_) => out::ok(&what, ""),
                Err(errno) => out::refused(&what, errno, ""),
            }
        }
    }
    let _ = fs::remove_file(path);
}

fn make(args: &Args) -> Outcome {
    let Some(nook) = Nook::new() else {
        out::skipped("mknod", "no directory can be written");
        return Ok(0);
    };
    out::ok("place", &nook.0.display().to_string());
    let encode = |major: u64, minor: u64| (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
    // A whiteout (0:0) is no device and needs no privilege: there only to be known.
    for (name, major, minor) in [
        ("char-1:3", 1, 3),
        ("char-1:1", 1, 1),
        ("char-5:1", 5, 1),
        ("char-10:200", 10, 200),
        ("char-0:0", 0, 0),
    ] {
        try_node(&nook, name, S_IFCHR, encode(major, minor));
    }
    let mut blocks = vec![(7, 0), (8, 0), (254, 0)];
    for (index, _) in args.all().iter().enumerate() {
        let text = args.text(index, "MAJOR:MINOR")?;
        let pair = text
            .split_once(':')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        blocks.push(pair.ok_or_else(|| format!("not MAJOR:MINOR: {text}"))?);
    }
    for (major, minor) in blocks {
        try_node(
            &nook,
            &format!("block-{major}:{minor}"),
            S_IFBLK,
            encode(major, minor),
        );
    }
    Ok(0)
}
