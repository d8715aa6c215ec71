//! Bytes between a file of a sandbox and a file of the host or a socket, without copying them through our memory.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use atoll_jail::pipes::{Lock, PIPE};
use atoll_model::{Code, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::call::silent;
use super::{Reader, Writer};
use crate::error::internal;
use crate::exec::{new_pipe, nonblocking};
use crate::keeper::watch_for;
use crate::sandbox::blocking;

const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// How far a take came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// To the last byte.
    All,
    /// The socket's other end said no more, or nothing for too long.
    BrokenOff,
}

impl Writer {
    /// Sends a whole file of the host, without copying it through our memory.
    pub async fn send(&mut self, file: File) -> Result<u64, Error> {
        let Some(pipe) = self.pipe.take() else {
            return Ok(0);
        };
        let pipe = pipe
            .into_nonblocking_fd()
            .map_err(|error| internal("change a pipe", &error))?;
        let patience = self.call.patience();
        let (pipe, sent) = blocking(move || {
            let mut total = 0;
            loop {
                match rustix::pipe::splice(&file, None, &pipe, None, PIPE, SPLICE) {
                    Ok(0) => return Ok((pipe, Some(total))),
                    Ok(moved) => total += moved as u64,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => {
                        if !comes(&pipe, PollFlags::OUT, patience)? {
                            return Err(silent("the sandbox took nothing", patience));
                        }
                    }
                    Err(Errno::PIPE) => return Ok((pipe, None)),
                    Err(error) => {
                        return Err(internal(
                            "read a file of the host",
                            &std::io::Error::from(error),
                        ));
                    }
                }
            }
        })
        .await?;
        match sent {
            Some(total) => {
                let pipe = pipe::Sender::from_owned_fd(pipe);
                self.pipe = Some(pipe.map_err(|error| internal("watch a pipe", &error))?);
                Ok(total)
            }
            None => Err(self.why().await),
        }
    }

    /// Takes so many bytes out of a socket; whoever sends them may keep quiet for so long. `moved` counts them as they go,
    /// also where it ends early or is given up.
    pub async fn take(
        &mut self,
        socket: OwnedFd,
        count: u64,
        quiet: Duration,
        moved: &mut u64,
    ) -> Result<Taken, Error> {
        let Some(pipe) = self.pipe.take() else {
            return Ok(Taken::All);
        };
        let changed = |error: std::io::Error| internal("change a pipe", &error);
        let pipe = pipe.into_nonblocking_fd().map_err(changed)?;
        let pipe = watch_for(pipe, Interest::WRITABLE)?;
        let socket = watch_for(socket, Interest::READABLE)?;
        while *moved < count {
            let writable = pipe.writable();
            let writable = self
                .call
                .in_time(writable, "the sandbox took nothing")
                .await?;
            let Ok(readable) = timeout(quiet, socket.readable()).await else {
                return Ok(Taken::BrokenOff);
            };
            let (mut writable, mut readable) =
                (writable.map_err(changed)?, readable.map_err(changed)?);
            // A splice that would have to wait does not say for whom.
            match waits_for(&socket, &pipe).map_err(|error| changed(error.into()))? {
                Some(Waits::Sink) => writable.clear_ready(),
                Some(Waits::Source) => readable.clear_ready(),
                None => {
                    let most = usize::try_from(count - *moved).unwrap_or(PIPE).min(PIPE);
                    match rustix::pipe::splice(&socket, None, &pipe, None, most, SPLICE) {
                        Ok(0) | Err(Errno::CONNRESET) => return Ok(Taken::BrokenOff),
                        Ok(some) => *moved += some as u64,
                        Err(Errno::INTR | Errno::AGAIN) => {}
                        Err(Errno::PIPE) => return Err(self.why().await),
                        Err(error) => {
                            return Err(internal("read a socket", &std::io::Error::from(error)));
                        }
                    }
                }
            }
        }
        let pipe = pipe::Sender::from_owned_fd(pipe.into_inner());
        self.pipe = Some(pipe.map_err(changed)?);
        Ok(Taken::All)
    }
}

