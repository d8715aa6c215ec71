//! Steps of placing an entry in a file system that are the same for templates and file helpers. Which entries are
//! placed, where, and with which owner and mode is decided by the callers.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use super::{Entries, Entry};

/// Size of the buffer for contents, in bytes.
const BUFFER_BYTES: usize = 1 << 17;

/// Failure of copying the contents of an entry.
#[derive(Debug)]
pub enum CopyError {
    /// The archive cannot be read.
    Read(io::Error),
    /// The file cannot be written.
    Write(io::Error),
}

impl<R: Read> Entries<R> {
    /// Writes the contents of the current entry to a new file, a sparse one in its segments. The caller sets the
    /// length of a sparse file. Adds the bytes to `written` as they are written, also if the copy fails later.
    pub fn copy_contents(
        &mut self,
        entry: &Entry,
        file: &mut (impl Write + Seek),
        written: &mut u64,
    ) -> Result<(), CopyError> {
        let Some(pieces) = &entry.pieces else {
            return self.copy_bytes(entry.size, file, written);
        };
        for (offset, length) in pieces {
            file.seek(SeekFrom::Start(*offset))
                .map_err(CopyError::Write)?;
            self.copy_bytes(*length, file, written)?;
        }
        Ok(())
    }

    fn copy_bytes(
        &mut self,
        length: u64,
        file: &mut impl Write,
        written: &mut u64,
    ) -> Result<(), CopyError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut remaining = length;
        while remaining > 0 {
            let size = usize::try_from(remaining)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let read = self.read(&mut buffer[..size]).map_err(CopyError::Read)?;
            file.write_all(&buffer[..read]).map_err(CopyError::Write)?;
            remaining -= read as u64;
            *written += read as u64;
        }
        Ok(())
    }
}

/// Creates an entry and replaces an existing file or symlink, as `tar` does. Fails with `EISDIR` if a directory has
/// the name.
pub fn replace_existing(
    parent: impl AsFd,
    name: &[u8],
    mut create: impl FnMut() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    match create() {
        Err(Errno::EXIST) => {}
        answer => return answer,
    }
    rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
    create()
}

/// Timestamps that set the modification time only.
pub fn modification_time(seconds: i64, nanoseconds: u32) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: seconds,
            tv_nsec: i64::from(nanoseconds.min(999_999_999)),
        },
    }
}
