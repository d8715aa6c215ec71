//! B03: creation of new namespaces, above all user namespaces.

use std::os::fd::AsRawFd;

use crate::sys::{Shared, slice};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "b03-userns",
    "(unshare, clone, clone3, setns; nested)",
    enter,
)];

const NEWUSER: u64 = 0x1000_0000;
const SIGCHLD: u64 = 17;

const FLAGS: [(&str, u64); 8] = [
    ("NEWUSER", NEWUSER),
    ("NEWNS", 0x0002_0000),
    ("NEWPID", 0x2000_0000),
    ("NEWNET", 0x4000_0000),
    ("NEWIPC", 0x0800_0000),
    ("NEWUTS", 0x0400_0000),
    ("NEWCGROUP", 0x0200_0000),
    ("NEWTIME", 0x80),
];

/// Capabilities that a namespace brought.
fn effective() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("CapEff:"))
        .unwrap_or("CapEff: unknown");
    format!(
        "effective={}",
        line.split_whitespace().nth(1).unwrap_or_default()
    )
}

/// A child made by a raw clone: it only ends.
fn child_of(what: &str, answer: Result<u64, sys::Errno>) {
    match answer {
        Ok(0) => sys::exit(0),
        Ok(child) => {
            out::ok(what, "");
            let _ = sys::wait(child as i32, 0x4000_0000);
        }
        Err(errno) => out::refused(what, errno, ""),
    }
}

fn enter(_: &Args) -> Outcome {
    for (name, flag) in FLAGS {
        for (suffix, flags) in [("", flag), ("+NEWUSER", flag | NEWUSER)] {
            if name == "NEWUSER" && !suffix.is_empty() {
                continue;
            }
            let what = format!("unshare:{name}{suffix}");
            sys::apart(&what, || match sys::call(nr::UNSHARE, &[flags]) {
                Ok(_) => out::ok(&what, &effective()),
                Err(errno) => out::refused(&what, errno, ""),
            });
            let what = format!("clone:{name}{suffix}");
            sys::apart(&what, || {
                child_of(&what, sys::call(nr::CLONE, &[flags | SIGCHLD]));
            });
            // The kernel takes the low half of clone's flags; a filter must, too.
            let what = format!("clone-high:{name}{suffix}");
            sys::apart(&what, || {
                child_of(
                    &what,
                    sys::call(nr::CLONE, &[flags | SIGCHLD | 0xdead_0000_0000_0000]),
                );
            });
            let what = format!("clone3:{name}{suffix}");
            sys::apart(&what, || {
                let arguments = [flags, 0, 0, 0, SIGCHLD, 0, 0, 0_u64];
                child_of(&what, sys::call(nr::CLONE3, &[slice(&arguments), 64]));
            });
        }
    }
    sys::apart("clone3:plain", || {
        let arguments = [0, 0, 0, 0, SIGCHLD, 0, 0, 0_u64];
        child_of(
            "clone3:plain",
            sys::call(nr::CLONE3, &[slice(&arguments), 64]),
        );
    });
    for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"] {
        let what = format!("setns:{name}");
        sys::apart(&what, || match sys::open(format!("/proc/1/ns/{name}"), 0) {
            Ok(file) => drop(out::attempt(
                &what,
                sys::call(nr::SETNS, &[file.as_raw_fd() as u64, 0]),
            )),
            Err(errno) => out::refused(&what, errno, "open"),
        });
    }
    let shared = Shared::new()?;
    sys::apart("nested", || {
        while shared.get(0) < 40 {
            match sys::call(nr::UNSHARE, &[NEWUSER]) {
                Ok(_) => shared.set(0, shared.get(0) + 1),
                Err(errno) => {
                    shared.set(1, i64::from(errno.0));
                    break;
                }
            }
        }
    });
    let end = sys::Errno(shared.get(1) as i32);
    out::ok("nested", &format!("depth={} end={end}", shared.get(0)));
    Ok(0)
}
