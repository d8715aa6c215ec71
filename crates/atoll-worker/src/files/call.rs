//! The worker's end of a helper: what it is asked, and what it says to that.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::wire::{self, Channel, Failure, FileCall, FileWork, FromHelper, ToHelper, ToInit};
use atoll_model::{Authority, Caller, Code, Entry, Error, SandboxState};
use tokio::io::unix::AsyncFd;

use super::entry::entry;
use crate::error::{inside_file, internal, too_many_processes};
use crate::keeper::watch_channel;
use crate::sandbox::Sandbox;

/// A helper that says nothing for so long may have been stopped by somebody inside.
const SILENCE: Duration = Duration::from_secs(1);

/// A file call under way. Dropping it ends the helper.
#[derive(Debug)]
pub(crate) struct HelperCall {
    sandbox: Arc<Sandbox>,
    request: u32,
    answers: AsyncFd<Channel<ToHelper, FromHelper>>,
    /// The helper ends by itself: it is done, or it notices that nobody listens any more.
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
        caller: &Caller,
        work: FileWork,
        data: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let (answers, inside) = wire::pair().map_err(|error| internal("make a socket", &error))?;
        let answers = watch_channel(answers)?;
        let request = sandbox.init.number();
        let call = FileCall {
            user: caller.user.clone().unwrap_or_default(),
            authority: match caller.authority {
                Authority::User => wire::Authority::User,
                Authority::Root => wire::Authority::Root,
            },
            work,
        };
        let inside: OwnedFd = Channel::<FromHelper, ToHelper>::into_fd(inside);
        let mut descriptors = vec![inside.as_fd()];
        descriptors.extend(data.iter().map(AsFd::as_fd));
        sandbox
            .say(&ToInit::File { request, call }, &descriptors)
            .await?;
        Ok(Self {
            sandbox,
            request,
            answers,
            finished: false,
        })
    }

    /// The helper's next word, within a time in which something must happen.
    pub(crate) async fn next(&mut self) -> Result<FromHelper, Error> {
        let deadline = tokio::time::Instant::now() + self.patience();
        let mut paused = pin!(self.sandbox.paused());
        loop {
            tokio::select! {
                biased;
                word = self.listen() => return word,
                refusal = &mut paused => return Err(refusal),
                () = tokio::time::sleep(SILENCE) => {}
            }
            if tokio::time::Instant::now() > deadline {
                return Err(self.silent("the sandbox did not answer"));
            }
            // Perhaps somebody inside has stopped it.
            self.sandbox.init.try_send(&ToInit::Signal {
                request: self.request,
                signal: rustix::process::Signal::CONT.as_raw(),
            });
        }
    }

    /// A helper that says and moves nothing for so long is stuck on something that will never come.
    pub(super) fn patience(&self) -> Duration {
        self.sandbox.patience
    }

    pub(super) fn silent(&self, what: &str) -> Error {
        match *self.sandbox.state.borrow() {
            SandboxState::Running => silent(what, self.patience()),
            state => state.refusal("used"),
        }
    }

    /// The helper's next word, whenever it comes.
    pub(crate) async fn listen(&mut self) -> Result<FromHelper, Error> {
        let word = loop {
            let ready = self.answers.readable().await;
            let mut ready = ready.map_err(|error| internal("watch a socket", &error))?;
            if let Ok(received) = ready.try_io(|channel| channel.get_ref().receive_hostile()) {
                break received;
            }
        };
        match word {
            Ok(Some(FromHelper::Failed { why, errno, path })) => {
                self.finished = true;
                Err(failed(why, errno, &path))
            }
            Ok(Some(word)) => Ok(word),
            Ok(None) => {
                self.finished = true;
                Err(Error::new(
                    Code::Conflict,
                    "the file helper was ended inside the sandbox",
                )
                .remedy("try again"))
            }
            Err(error) => {
                self.finished = true;
                Err(internal("read the answer of a file helper", &error))
            }
        }
    }

    /// Says something to the helper.
    pub(crate) async fn say(&self, word: &ToHelper) -> Result<(), Error> {
        let said = crate::keeper::send(&self.answers, word, &[]);
        self.in_time(said, "the sandbox heard nothing").await?
    }

    /// What comes of something that the helper has a part in, within its time.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = T>,
        what: &str,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            refusal = self.sandbox.paused() => Err(refusal),
            () = tokio::time::sleep(self.patience()) => Err(self.silent(what)),
        }
    }

    /// Everything the helper says until it is done, at most so many entries.
    pub(super) async fn entries(self, most: usize) -> Result<(Vec<Entry>, bool), Error> {
        let of = |word| match word {
            FromHelper::Entries(entries) => Some(entries.into_iter().map(entry).collect()),
            _ => None,
        };
        self.all(of, most).await
    }

    /// Everything of one kind that the helper says until it is done, at most so many.
    pub(super) async fn all<T>(
        mut self,
        of: impl Fn(FromHelper) -> Option<Vec<T>>,
        most: usize,
    ) -> Result<(Vec<T>, bool), Error> {
        let mut all = Vec::new();
        loop {
            match self.next().await? {
                FromHelper::Done { truncated } => {
                    self.finished = true;
                    return Ok((all, truncated));
                }
                word => all.extend(of(word).ok_or_else(nonsense)?),
            }
            // A hijacked helper could go on for ever.
            if all.len() > most {
                return Err(Error::new(
                    Code::Internal,
                    "the sandbox sent more entries than were asked for",
                ));
            }
        }
    }
}

/// What a hijacked helper may say; it could go on for ever.
pub(super) fn nonsense() -> Error {
    Error::new(Code::Internal, "the sandbox told nonsense")
}

pub(super) fn silent(what: &str, patience: Duration) -> Error {
    Error::new(Code::Timeout, format!("{what} for {patience:?}")).remedy(
        "the file may be one that never ends or never begins, or something stops what works on it",
    )
}

fn not_started(errno: i32) -> Error {
    if errno == rustix::io::Errno::AGAIN.raw_os_error() {
        return too_many_processes();
    }
    internal(
        "start a file helper in the sandbox",
        &io::Error::from_raw_os_error(errno),
    )
}

fn failed(why: Failure, errno: i32, path: &[u8]) -> Error {
    let text = String::from_utf8_lossy(path).into_owned();
    match why {
        Failure::Kernel if path.is_empty() => not_started(errno),
        Failure::Kernel => inside_file(errno, path),
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
            format!("what was sent cannot be read as a tar archive: {text}"),
            "send a tar archive that is not compressed, whole",
        ),
    }
}
