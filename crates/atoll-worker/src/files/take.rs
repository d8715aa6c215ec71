//! Bytes of a socket into a file of a sandbox, without copying them through our memory.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use atoll_jail::pipes::PIPE;
use atoll_model::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::{SPLICE, Writer};
use crate::error::internal;
use crate::keeper::watch_for;

/// How far a take came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// To the last byte.
    All,
    /// The socket's other end said no more, or nothing for too long.
    BrokenOff,
}

impl Writer {
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
            let writable = timeout(self.call.patience(), pipe.writable()).await;
            let Ok(writable) = writable else {
                return Err(self.call.silent("the sandbox took nothing"));
            };
            let Ok(readable) = timeout(quiet, socket.readable()).await else {
                return Ok(Taken::BrokenOff);
            };
            let (mut writable, mut readable) =
                (writable.map_err(changed)?, readable.map_err(changed)?);
            // A splice that would have to wait does not say for whom.
            match waits_for(&socket, &pipe).map_err(|error| changed(error.into()))? {
                Some(Waits::Pipe) => writable.clear_ready(),
                Some(Waits::Socket) => readable.clear_ready(),
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

enum Waits {
    Pipe,
    Socket,
}

/// Which of the two has nothing to give, or no room, now.
fn waits_for(socket: impl AsFd, pipe: impl AsFd) -> Result<Option<Waits>, Errno> {
    let mut both = [
        PollFd::new(&socket, PollFlags::IN),
        PollFd::new(&pipe, PollFlags::OUT),
    ];
    match poll(&mut both, Some(&Timespec::default())) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error),
    }
    let [socket, pipe] = both.map(|one| !one.revents().is_empty());
    Ok(match (socket, pipe) {
        (_, false) => Some(Waits::Pipe),
        (false, true) => Some(Waits::Socket),
        (true, true) => None,
    })
}
