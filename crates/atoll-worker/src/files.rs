//! Files of a sandbox, worked on inside by a helper as the asked user. Data comes and goes through
//! a pipe the worker made; no descriptor of the sandbox is ever used out here.

pub(crate) mod archive;
mod direct;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::pipes::{Lock, PIPE};
use atoll_jail::wire::{self, Channel, Failure, FileCall, FileWork, FromHelper, ToHelper, ToInit};
use atoll_model::{
    Attributes, Authority, Caller, Code, Described, Entry, EntryKind, Error, SandboxState, Target,
    WriteOptions,
};
use bytes::BufMut;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::SpliceFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use crate::error::{inside_file, internal};
use crate::exec::{new_pipe, nonblocking};
use crate::keeper::watch_channel;
use crate::sandbox::{Sandbox, blocking};
pub use direct::Taken;

/// A helper that says nothing for so long may have been stopped by somebody inside.
const SILENCE: Duration = Duration::from_secs(1);
const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// A file call under way. Dropping it ends the helper.
#[derive(Debug)]
pub(crate) struct Call {
    sandbox: Arc<Sandbox>,
    request: u32,
    answers: AsyncFd<Channel<ToHelper, FromHelper>>,
    /// The helper ends by itself: it is done, or it notices that nobody listens any more.
    finished: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.finished {
            self.sandbox.init.try_send(&ToInit::Cancel {
                request: self.request,
            });
        }
    }
}

impl Call {
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
    fn patience(&self) -> Duration {
        self.sandbox.patience
    }

