//! The host's side of a file helper: sends it one call and receives its messages.
//!
//! The helper runs inside the sandbox and may be hijacked: its messages are bounded in number and
//! never trusted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::wire::{self, Channel, Failure, FileCall, FileOp, FromHelper, ToHelper, ToInit};
use atoll_model::{Authority, Code, Error, FileEntry, RunAs, SandboxState};
use tokio::io::unix::AsyncFd;

use super::entry::to_entry;
use crate::error::{internal, sandbox_file_error, too_many_processes};
use crate::keeper::register_channel;
use crate::sandbox::Sandbox;

/// A helper silent for this long may have been stopped by a process in the sandbox; it is sent
/// SIGCONT.
const STALL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A file call in progress. Dropping it cancels the helper.
#[derive(Debug)]
pub(crate) struct HelperCall {
    sandbox: Arc<Sandbox>,
    request: u32,
    channel: AsyncFd<Channel<ToHelper, FromHelper>>,
    /// The helper ends by itself: it is done, or it will notice that its pipe is closed.
    pub(super) finished: bool,
}

impl Drop for HelperCall {
    fn drop(&mut self) {
        if !self.finished {
            self.sandbox.init.try_send(&ToInit::Cancel {
                request: self.request,
            });
        }
    }
}

impl HelperCall {
    pub(crate) async fn start(
        sandbox: Arc<Sandbox>,
        caller: &RunAs,
        work: FileOp,
        data: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let (channel, helper_end) =
            wire::pair().map_err(|error| internal("create a socket pair", &error))?;
        let channel = register_channel(channel)?;
        let request = sandbox.init.next_request_id();
        let call = FileCall {
            user: caller.user.clone().unwrap_or_default(),
            authority: match caller.authority {
                Authority::User => wire::Authority::User,
                Authority::Root => wire::Authority::Root,
            },
            work,
        };
        let helper_end: OwnedFd = Channel::<FromHelper, ToHelper>::into_fd(helper_end);
        let mut descriptors = vec![helper_end.as_fd()];
        descriptors.extend(data.iter().map(AsFd::as_fd));
        sandbox
            .send(&ToInit::File { request, call }, &descriptors)
            .await?;
        Ok(Self {
            sandbox,
            request,
            channel,
            finished: false,
        })
    }

    /// Waits for the helper's next message, with a timeout.
    pub(crate) async fn next(&mut self) -> Result<FromHelper, Error> {
        let deadline = tokio::time::Instant::now() + self.timeout();
        let mut paused = pin!(self.sandbox.until_paused());
        loop {
            tokio::select! {
                biased;
                message = self.receive() => return message,
                refusal = &mut paused => return Err(refusal),
                () = tokio::time::sleep(STALL_CHECK_INTERVAL) => {}
            }
            if tokio::time::Instant::now() > deadline {
                return Err(self.timeout_error("the sandbox did not respond"));
            }
            // A process in the sandbox may have stopped it.
            self.sandbox.init.try_send(&ToInit::Signal {
                request: self.request,
                signal: rustix::process::Signal::CONT.as_raw(),
            });
        }
    }

    /// Timeout of a helper that makes no progress, for example on a FIFO.
    pub(super) fn timeout(&self) -> Duration {
        self.sandbox.response_timeout
    }

    pub(super) fn timeout_error(&self, problem: &str) -> Error {
        match *self.sandbox.state.borrow() {
            SandboxState::Running => timeout_error(problem, self.timeout()),
            state => state.state_error("used"),
        }
    }

    /// Waits for the helper's next message, without a timeout.
    pub(crate) async fn receive(&mut self) -> Result<FromHelper, Error> {
        let message = loop {
            let ready = self.channel.readable().await;
            let mut ready = ready.map_err(|error| internal("poll a socket", &error))?;
            if let Ok(received) = ready.try_io(|channel| channel.get_ref().receive_hostile()) {
                break received;
            }
        };
        match message {
            Ok(Some(FromHelper::Failed {
                why: failure,
                errno,
                path,
            })) => {
                self.finished = true;
                Err(helper_error(failure, errno, &path))
            }
            Ok(Some(message)) => Ok(message),
            Ok(None) => {
                self.finished = true;
                Err(Error::new(
                    Code::Conflict,
                    "the file helper was killed inside the sandbox",
                )
                .remedy("try again"))
            }
            Err(error) => {
                self.finished = true;
                Err(internal("read a file helper's message", &error))
            }
        }
    }

