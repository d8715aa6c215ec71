//! Moves data between a pipe and a file by splice, without a copy in user memory. Used at both ends of a transfer.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{PipeFlags, SpliceFlags};

/// Size of pipes and maximum of one `splice`, in bytes: the kernel's default limit for unprivileged users.
pub const PIPE: usize = 1 << 20;

/// A pipe between the shared pipe and a file. A splice locks its pipe during the file operation; without this pipe the
/// process at the other end of the shared pipe would block meanwhile.
#[derive(Debug)]
pub struct Lock {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Lock {
    /// Creates the pipe.
    ///
    /// # Errors
    ///
    /// Fails if the limit of pipes is reached.
    pub fn new() -> rustix::io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // A smaller pipe works too: the kernel limits the total size of a user's pipes.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, PIPE);
        Ok(Self { reader, writer })
    }

    /// Moves bytes of a file into the shared pipe; 0 at the end of the file.
    ///
    /// # Errors
    ///
    /// Those of `splice`; `EPIPE` if the reader has closed the pipe.
    pub fn from_file(
        &self,
        file: &File,
        position: &mut u64,
        pipe: &OwnedFd,
        most: usize,
    ) -> rustix::io::Result<usize> {
        let taken = splice(file, Some(position), &self.writer, most)?;
        let mut left = taken;
        while left > 0 {
            left -= splice(&self.reader, None, pipe, left)?;
        }
        Ok(taken)
    }

    /// Moves the bytes in the shared pipe into a file; 0 at the end of the pipe.
    ///
    /// # Errors
    ///
    /// Those of `splice`; `WouldBlock` if the shared pipe is non-blocking and empty.
    pub fn to_file(&self, pipe: &OwnedFd, file: &File) -> std::io::Result<usize> {
        let taken = splice(pipe, None, &self.writer, PIPE)?;
        let mut left = taken;
        while left > 0 {
            left -= match splice(&self.reader, None, file, left) {
                // This file system does not support splice.
                Err(rustix::io::Errno::INVAL) => {
                    let mut buffer = vec![0; left.min(64 * 1024)];
                    let read = rustix::io::read(&self.reader, &mut buffer)?;
                    (&*file).write_all(buffer.get(..read).unwrap_or_default())?;
                    read
                }
                moved => moved?,
            };
        }
        Ok(taken)
    }
}

/// Moves available bytes; waits until there are some.
fn splice(
    from: impl AsFd,
    mut position: Option<&mut u64>,
    to: impl AsFd,
    most: usize,
) -> rustix::io::Result<usize> {
    let flags = SpliceFlags::MOVE;
    rustix::io::retry_on_intr(|| {
        rustix::pipe::splice(&from, position.as_deref_mut(), &to, None, most, flags)
    })
}