impl Reader {
    /// Moves everything into a file of the host, without copying it through our memory.
    pub async fn save(mut self, file: File) -> Result<u64, Error> {
        let pipe = self
            .pipe
            .into_nonblocking_fd()
            .map_err(|error| internal("change a pipe", &error))?;
        self.pipe = empty_pipe()?;
        let patience = self.call.patience();
        let total = blocking(move || {
            let failed = |error: &std::io::Error| internal("write a file of the host", error);
            let lock = Lock::new().map_err(|error| failed(&error.into()))?;
            let mut total = 0;
            loop {
                match lock.to_file(&pipe, &file) {
                    Ok(0) => return Ok(total),
                    Ok(moved) => total += moved as u64,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                        if !comes(&pipe, PollFlags::IN, patience)? {
                            return Err(silent("the file gave nothing", patience));
                        }
                    }
                    Err(error) => return Err(failed(&error)),
                }
            }
        })
        .await?;
        self.end().await?;
        Ok(total)
    }

    /// Gives so many bytes to a socket; who gets them may take nothing for so long. `given` counts them as they go, also where it ends early or is given up.
    pub async fn give(
        &mut self,
        socket: OwnedFd,
        count: u64,
        quiet: Duration,
        given: &mut u64,
    ) -> Result<(), Error> {
        let changed = |error: std::io::Error| internal("change a pipe", &error);
        let pipe = std::mem::replace(&mut self.pipe, empty_pipe()?);
        let pipe = pipe.into_nonblocking_fd().map_err(changed)?;
        let pipe = watch_for(pipe, Interest::READABLE)?;
        let socket = watch_for(socket, Interest::WRITABLE)?;
        while *given < count {
            let readable = pipe.readable();
            let readable = self.call.in_time(readable, "the file gave nothing").await?;
            // Who reads slowly may.
            let Ok(writable) = timeout(quiet, socket.writable()).await else {
                let message = format!("nobody took anything for {} s", quiet.as_secs());
                return Err(Error::new(Code::Timeout, message));
            };
            let (mut readable, mut writable) =
                (readable.map_err(changed)?, writable.map_err(changed)?);
            match waits_for(&pipe, &socket).map_err(|error| changed(error.into()))? {
                Some(Waits::Sink) => writable.clear_ready(),
                Some(Waits::Source) => readable.clear_ready(),
                None => {
                    let most = usize::try_from(count - *given).unwrap_or(PIPE).min(PIPE);
                    match rustix::pipe::splice(&pipe, None, &socket, None, most, SPLICE) {
                        Ok(0) => {
                            self.end().await?;
                            return Err(Error::new(Code::Conflict, "the file became shorter"));
                        }
                        Ok(some) => *given += some as u64,
                        Err(Errno::INTR | Errno::AGAIN) => {}
                        Err(error) => {
                            let error = std::io::Error::from(error);
                            return Err(internal("write to a socket", &error));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Waits until a pipe can be used, or is at its end; false if that did not come in time.
fn comes(pipe: &OwnedFd, what: PollFlags, patience: Duration) -> Result<bool, Error> {
    let failed = |error: Errno| internal("wait for a pipe", &std::io::Error::from(error));
    let patience = Timespec::try_from(patience).map_err(|_| failed(Errno::INVAL))?;
    match poll(&mut [PollFd::new(pipe, what)], Some(&patience)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

/// A pipe at its end.
fn empty_pipe() -> Result<pipe::Receiver, Error> {
    let (reader, _) = new_pipe()?;
    pipe::Receiver::from_owned_fd(nonblocking(reader)?)
        .map_err(|error| internal("watch a pipe", &error))
}

enum Waits {
    Source,
    Sink,
}

/// Which of the two has nothing to give, or no room, now.
fn waits_for(source: impl AsFd, sink: impl AsFd) -> Result<Option<Waits>, Errno> {
    let mut both = [
        PollFd::new(&source, PollFlags::IN),
        PollFd::new(&sink, PollFlags::OUT),
    ];
    match poll(&mut both, Some(&Timespec::default())) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let [source, sink] = both.map(|one| !one.revents().is_empty());
    Ok(match (source, sink) {
        (_, false) => Some(Waits::Sink),
        (false, true) => Some(Waits::Source),
        (true, true) => None,
    })
}