    /// Sends a message to the helper.
    pub(crate) async fn send(&self, message: &ToHelper) -> Result<(), Error> {
        let sent = crate::keeper::send(&self.channel, message, &[]);
        self.with_timeout(sent, "the sandbox received nothing")
            .await?
    }

    /// Runs work that depends on the helper, with a timeout.
    pub(super) async fn with_timeout<T>(
        &self,
        work: impl Future<Output = T>,
        problem: &str,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            refusal = self.sandbox.until_paused() => Err(refusal),
            () = tokio::time::sleep(self.timeout()) => Err(self.timeout_error(problem)),
        }
    }

    /// Collects at most `max` entries until the helper is done.
    pub(super) async fn entries(self, max: usize) -> Result<(Vec<FileEntry>, bool), Error> {
        let convert = |message| match message {
            FromHelper::Entries(entries) => Some(entries.into_iter().map(to_entry).collect()),
            _ => None,
        };
        self.collect(convert, max).await
    }

    /// Collects at most `max` items of one kind until the helper is done; true if there are more.
    pub(super) async fn collect<T>(
        mut self,
        convert: impl Fn(FromHelper) -> Option<Vec<T>>,
        max: usize,
    ) -> Result<(Vec<T>, bool), Error> {
        let mut all = Vec::new();
        loop {
            match self.next().await? {
                FromHelper::Done { truncated } => {
                    self.finished = true;
                    return Ok((all, truncated));
                }
                message => all.extend(convert(message).ok_or_else(protocol_error)?),
            }
            // A hijacked helper could send entries for ever.
            if all.len() > max {
                return Err(Error::new(
                    Code::Internal,
                    "the sandbox sent more entries than requested",
                ));
            }
        }
    }
}

/// Error for a message that the protocol does not allow here.
pub(super) fn protocol_error() -> Error {
    Error::new(
        Code::Internal,
        "protocol error: unexpected message from the sandbox",
    )
}

pub(super) fn timeout_error(problem: &str, timeout: Duration) -> Error {
    Error::new(Code::Timeout, format!("{problem} for {timeout:?}")).remedy(
        "the file may be a FIFO or device that blocks, or a process in the sandbox may stop the file helper",
    )
}

fn spawn_error(errno: i32) -> Error {
    if errno == rustix::io::Errno::AGAIN.raw_os_error() {
        return too_many_processes();
    }
    internal(
        "start a file helper in the sandbox",
        &io::Error::from_raw_os_error(errno),
    )
}

fn helper_error(failure: Failure, errno: i32, path: &[u8]) -> Error {
    let text = String::from_utf8_lossy(path).into_owned();
    match failure {
        Failure::Kernel if path.is_empty() => spawn_error(errno),
        Failure::Kernel => sandbox_file_error(errno, path),
        Failure::User => Error::new(
            Code::UnknownUser,
            format!("user {text:?} is not known in the sandbox"),
        )
        .remedy("name a user of the sandbox's /etc/passwd, or a number")
        .detail("user", text),
        Failure::NotAFile => Error::new(Code::NotAFile, format!("{text:?} is not a regular file"))
            .remedy("name a regular file")
            .detail("path", text),
        Failure::NotADirectory => {
            Error::new(Code::NotADirectory, format!("{text:?} is not a directory"))
                .remedy(crate::error::NAME_A_DIRECTORY)
                .detail("path", text)
        }
        Failure::Archive => Error::invalid(
            "body",
            format!("the body is not a valid tar archive: {text}"),
            "send a complete, uncompressed tar archive",
        ),
    }
}
