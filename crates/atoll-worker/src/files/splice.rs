//! Zero-copy transfer between files of a sandbox and of the host by `splice(2)`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use atoll_jail::pipes::{Lock, PIPE};
use atoll_model::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use tokio::net::unix::pipe;

use super::call::timeout_error;
use super::{FileReader, FileWriter};
use crate::error::internal;
use crate::exec::{create_pipe, set_nonblocking};
use crate::sandbox::run_blocking;

const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl FileWriter {
    /// Writes a host file from its current offset to its end.
    pub async fn splice_from(&mut self, file: File) -> Result<u64, Error> {
        let Some(pipe) = self.pipe.take() else {
            return Ok(0);
        };
        let pipe = pipe
            .into_nonblocking_fd()
            .map_err(|error| internal("get the descriptor of a pipe", &error))?;
        let timeout = self.call.timeout();
        let (pipe, sent) = run_blocking(move || {
            let mut total = 0;
            loop {
                match rustix::pipe::splice(&file, None, &pipe, None, PIPE, SPLICE) {
                    Ok(0) => return Ok((pipe, Some(total))),
                    Ok(moved) => total += moved as u64,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => {
                        if !wait_ready(&pipe, PollFlags::OUT, timeout)? {
                            return Err(timeout_error("the sandbox accepted no data", timeout));
                        }
                    }
                    Err(Errno::PIPE) => return Ok((pipe, None)),
                    Err(error) => {
                        return Err(internal("read a host file", &std::io::Error::from(error)));
                    }
                }
            }
        })
        .await?;
        match sent {
            Some(total) => {
                let pipe = pipe::Sender::from_owned_fd(pipe);
                self.pipe = Some(pipe.map_err(|error| internal("poll a pipe", &error))?);
                Ok(total)
            }
            None => Err(self.helper_error().await),
        }
    }
}

impl FileReader {
    /// Reads everything into a host file.
    pub async fn splice_to(mut self, file: File) -> Result<u64, Error> {
        let pipe = self
            .pipe
            .into_nonblocking_fd()
            .map_err(|error| internal("get the descriptor of a pipe", &error))?;
        self.pipe = empty_pipe()?;
        let timeout = self.call.timeout();
        let total = run_blocking(move || {
            let failed = |error: &std::io::Error| internal("write a host file", error);
            let lock = Lock::new().map_err(|error| failed(&error.into()))?;
            let mut total = 0;
            loop {
                match lock.to_file(&pipe, &file) {
                    Ok(0) => return Ok(total),
                    Ok(moved) => total += moved as u64,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        if !wait_ready(&pipe, PollFlags::IN, timeout)? {
                            return Err(timeout_error("the file returned no data", timeout));
                        }
                    }
                    Err(error) => return Err(failed(&error)),
                }
            }
        })
        .await?;
        self.expect_done().await?;
        Ok(total)
    }
}

/// Waits until a pipe is ready or at its end; false after the timeout.
fn wait_ready(pipe: &OwnedFd, what: PollFlags, timeout: Duration) -> Result<bool, Error> {
    let failed = |error: Errno| internal("wait for a pipe", &std::io::Error::from(error));
    let timeout = Timespec::try_from(timeout).map_err(|_| failed(Errno::INVAL))?;
    match poll(&mut [PollFd::new(pipe, what)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

/// A pipe without a writer.
fn empty_pipe() -> Result<pipe::Receiver, Error> {
    let (reader, _) = create_pipe()?;
    pipe::Receiver::from_owned_fd(set_nonblocking(reader)?)
        .map_err(|error| internal("poll a pipe", &error))
}
