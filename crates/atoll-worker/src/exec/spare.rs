//! A child of PID 1 that waits for its program.
//!
//! ```text
//! prepare   a leaf, pipes, a socket; PID 1 clones the child into the leaf
//! start     the program goes over the socket, which closes: the program runs
//! ```
//! Each sandbox keeps one ready, made while nobody waits for it. Inside it is a process like any
//! other: it can be killed or stopped there, so a start that finds it dead takes a fresh one, and one
//! that finds it silent wakes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use atoll_jail::cgroup::Leaf;
use atoll_jail::plan::IdRange;
use atoll_jail::wire::{self, Channel, FromChild, Part, ToChild, ToInit};
use atoll_model::Error;
use rustix::fs::{Gid, Uid};
use rustix::pipe::PipeFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::error::internal;
use crate::init::{Prepared, gone};
use crate::keeper::{send, watch_channel, watch_for};
use crate::sandbox::Sandbox;

use super::task::Pipe;

/// A child that says nothing for so long was stopped by somebody inside.
const SILENCE: Duration = Duration::from_secs(1);

/// A waiting child and everything made for its exec.
#[derive(Debug)]
pub(crate) struct Spare {
    socket: AsyncFd<Channel<ToChild, FromChild>>,
    prepared: oneshot::Receiver<Prepared>,
    pid: Option<Prepared>,
    told: bool,
    pub(super) exec: Parts,
}

/// What an exec is made of, apart from its program.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) request: u32,
    pub(super) leaf: Leaf,
    pub(super) stdout: Pipe,
    pub(super) stderr: Pipe,
    /// The keeper holds its streams.
    pub(super) held: bool,
    /// Told the raw status of the child.
    pub(super) ended: oneshot::Receiver<i32>,
}

impl Parts {
    /// Has the keeper hold the streams: what it does not hold would be lost with us.
    pub(super) async fn hold(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let streams = [self.stdout.get_ref(), self.stderr.get_ref()];
        sandbox.hold(self.request, &streams.map(AsFd::as_fd)).await
    }
}

/// Why a program did not start.
pub(super) enum NotStarted {
    /// The child was gone before it heard of the program.
    Gone(Leaf),
    /// A part of the request could not be met.
    Refused(Leaf, Part, i32),
    /// Nothing was heard of the child for too long.
    Silent(Leaf),
}

impl Spare {
    /// Has a child made.
    pub(crate) async fn prepare(sandbox: &Sandbox) -> Result<Self, Error> {
        let (request, prepared, ended) = sandbox.init.expect()?;
        let leaf = sandbox.leaf(request)?;
        let (socket, inside) =
            wire::pair().map_err(|error| internal("make a child's socket", &error))?;
        let inside: OwnedFd = Channel::<FromChild, ToChild>::into_fd(inside);
        let (stdout, stdout_inside) = stream(sandbox.ids)?;
        let (stderr, stderr_inside) = stream(sandbox.ids)?;
        let mut handed = vec![inside.as_fd(), stdout_inside.as_fd(), stderr_inside.as_fd()];
        handed.extend(leaf.directory());
        let forget = sandbox.forgotten();
        let message = ToInit::Prepare { request, forget };
        sandbox.say(&message, &handed).await?;
        Ok(Self {
            socket: watch_channel(socket)?,
            prepared,
            pid: None,
            told: false,
            exec: Parts {
                request,
                stdout: receiver(stdout)?,
                stderr: receiver(stderr)?,
                held: false,
                leaf,
                ended,
            },
        })
    }

    /// Has the keeper hold its streams before there is a command for it, so that none has to wait for that.
    pub(crate) async fn hold(&mut self, sandbox: &Sandbox) {
        // What is not held now is held when the command begins.
        self.exec.held = self.exec.hold(sandbox).await.is_ok();
    }