    fn silent(&self, what: &str) -> Error {
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
            Ok(None) | Err(_) => {
                self.finished = true;
                Err(Error::new(
                    Code::Conflict,
                    "the file helper was ended inside the sandbox",
                )
                .remedy("try again"))
            }
        }
    }

    /// Says something to the helper.
    pub(crate) async fn say(&self, word: &ToHelper) -> Result<(), Error> {
        let said = crate::keeper::send(&self.answers, word, &[]);
        self.in_time(said, "the sandbox heard nothing").await?
    }

    /// What comes of something that the helper has a part in, within its time.
    async fn in_time<T>(&self, work: impl Future<Output = T>, what: &str) -> Result<T, Error> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            refusal = self.sandbox.paused() => Err(refusal),
            () = tokio::time::sleep(self.patience()) => Err(self.silent(what)),
        }
    }

    /// Everything the helper says until it is done, at most so many entries.
    async fn entries(self, most: usize) -> Result<(Vec<Entry>, bool), Error> {
        let of = |word| match word {
            FromHelper::Entries(entries) => entries.into_iter().map(entry).collect(),
            _ => Vec::new(),
        };
        self.all(of, most).await
    }

    /// Everything of one kind that the helper says until it is done, at most so many.
    async fn all<T>(
        mut self,
        of: impl Fn(FromHelper) -> Vec<T>,
        most: usize,
    ) -> Result<(Vec<T>, bool), Error> {
        let mut all = Vec::new();
        loop {
            match self.next().await? {
                FromHelper::Done { truncated } => {
                    self.finished = true;
                    return Ok((all, truncated));
                }
                word => all.extend(of(word)),
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

fn silent(what: &str, patience: Duration) -> Error {
    Error::new(Code::Timeout, format!("{what} for {patience:?}")).remedy(
        "the file may be one that never ends or never begins, or something stops what works on it",
    )
}

fn failed(why: Failure, errno: i32, path: &[u8]) -> Error {
    let text = String::from_utf8_lossy(path).into_owned();
    match why {
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

fn kind(mode: u32) -> EntryKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => EntryKind::File,
        rustix::fs::FileType::Directory => EntryKind::Directory,
        rustix::fs::FileType::Symlink => EntryKind::Link,
        _ => EntryKind::Other,
    }
}

fn described(described: wire::Described) -> Described {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let attributes = described.attributes.into_iter();
    Described {
        entry: entry(described.entry),
        owner: described.owner,
        group: described.group,
        target: described.target.map(|target| Target {
            path: target.path,
            kind: kind(target.mode),
            mode: target.mode & 0o7777,
        }),
        attributes: attributes
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
    }
}

fn entry(entry: wire::Entry) -> Entry {
    let kind = kind(entry.mode);
    Entry {
        path: entry.path,
        kind,
        mode: entry.mode & 0o7777,
        uid: entry.uid,
        gid: entry.gid,
        size: entry.size,
        modified: entry.modified,
        link: (kind == EntryKind::Link).then_some(entry.link),
    }
}

pub(crate) fn checked(path: &[u8]) -> Result<Vec<u8>, Error> {
    let wrong = |message: &str| {
        Err(Error::invalid(
            "path",
            message,
            "name a path of the sandbox",
        ))
    };
    match path {
        [] => wrong("the path is empty"),
        _ if path.contains(&0) => wrong("the path contains a NUL byte"),
        _ if path.len() > 4096 => wrong("the path is longer than 4096 bytes"),
        _ => Ok(path.to_vec()),
    }
}

/// A file being read.
#[derive(Debug)]
pub struct Reader {
    /// The file as it was when it was opened.
    pub entry: Entry,
    pipe: pipe::Receiver,
    call: Call,
}

impl Reader {
    /// Reads some, as much as there is room for; 0 at the end. A read that fails half-way is an error, never a short file.
    pub async fn read(&mut self, mut buffer: impl BufMut + Send) -> Result<usize, Error> {
        let read = self.pipe.read_buf(&mut buffer);
        match self.call.in_time(read, "the file gave nothing").await? {
            Ok(0) => {
                self.end().await?;
                Ok(0)
            }
            Ok(read) => Ok(read),
            Err(error) => Err(internal("read a file", &error)),
        }
    }

    /// Reads everything, up to a limit.
    pub async fn read_to_end(mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        loop {
            all.reserve(64 << 10);
            if self.read(&mut all).await? == 0 {
                return Ok(all);
            }
            if all.len() > limit {
                return Err(Error::new(
                    Code::QuotaExceeded,
                    format!("the file is longer than {limit} bytes"),
                ));
            }
        }
    }

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

    async fn end(&mut self) -> Result<(), Error> {
        if !self.call.finished {
            self.call.next().await?;
            self.call.finished = true;
        }
        Ok(())
    }
}

/// Waits until a pipe can be used, or is at its end; false if that did not come in time.
fn comes(pipe: &OwnedFd, what: PollFlags, patience: Duration) -> Result<bool, Error> {
    let failed =
        |error: rustix::io::Errno| internal("wait for a pipe", &std::io::Error::from(error));
    let patience = Timespec::try_from(patience).map_err(|_| failed(rustix::io::Errno::INVAL))?;
    match rustix::event::poll(&mut [PollFd::new(pipe, what)], Some(&patience)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

/// A pipe at its end.
fn empty_pipe() -> Result<pipe::Receiver, Error> {
    let (reader, _) = new_pipe()?;
    pipe::Receiver::from_owned_fd(nonblocking(reader)?)
        .map_err(|error| internal("watch a pipe", &error))
}

/// A file being written. Nothing has happened until `commit`; dropped before, nothing will have.
#[derive(Debug)]
pub struct Writer {
    pipe: Option<pipe::Sender>,
    call: Call,
}

impl Writer {
    /// Writes all of these bytes.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(pipe) = &mut self.pipe else {
            return Ok(());
        };
        let written = pipe.write_all(bytes);
        match self
            .call
            .in_time(written, "the sandbox took nothing")
            .await?
        {
            Ok(()) => Ok(()),
            // The helper has closed its end: it says why.
            Err(_) => Err(self.why().await),
        }
    }

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
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => {
                        if !comes(&pipe, PollFlags::OUT, patience)? {
                            return Err(silent("the sandbox took nothing", patience));
                        }
                    }
                    Err(rustix::io::Errno::PIPE) => return Ok((pipe, None)),
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

    /// Makes the write take effect; the file as it is then.
    pub async fn commit(self) -> Result<Entry, Error> {
        let (entries, _) = self.sent().await?.entries(1).await?;
        entries
            .into_iter()
            .next()
            .ok_or_else(|| Error::new(Code::Internal, "the sandbox did not describe the file"))
    }

    /// Says that all was sent; what the helper says to that is still to be heard.
    async fn sent(mut self) -> Result<Call, Error> {
        self.pipe = None;
        if self.call.say(&ToHelper::Commit).await.is_err() {
            return Err(self.why().await);
        }
        Ok(self.call)
    }

    async fn why(&mut self) -> Error {
        match self.call.next().await {
            Err(error) => error,
            Ok(_) => Error::new(
                Code::Internal,
                "the sandbox closed the file without a reason",
            ),
        }
    }
}

pub(crate) async fn read(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
    offset: u64,
    length: Option<u64>,
) -> Result<Reader, Error> {
    let work = FileWork::Read {
        path: checked(path)?,
        offset,
        length,
    };
    open_reader(sandbox, caller, work).await
}

/// Work that describes one thing, then sends its data.
async fn open_reader(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    work: FileWork,
) -> Result<Reader, Error> {
    let (outside, inside) = new_pipe()?;
    let _ = rustix::pipe::fcntl_setpipe_size(&outside, PIPE);
    let pipe = pipe::Receiver::from_owned_fd(nonblocking(outside)?)
        .map_err(|error| internal("watch a pipe", &error))?;
    let mut call = Call::start(sandbox, caller, work, Some(inside)).await?;
    match call.next().await? {
        FromHelper::Entries(mut entries) if entries.len() == 1 => {
            let entry = entry(entries.remove(0));
            Ok(Reader { entry, pipe, call })
        }
        _ => Err(Error::new(
            Code::Internal,
            "the sandbox did not describe the file",
        )),
    }
}

pub(crate) async fn write(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
    options: WriteOptions,
) -> Result<Writer, Error> {
    let WriteOptions {
        mode,
        in_place,
        parents,
    } = options;
    let work = FileWork::Write {
        path: checked(path)?,
        mode,
        in_place,
        parents,
    };
    open_writer(sandbox, caller, work).await
}

pub(crate) async fn put(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    path: &[u8],
    attributes: Attributes,
) -> Result<Writer, Error> {
    let values = attributes.values.into_iter();
    let work = FileWork::Put {
        path: checked(path)?,
        attributes: wire::Attributes {
            prefix: attributes.prefix.into(),
            values: values
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        },
    };
    open_writer(sandbox, caller, work).await
}

/// Work that takes data, and takes effect when all of it was sent.
async fn open_writer(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    work: FileWork,
) -> Result<Writer, Error> {
    let (inside, outside) = new_pipe()?;
    let _ = rustix::pipe::fcntl_setpipe_size(&outside, PIPE);
    let pipe = pipe::Sender::from_owned_fd(nonblocking(outside)?)
        .map_err(|error| internal("watch a pipe", &error))?;
    let mut call = Call::start(sandbox, caller, work, Some(inside)).await?;
    // When its pipe and socket are closed, the helper takes away what it has begun; a killed one
    // could not.
    call.finished = true;
    Ok(Writer {
        pipe: Some(pipe),
        call,
    })
}

/// Describes a path, or what is below it: at most so many entries come back, and whether there are more.
pub(crate) async fn describe(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    (path, depth, limit): (&[u8], u32, u32),
    prefix: &str,
) -> Result<(Vec<Described>, bool), Error> {
    let work = FileWork::Describe {
        path: checked(path)?,
        depth,
        limit,
        attributes: prefix.into(),
    };
    let of = |word| match word {
        FromHelper::Described(all) => all.into_iter().map(described).collect(),
        _ => Vec::new(),
    };
    let call = Call::start(sandbox, caller, work, None).await?;
    call.all(of, limit.max(1) as usize).await
}

/// Work that has no data: at most so many entries come back.
pub(crate) async fn simple(
    sandbox: Arc<Sandbox>,
    caller: &Caller,
    work: FileWork,
    most: usize,
) -> Result<(Vec<Entry>, bool), Error> {
    for path in paths(&work) {
        checked(path)?;
    }
    Call::start(sandbox, caller, work, None)
        .await?
        .entries(most)
        .await
}

fn paths(work: &FileWork) -> Vec<&Vec<u8>> {
    match work {
        FileWork::Read { path, .. }
        | FileWork::Write { path, .. }
        | FileWork::Stat { path, .. }
        | FileWork::List { path, .. }
        | FileWork::Mkdir { path, .. }
        | FileWork::Remove { path, .. }
        | FileWork::Chmod { path, .. }
        | FileWork::Watch { path, .. }
        | FileWork::Pack { path }
        | FileWork::Unpack { path }
        | FileWork::Search { path, .. }
        | FileWork::Describe { path, .. }
        | FileWork::Put { path, .. }
        | FileWork::Chown { path, .. } => vec![path],
        FileWork::Rename { from, to, .. } | FileWork::Copy { from, to, .. } => vec![from, to],
    }
}
