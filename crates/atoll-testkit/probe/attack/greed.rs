//! C12: exhaustion of kernel resources that have a global or per-user limit.

use std::os::fd::OwnedFd;

use crate::sys::{Errno, open, owned};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "c12-take",
    "inotify|terminals|processes N [hold] (until refused)",
    take,
)];

/// Something that is held.
enum Held {
    File { _end: OwnedFd },
    Process(i32),
}

impl Held {
    fn file(end: OwnedFd) -> Self {
        Self::File { _end: end }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Self::Process(pid) = self {
            let _ = sys::kill(*pid, 9);
            let _ = sys::wait(*pid, 0);
        }
    }
}

fn one(kind: &str) -> Result<Held, Errno> {
    match kind {
        "inotify" => sys::call(nr::INOTIFY_INIT1, &[0]).map(|number| Held::file(owned(number))),
        "terminals" => open("/dev/ptmx", 2 | 0o400).map(Held::file),
        _ => match sys::fork()? {
            Some(pid) => Ok(Held::Process(pid)),
            None => forever(),
        },
    }
}

fn forever() -> ! {
    loop {
        let _ = sys::call(nr::PAUSE, &[]);
    }
}

fn take(args: &Args) -> Outcome {
    let kind = args.text(0, "KIND")?;
    let most: usize = args.number(1, "N")?;
    let mut held = Vec::new();
    let mut end = None;
    while held.len() < most && end.is_none() {
        match one(kind) {
            Ok(it) => held.push(it),
            Err(errno) => end = Some(errno),
        }
    }
    let count = format!("count={}", held.len());
    match end {
        Some(errno) => out::refused(kind, errno, &count),
        None => out::ok(kind, &count),
    }
    if args.has("hold") {
        forever();
    }
    Ok(0)
}