    /// The child is known to have ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(
            self.exec.ended.try_recv(),
            Err(oneshot::error::TryRecvError::Empty)
        )
    }

    /// The number of its exec.
    pub(crate) fn request(&self) -> u32 {
        self.exec.request
    }

    /// Gives its leaf up.
    pub(crate) fn into_leaf(self) -> Leaf {
        self.exec.leaf
    }

    /// Its pid inside, if that is known already.
    pub(super) fn pid(&mut self) -> Option<i32> {
        if self.pid.is_none() {
            self.pid = self.prepared.try_recv().ok();
        }
        self.pid.and_then(Result::ok)
    }

    /// Tells the child its program. One that is gone says so in [`Self::started`].
    pub(super) async fn tell(&mut self, exec: wire::Exec, stdin: Option<BorrowedFd<'_>>) {
        let handed: Vec<_> = stdin.into_iter().collect();
        let told = send(&self.socket, &ToChild::Exec(exec), &handed).await;
        self.told = told.is_ok();
    }

    /// Waits until the child has become its program; its pid inside.
    pub(super) async fn started(
        self,
        sandbox: &Sandbox,
    ) -> Result<(i32, Parts), Result<NotStarted, Error>> {
        let parts = self.exec;
        let mut heard = false;
        let deadline = tokio::time::Instant::now() + sandbox.patience;
        loop {
            if !self.told {
                break;
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Ok(NotStarted::Silent(parts.leaf)));
            }
            match tokio::time::timeout(SILENCE, next(&self.socket)).await {
                Ok(Some(FromChild::Heard)) => heard = true,
                Ok(Some(FromChild::Refused { part, errno })) => {
                    return Err(Ok(NotStarted::Refused(parts.leaf, part, errno)));
                }
                Ok(None) => break,
                Err(_) => sandbox.init.try_send(&ToInit::Signal {
                    request: parts.request,
                    signal: rustix::process::Signal::CONT.as_raw(),
                }),
            }
        }
        let prepared = match self.pid {
            Some(prepared) => Ok(prepared),
            None => match tokio::time::timeout_at(deadline, self.prepared).await {
                Ok(prepared) => prepared,
                Err(_) => return Err(Ok(NotStarted::Silent(parts.leaf))),
            },
        };
        match prepared {
            Ok(Ok(pid)) if heard => Ok((pid, parts)),
            Ok(Ok(_)) => Err(Ok(NotStarted::Gone(parts.leaf))),
            Ok(Err(errno)) => Err(Ok(NotStarted::Refused(parts.leaf, Part::Setup, errno))),
            Err(_) => Err(Err(gone())),
        }
    }
}

/// Runs a program of the template once and to its end, so that what every program needs is known to the
/// kernel before somebody waits for it. A template without it is not the worse for it.
pub(crate) async fn exercise(sandbox: &Sandbox) {
    let Ok(mut spare) = Spare::prepare(sandbox).await else {
        return;
    };
    let request = spare.request();
    let exec = wire::Exec {
        argv: vec![b"/bin/true".to_vec()],
        ..wire::Exec::default()
    };
    spare.tell(exec, None).await;
    let leaf = match spare.started(sandbox).await {
        Ok((_, parts)) => {
            let _ = parts.ended.await;
            parts.leaf
        }
        Err(Ok(
            NotStarted::Gone(leaf) | NotStarted::Silent(leaf) | NotStarted::Refused(leaf, ..),
        )) => leaf,
        Err(Err(_)) => return,
    };
    sandbox.leave(leaf.into());
    sandbox.release(request);
    sandbox.forget(request);
}

/// The child's next word; nothing when it has become its program or has ended.
async fn next(socket: &AsyncFd<Channel<ToChild, FromChild>>) -> Option<FromChild> {
    loop {
        let mut ready = socket.readable().await.ok()?;
        if let Ok(received) = ready.try_io(|socket| socket.get_ref().receive_hostile()) {
            return received.ok().flatten();
        }
    }
}

/// A pipe for a standard stream, reading end first. It belongs to root of the sandbox, who gives it
/// to the program's user: opening `/dev/stdout` asks for rights.
pub(super) fn stream(ids: IdRange) -> Result<(OwnedFd, OwnedFd), Error> {
    let failed = |error: rustix::io::Errno| internal("make a pipe", &std::io::Error::from(error));
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    let (uid, gid) = (Uid::from_raw(ids.base), Gid::from_raw(ids.base));
    rustix::fs::fchown(&pipe.0, Some(uid), Some(gid)).map_err(failed)?;
    Ok(pipe)
}

/// Watches the reading end of a pipe.
pub(super) fn receiver(fd: OwnedFd) -> Result<Pipe, Error> {
    watch_for(super::nonblocking(fd)?, Interest::READABLE)
}
