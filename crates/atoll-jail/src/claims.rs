//! Claims on numbers that all instances of a host share.
//!
//! One file, one byte a number, locked by open file description: a claim lasts as long as a process
//! holds the description (a server, or its keeper after it) and vanishes with the last of them.
//! Nothing is written into the file.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::{Error, Step};

/// This instance's claims in one file.
#[derive(Debug)]
pub struct Claims {
    file: File,
    /// Number of numbers, from 0.
    count: u32,
    /// Own claims: locks of one open file description do not conflict with each other.
    ours: Mutex<BTreeSet<u32>>,
}

impl Claims {
    /// Opens the file of claims on `count` numbers; creates it if it is missing.
    pub fn open(path: &Path, count: u32) -> Result<Self, Error> {
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
            count,
            ours: Mutex::default(),
        })
    }

    /// Claims the lowest number that no instance on this host has; none if all are taken.
    pub fn claim(&self) -> Result<Option<u32>, Error> {
        self.claim_if(|_| Ok(true))
    }

    /// Claims the lowest number that no instance on this host has and that `accept` returns true for. `accept` is called with
    /// the number locked.
    pub fn claim_if<E: From<Error>>(
        &self,
        accept: impl Fn(u32) -> Result<bool, E>,
    ) -> Result<Option<u32>, E> {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..self.count {
            if ours.contains(&number) {
                continue;
            }
            match self.lock(number..number + 1, libc::F_WRLCK) {
                Ok(()) => {
                    let accepted = accept(number);
                    if matches!(accepted, Ok(true)) {
                        ours.insert(number);
                        return Ok(Some(number));
                    }
                    let _ = self.lock(number..number + 1, libc::F_UNLCK);
                    accepted?;
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                }
                Err(error) => return Err(Error::step("lock a claim", error).into()),
            }
        }
        Ok(None)
    }

    /// Continues the claims of an earlier server, with the open file description that its keeper held.
    pub fn take_over(file: OwnedFd, count: u32) -> Self {
        Self {
            file: File::from(file),
            count,
            ours: Mutex::default(),
        }
    }

    /// Adopts a number that was claimed with this open file description before.
    pub fn inherit(&self, number: u32) {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        ours.insert(number);
    }

    /// Releases claims of this open file that were not inherited.
    pub fn release_others(&self) {
        let ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = 0;
        for &number in ours.iter().chain([&self.count]) {
            // A length of 0 would unlock everything after the number.
            if number > next {
                let _ = self.lock(next..number, libc::F_UNLCK);
            }
            next = number + 1;
        }
    }

    /// Releases all numbers of this open file description, also while a keeper holds it.
    pub fn release_all(&self) {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        ours.clear();
        let _ = self.lock(0..self.count, libc::F_UNLCK);
    }

    /// Releases a number.
    pub fn release(&self, number: u32) {
        let mut ours = self.ours.lock().unwrap_or_else(PoisonError::into_inner);
        if ours.remove(&number) {
            let _ = self.lock(number..number + 1, libc::F_UNLCK);
        }
    }

    fn lock(&self, numbers: Range<u32>, kind: libc::c_int) -> io::Result<()> {
        // SAFETY: an all-zero flock is valid; it lives across the call.
        let result = unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = kind as i16;
            lock.l_whence = libc::SEEK_SET as i16;
            lock.l_start = i64::from(numbers.start);
            lock.l_len = i64::from(numbers.end - numbers.start);
            libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock)
        };
        if result == -1 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl AsFd for Claims {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
