//! Ranges of user and group ids, shared by all instances on a host.
//!
//! One file, one byte a range, locked by open file description: a claim lives as long as somebody
//! holds the description (a server, or its keeper after it) and vanishes with the last of them.
//! The ranges lie above those that systemd and `/etc/subuid` hand out.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::plan::IdRange;
use crate::{Error, Step};

const FIRST: u32 = 0x7000_0000;
/// Ids in a range: what a system expects to have.
pub const COUNT: u32 = 65536;
const RANGES: u32 = 0x0fff_0000 / COUNT;

/// This instance's claims.
#[derive(Debug)]
pub struct Ranges {
    file: File,
    /// The kernel does not tell our own locks from each other.
    ours: Mutex<BTreeSet<u32>>,
}

impl Ranges {
    /// Opens the file of claims, and makes it if it is not there.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .step(|| format!("open {}", path.display()))?;
        Ok(Self {
            file,
            ours: Mutex::default(),
        })
    }

    /// Claims a range that no instance on this host uses.
    pub fn claim(&self) -> Result<IdRange, Error> {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        for number in (0..RANGES)
            .filter(|number| !ours.contains(number))
            .collect::<Vec<_>>()
        {
            match self.lock(number, libc::F_WRLCK) {
                Ok(()) => {
                    ours.insert(number);
                    return Ok(IdRange {
                        base: FIRST + number * COUNT,
                        count: COUNT,
                    });
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                }
                Err(error) => return Err(Error::step("claim an id range", error)),
            }
        }
        Err(Error::Unsupported {
            feature: "another id range",
            why: format!("all {RANGES} ranges of this host are in use"),
            remedy: "delete sandboxes, or run atoll gc",
        })
    }

    /// Goes on with the claims of a server that is gone, over the open file its keeper held.
    pub fn take_over(file: OwnedFd) -> Self {
        Self {
            file: File::from(file),
            ours: Mutex::default(),
        }
    }

    /// A range that was claimed over this same open file before.
    pub fn inherit(&self, range: IdRange) {
        let number = range.base.saturating_sub(FIRST) / COUNT;
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        ours.insert(number);
    }

    /// Gives up what was claimed over this open file and nobody inherited.
    pub fn release_others(&self) {
        let ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        for number in (0..RANGES).filter(|number| !ours.contains(number)) {
            let _ = self.lock(number, libc::F_UNLCK);
        }
    }

    /// Gives a range back.
    pub fn release(&self, range: IdRange) {
        let number = (range.base - FIRST) / COUNT;
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        if ours.remove(&number) {
            let _ = self.lock(number, libc::F_UNLCK);
        }
    }

    fn lock(&self, number: u32, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: an all-zero flock is valid; it lives across the call.
        let result = unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = kind as i16;
            lock.l_whence = libc::SEEK_SET as i16;
            lock.l_start = i64::from(number);
            lock.l_len = 1;
            libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock)
        };
        if result == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl AsFd for Ranges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_excludes_others_until_it_is_released_or_its_holder_is_gone() {
        let path = std::env::temp_dir().join(format!("atoll-ids-{}", std::process::id()));
        let (one, other) = (
            Ranges::open(&path).expect("open"),
            Ranges::open(&path).expect("open"),
        );
        let first = one.claim().expect("claim");
        let second = other.claim().expect("claim");
        let third = one.claim().expect("claim");
        assert!(first != second && second != third && first != third);
        one.release(first);
        assert_eq!(other.claim().expect("claim"), first);
        drop(other);
        assert_eq!(one.claim().expect("claim"), first);
        std::fs::remove_file(path).expect("remove");
    }
}
