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

pub(super) fn make(path: &Path) -> Result<(), Error> {
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
    let what = || format!("wait until {} is empty", path.display());
    wait_until(what, || counter(&events, "populated") == 0)
}

/// Waits until something is so, which takes a moment.
pub(super) fn wait_until(what: impl Fn() -> String, is_so: impl Fn() -> bool) -> Result<(), Error> {
    if poll_until(WAIT_TIMEOUT, is_so) {
        return Ok(());
    }
    let busy = io::Error::from_raw_os_error(libc::EBUSY);
    Err(Error::step(what(), busy))
}

/// Whether something is so before long.
pub(super) fn poll_until(timeout: Duration, is_so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    // A poll on the kernel's files wakes at most once in 10 ms, so they are read again and again: the less often the longer
    // it takes, for the reader may stand in the way of those it waits for.
    const SHORTEST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(1);
    while !is_so() {
        if begin.elapsed() > timeout {
            return false;
        }
        std::thread::sleep((begin.elapsed() / 2).clamp(SHORTEST, LONGEST));
    }
    true
}

/// Removes a directory and those below it. A group whose last process is still exiting is
/// busy for a moment longer than `populated` says.
pub(super) fn remove_tree(path: &Path) -> Result<(), Error> {
    // The common case: nothing below.
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
