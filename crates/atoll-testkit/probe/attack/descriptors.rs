//! A01, A02: file descriptors that the runtime leaked, and access to those of PID 1.

use std::fs;
use std::io::Read;

use crate::everyday::facts::{descriptors, working_directory};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("a01-cwd-fd", "(chdir to /proc/self/fd/3..1023)", cwd),
    Command::new("a02-fds", "(own descriptors, and /proc/1/…)", inventory),
];

fn cwd(_: &Args) -> Outcome {
    let here = || working_directory().unwrap_or_else(|errno| format!("errno {errno}"));
    out::ok("cwd", &here());
    let home = sys::open(".", 0o200_000);
    let mut worked = 0;
    for number in 3..1024_u64 {
        // Our own way back is no finding.
        if home.as_ref().is_ok_and(|home| sys::fd(home) == number) {
            continue;
        }
        let path = format!("/proc/self/fd/{number}");
        for (what, answer) in [
            (
                format!("chdir:{path}"),
                sys::call(nr::CHDIR, &[sys::text(&sys::c_path(&path))]),
            ),
            (format!("fchdir:{number}"), sys::call(nr::FCHDIR, &[number])),
        ] {
            if answer.is_ok() {
                worked += 1;
                out::ok(&what, &format!("cwd={}", here()));
                if let Ok(home) = &home {
                    let _ = sys::call(nr::FCHDIR, &[sys::fd(home)]);
                }
            }
        }
    }
    out::ok("summary", &format!("tried=1021 worked={worked}"));
    Ok(0)
}

fn inventory(_: &Args) -> Outcome {
    for (of, name) in [("/proc/self/fd", "self-fd"), ("/proc/1/fd", "pid1-fd")] {
        match descriptors(of) {
            Err(errno) => out::refused(name, errno, ""),
            Ok(found) => {
                out::ok(name, &format!("count={}", found.len()));
                for (number, target) in found {
                    let what = format!("{name}:{number}");
                    out::ok(&what, &target);
                    if name == "pid1-fd" {
                        out::answer(
                            &format!("{what}:open"),
                            &fs::File::open(format!("{of}/{number}")),
                            |_| String::new(),
                        );
                    }
                }
            }
        }
    }
    for name in ["exe", "root", "cwd"] {
        let path = format!("/proc/1/{name}");
        out::answer(&format!("readlink:{path}"), &fs::read_link(&path), |link| {
            link.display().to_string()
        });
        out::answer(&format!("open:{path}"), &fs::File::open(&path), |_| {
            String::new()
        });
    }
    for name in [
        "environ", "mem", "maps", "auxv", "stack", "syscall", "io", "cmdline",
    ] {
        let path = format!("/proc/1/{name}");
        let answer = fs::File::open(&path).and_then(|mut file| {
            let mut bytes = [0; 64];
            file.read(&mut bytes)
                .map(|count| bytes[..count].escape_ascii().to_string())
        });
        out::answer(&format!("read:{path}"), &answer, |head| {
            format!("head={}", out::word(head))
        });
    }
    out::answer(
        "open-write:/proc/1/mem",
        &fs::File::options().write(true).open("/proc/1/mem"),
        |_| String::new(),
    );
    Ok(0)
}
