//! Directories and files of cgroupfs: create, write, wait, remove.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};

use super::usage::counter;
use crate::{Error, Step};

/// Time limit for processes to freeze or to end.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn create_directory(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::step(format!("mkdir {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

pub(super) fn open(path: &Path) -> Result<OwnedFd, Error> {
    rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step(|| format!("open {}", path.display()))
}

pub(super) fn write(path: &Path, value: &str) -> Result<(), Error> {
    fs::write(path, value).step(|| format!("write {value} to {}", path.display()))
}

/// Waits until no process is left below a cgroup2 directory.
pub(super) fn wait_empty(path: &Path) -> Result<(), Error> {
    let events = path.join("cgroup.events");
    let step = || format!("wait until {} is empty", path.display());
    wait_until(step, || counter(&events, "populated") == 0)
}

/// Waits until a condition holds; fails with `EBUSY` after `WAIT_TIMEOUT`.
pub(super) fn wait_until(
    step: impl Fn() -> String,
    condition: impl Fn() -> bool,
) -> Result<(), Error> {
    if poll_until(WAIT_TIMEOUT, condition) {
        return Ok(());
    }
    let busy = io::Error::from_raw_os_error(libc::EBUSY);
    Err(Error::step(step(), busy))
}

/// Waits until a condition holds; false after the timeout.
pub(super) fn poll_until(timeout: Duration, condition: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    // `poll` on these files wakes at most once in 10 ms, so they are read repeatedly. The interval grows, because the
    // reader competes for the processor with the processes that it waits for.
    const MIN_INTERVAL: Duration = Duration::from_micros(20);
    const MAX_INTERVAL: Duration = Duration::from_millis(1);
    while !condition() {
        if begin.elapsed() > timeout {
            return false;
        }
        std::thread::sleep((begin.elapsed() / 2).clamp(MIN_INTERVAL, MAX_INTERVAL));
    }
    true
}

/// Removes a directory and those below it. Retries for 5 s while the kernel reports `EBUSY`: a group can be busy for a
/// moment after `populated` became 0.
pub(super) fn remove_tree(path: &Path) -> Result<(), Error> {
    // The common case: no directory below.
    if fs::remove_dir(path).is_ok() {
        return Ok(());
    }
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path())?;
            }
        }
    }
    let begin = Instant::now();
    loop {
        match rustix::fs::unlinkat(rustix::fs::CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if begin.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(error) => return Err(Error::step(format!("rmdir {}", path.display()), error)),
        }
    }
}
