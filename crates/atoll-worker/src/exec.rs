//! Commands in a sandbox: the server's side.
//!
//! A command is a few files and not a connection: what was asked for and how it ended (`ID.json`), what
//! it wrote (`ID.log`), what it was given to read (`ID.in`). A task sees it to its end, whoever listens;
//! after a kill the next server starts the task again with what the keeper held.

mod input;
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod output;
pub(crate) mod record;
pub(crate) mod spare;
pub(crate) mod table;
mod task;
mod terminal;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_jail::cgroup::Leaf;
use atoll_jail::wire::{self, Part, ToInit};
use atoll_model::{
    Code, Error, ExecId, ExecInfo, ExecSpec, ExecStatus, Program, Stream, TerminalSize,
};
use rustix::pipe::PipeFlags;
use tokio::sync::watch;

use crate::error::internal;
use crate::journal::Noted;
use crate::sandbox::Sandbox;
use input::Input;
use log::Log;
use output::{Output, Progress, Reader};
use record::Record;
use spare::{NotStarted, Parts, Spare};
use table::Place;
use terminal::Terminal;

/// The kernel takes no more than 2 MiB of arguments and environment, and says so; what is far above
/// is not even sent.
const LONGEST: usize = 3 << 20;

/// How a command ended of which nothing else is known.
const KILLED: ExecStatus = ExecStatus {
    code: None,
    signal: Some(9),
    oom_killed: false,
    timed_out: false,
};

/// A command, as all who have to do with it see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: ExecId,
    pub(crate) pid: i32,
    pub(crate) spec: ExecSpec,
    pub(crate) started_at: i64,
    pub(crate) request: u32,
    /// Nothing if it ended before we were there.
    pub(crate) leaf: Option<Arc<Leaf>>,
    pub(crate) log: Arc<Log>,
    input: Option<Input>,
    terminal: Option<Terminal>,
    progress: watch::Sender<Progress>,
    record: Mutex<Record>,
    /// What of it stands in the sandbox's journal.
    pub(crate) noted: Noted,
}

impl Shared {
    pub(crate) fn info(&self) -> ExecInfo {
        let progress = *self.progress.borrow();
        ExecInfo {
            id: self.id.clone(),
            pid: self.pid,
            spec: self.spec.clone(),
            started_at: self.started_at,
            status: progress.status,
            ended_at: progress.ended_at,
        }
    }

    /// A command that has ended, as its record tells.
    fn with(record: Record, log: Log) -> Self {
        Self {
            id: record.id.clone(),
            pid: record.pid,
            spec: record.spec.clone(),
            started_at: record.started_at,
            request: record.request,
            leaf: None,
            log: Arc::new(log),
            input: None,
            terminal: None,
            progress: watch::Sender::new(Progress {
                status: Some(record.status.unwrap_or(KILLED)),
                ended_at: record.ended_at,
                closed: true,
            }),
            record: Mutex::new(record),
            noted: Noted::default(),
        }
    }

    /// It was killed, and nobody will tell how it ended.
    fn give_up(&self) {
        self.progress.send_if_modified(|progress| {
            let unknown = progress.status.is_none();
            if unknown {
                (progress.status, progress.ended_at) = (Some(KILLED), Some(now()));
            }
            unknown
        });
    }

    /// Nothing can happen to it any more.
    pub(crate) fn closed(&self) -> bool {
        self.progress.borrow().closed
    }

    pub(crate) fn ended(&self) -> bool {
        self.progress.borrow().status.is_some()
    }

    fn record<T>(&self, with: impl FnOnce(&mut Record) -> T) -> T {
        with(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running command, as its caller has it. Dropping it changes nothing for the command.
#[derive(Debug)]
pub struct Exec {
    /// Its pid inside the sandbox.
    pub pid: i32,
    /// What it writes to standard output.
    pub stdout: Output,
    /// What it writes to standard error.
    pub stderr: Output,
    /// How to wait for it, to write to it and to end it.
    pub control: Control,
}

/// How to wait for a command, to write to it and to end it, apart from its streams.
#[derive(Debug, Clone)]
pub struct Control {
    shared: Arc<Shared>,
    /// Nothing if it does not run.
    sandbox: Option<Arc<Sandbox>>,
}

/// A place at a command's terminal.
#[derive(Debug)]
pub struct Attached {
    /// What to send a fresh terminal first.
    pub replay: Vec<u8>,
    /// The size it must have.
    pub size: TerminalSize,
    /// What follows.
    pub output: Reader,
}

/// Everything a command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub status: ExecStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Something was left out because of the limit.
    pub truncated: bool,
}

pub(crate) async fn start(sandbox: Arc<Sandbox>, spec: ExecSpec) -> Result<Exec, Error> {
    let exec = to_wire(&spec, &sandbox.environment())?;
    let room = match sandbox.execs.place(&spec).await? {
        Place::Free(room) => room,
        Place::Begun(begun) => return Ok(Control::new(begun, Some(Arc::clone(&sandbox))).follow()),
    };
    let id = ExecId::random();
    let stem = sandbox.execs.directory().join(id.as_str());
    let Streams {
        inside,
        input,
        terminal,
    } = Streams::open(&sandbox, &spec, &stem)?;
    let before = sandbox.group.oom_kills();
    let start = Start {
        id: &id,
        stem: &stem,
        spec: &spec,
        inside,
        input: input.as_ref(),
        terminal: terminal.as_ref(),
    };
    let (record, mut parts) = match start.begin(&sandbox, exec).await {
        Ok(begun) => begun,
        Err(error) => {
            record::remove(&stem);
            return Err(error);
        }
    };
    let (pid, started_at) = (record.pid, record.started_at);
    let (input, stdin) = input.unzip();
    let (mut stderr, mut source) = (Some(parts.stderr), None);
    let terminal = match (terminal, spec.terminal) {
        (Some(held), Some(size)) => {
            let (terminal, poured) = held.begin(size)?;
            (parts.stdout, source, stderr) = (poured.0, Some(poured.1), None);
            Some(terminal)
        }
        _ => None,
    };
    let shared = Arc::new(Shared {
        id,
        pid,
        spec,
        started_at,
        request: parts.request,
        leaf: Some(Arc::new(parts.leaf)),
        log: Arc::new(Log::new(record.stem().to_owned()).patience(sandbox.patience)),
        input,
        terminal,
        progress: watch::Sender::default(),
        record: Mutex::new(record),
        noted: Noted::default(),
    });
    let control = Control::new(Arc::clone(&shared), Some(Arc::clone(&sandbox)));
    sandbox.execs.add(Arc::clone(&shared));
    drop(room);
    task::Task {
        sandbox: Arc::clone(&sandbox),
        shared,
        stdout: Some(parts.stdout),
        stderr,
        stdin,
        source,
        ended: parts.ended,
        before,
    }
    .spawn();
    // The next command finds a child waiting; this one has what it needs.
    if !sandbox.busy.is_crowded() {
        tokio::spawn(Sandbox::refill(sandbox));
    }
    Ok(control.follow())
}

/// What a command reads and writes beside the two pipes every child has.
struct Streams {
    /// The command's end of its input or terminal.
    inside: Option<OwnedFd>,
    /// What its input comes from, and our end of the pipe.
    input: Option<(Input, OwnedFd)>,
    /// Our end of its terminal, with the pipe its output goes through.
    terminal: Option<terminal::Ends>,
}

impl Streams {
    fn open(sandbox: &Sandbox, spec: &ExecSpec, stem: &Path) -> Result<Self, Error> {
        let mut streams = Self {
            inside: None,
            input: None,
            terminal: None,
        };
        if let Some(size) = spec.terminal {
            let (master, slave) = sandbox.open_terminal()?;
            atoll_jail::terminal::resize(&master, size.rows, size.columns)
                .map_err(|error| crate::error::jail(&error))?;
            let (reader, writer) = new_pipe()?;
            let ends = terminal::Ends {
                master,
                reader,
                writer,
            };
            (streams.inside, streams.terminal) = (Some(slave), Some(ends));
        } else if spec.input == atoll_model::Input::Open {
            let input = Input::new(stem.to_owned());
            let input = input.map_err(|error| internal("keep a command's input", &error))?;
            let (inside, outside) = spare::stream(sandbox.ids)?;
            (streams.inside, streams.input) = (Some(inside), Some((input, nonblocking(outside)?)));
        }
        Ok(streams)
    }
}

/// Takes back what was made for a command that did not begin.
fn give_up(sandbox: &Sandbox, request: u32, leaf: Leaf) {
    sandbox.leave(leaf.into());
    sandbox.release(request);
    sandbox.release(input_of(request));
    sandbox.forget(request);
}

/// A command about to begin.
struct Start<'a> {
    id: &'a ExecId,
    stem: &'a Path,
    spec: &'a ExecSpec,
    inside: Option<OwnedFd>,
    input: Option<&'a (Input, OwnedFd)>,
    terminal: Option<&'a terminal::Ends>,
}

impl Start<'_> {
    /// Starts the program in a child that waits for one, or in one made now.
    async fn begin(self, sandbox: &Sandbox, exec: wire::Exec) -> Result<(Record, Parts), Error> {
        let mut waiting = sandbox.take_spare();
        loop {
            let fresh = waiting.is_none();
            let mut spare = match waiting.take() {
                Some(spare) => spare,
                None => Spare::prepare(sandbox).await?,
            };
            self.hold(sandbox, &spare.exec).await?;
            let inside = self.inside.as_ref().map(AsFd::as_fd);
            spare.tell(exec.clone(), inside).await;
            // Written down while the program starts: an exec without a record is nobody's, and nobody is
            // told of it before there is one.
            let request = spare.request();
            let early = spare.pid().map(|pid| self.record(pid, &spare.exec));
            match spare.started(sandbox).await {
                Ok((pid, parts)) => {
                    let record = early.unwrap_or_else(|| self.record(pid, &parts));
                    // What cannot be written down must not run either.
                    if record.is_err() {
                        let _ = parts.leaf.kill();
                    }
                    return record.map(|record| (record, parts));
                }
                Err(Ok(NotStarted::Gone(leaf))) => {
                    give_up(sandbox, request, leaf);
                    record::remove(self.stem);
                    if fresh {
                        let message = "the command was killed inside the sandbox before it began";
                        return Err(Error::new(Code::Conflict, message).remedy("try again"));
                    }
                }
                Err(Ok(NotStarted::Refused(leaf, part, errno))) => {
                    give_up(sandbox, request, leaf);
                    return Err(refused(part, errno, self.spec));
                }
                Err(Ok(NotStarted::Silent(leaf))) => {
                    // It must not begin later, when nobody knows of it any more.
                    let _ = leaf.kill();
                    give_up(sandbox, request, leaf);
                    return Err(sandbox.silent());
                }
                Err(Err(error)) => return Err(error),
            }
        }
    }

    /// Has the keeper hold what is this command's, before it begins: what it does not hold would be lost with us.
    async fn hold(&self, sandbox: &Sandbox, parts: &Parts) -> Result<(), Error> {
        let request = parts.request;
        if let Some((queue, pipe)) = self.input {
            let file = queue.file();
            let both = [file.as_fd(), pipe.as_fd()];
            sandbox.hold(input_of(request), &both).await?;
        }
        if let Some(ends) = self.terminal {
            return sandbox.hold(request, &ends.all()).await;
        }
        if parts.held {
            return Ok(());
        }
        parts.hold(sandbox).await
    }

    /// Writes down that it begins.
    fn record(&self, pid: i32, parts: &Parts) -> Result<Record, Error> {
        let (stem, id) = (self.stem.to_owned(), self.id.clone());
        let record = Record::new(stem, id, pid, parts, self.spec, now());
        record.write()?;
        Ok(record)
    }
}

/// What the keeper held of a command: its two streams, and the queue and pipe of its input.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) streams: Vec<OwnedFd>,
    pub(crate) input: Vec<OwnedFd>,
}

/// What the keeper calls the input of a command, which it gives up before the rest: a pipe is at its end
/// only when nobody holds the other any more.
pub(crate) fn input_of(request: u32) -> u32 {
    request | 1 << 31
}

/// Takes a command over that another server began. If `ended` is closed without a word, it was killed
/// with its sandbox.
pub(crate) fn adopt(
    sandbox: &Arc<Sandbox>,
    record: Record,
    held: Held,
    ended: tokio::sync::oneshot::Receiver<i32>,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| internal("take a command over", &error);
    let stem = record.stem().to_owned();
    let log = Log::open(stem.clone()).map_err(failed)?;
    let log = log.patience(sandbox.patience);
    let mut streams = held.streams.into_iter();
    let mut next = || streams.next();
    let (first, second, third) = (next(), next(), next());
    let (stdout, stderr, terminal) = match (first, second, third, record.spec.terminal) {
        (Some(master), Some(reader), Some(writer), Some(size)) => {
            let ends = terminal::Ends {
                master,
                reader,
                writer,
            };
            let (terminal, (reader, source)) = ends.begin(size)?;
            for (position, size) in &record.resizes {
                terminal
                    .resized_at(&log, *position, *size)
                    .map_err(failed)?;
            }
            (Some(reader), None, Some((terminal, source)))
        }
        (first, second, ..) => {
            let watched = |fd: Option<OwnedFd>| fd.map(spare::receiver).transpose();
            (watched(first)?, watched(second)?, None)
        }
    };
    let (terminal, source) = terminal.unzip();
    let mut input = held.input.into_iter();
    let (input, stdin) = match (input.next(), input.next()) {
        (Some(queue), Some(pipe)) => (
            Some(Input::open(stem, queue).map_err(failed)?),
            Some(nonblocking(pipe)?),
        ),
        _ => (None, None),
    };
    let status = record.status;
    let leaf = sandbox.group.named_leaf(&record.leaf, status.is_some());
    let shared = Arc::new(Shared {
        leaf: Some(Arc::new(leaf)),
        input,
        terminal,
        progress: watch::Sender::new(Progress {
            status,
            ended_at: record.ended_at,
            closed: false,
        }),
        ..Shared::with(record, log)
    });
    sandbox.execs.add(Arc::clone(&shared));
    task::Task {
        sandbox: Arc::clone(sandbox),
        shared,
        stdout,
        stderr,
        stdin,
        source,
        ended,
        before: sandbox.group.oom_kills(),
    }
    .spawn();
    Ok(())
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_micros() as i64
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, sandbox: Option<Arc<Sandbox>>) -> Self {
        Self { shared, sandbox }
    }

    /// Its id.
    pub fn id(&self) -> &ExecId {
        &self.shared.id
    }

    /// What it is and how it ended.
    pub fn info(&self) -> ExecInfo {
        self.shared.info()
    }

    /// Everything it wrote and will write, as who started it had it.
    pub fn follow(self) -> Exec {
        let output = |stream| Output::new(self.output(0), stream);
        Exec {
            pid: self.shared.pid,
            stdout: output(Stream::Stdout),
            stderr: output(Stream::Stderr),
            control: self,
        }
    }

    /// What it wrote and will write, from a position on.
    pub fn output(&self, after: u64) -> Reader {
        let progress = self.shared.progress.subscribe();
        Reader::new(Arc::clone(&self.shared.log), progress, after)
    }

    /// The position from which its output is still whole, and the end of it so far.
    pub fn kept(&self) -> (u64, u64) {
        self.shared.log.bounds()
    }

    /// Nobody saw how it ended: its sandbox was gone before the end was written down.
    pub fn is_lost(&self) -> bool {
        self.shared.closed() && self.shared.record(|record| record.status.is_none())
    }

    /// Waits for its end.
    pub async fn wait(&self) -> ExecStatus {
        let mut progress = self.shared.progress.subscribe();
        match progress
            .wait_for(|progress| progress.status.is_some())
            .await
        {
            Ok(progress) => progress.status.unwrap_or_default(),
            Err(_) => KILLED,
        }
    }

    fn terminal(&self) -> Result<&Terminal, Error> {
        self.shared.terminal.as_ref().ok_or_else(|| {
            Error::new(Code::Conflict, "the command has no terminal, or has ended")
                .remedy("start it with a terminal")
        })
    }

    /// Joins its terminal: what a fresh terminal of this size must be sent to show the same, and what its
    /// program writes from then on.
    pub fn attach(&self) -> Result<Attached, Error> {
        let (replay, position, size) = self.terminal()?.replay(&self.shared.log)?;
        Ok(Attached {
            replay,
            size,
            output: self.output(position),
        })
    }

    /// Gives its terminal another size; the last one to ask wins.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let position = self.terminal()?.resize(&self.shared.log, size)?;
        self.shared.record(|record| record.resize(position, size))
    }

    fn stdin(&self) -> Result<&Input, Error> {
        self.shared.input.as_ref().ok_or_else(|| {
            Error::new(
                Code::StdinClosed,
                "the command's standard input is /dev/null",
            )
            .remedy("start it with an open standard input")
        })
    }

    /// Writes to its standard input what belongs at an offset; how far input has come then, which may
    /// be less than was offered.
    pub fn write_input(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        self.stdin()?.write(offset, bytes)
    }

    /// How many bytes of standard input were taken so far; nothing of a terminal.
    pub fn input_taken(&self) -> Option<u64> {
        self.shared.input.as_ref().map(Input::taken)
    }

    /// Writes all of it to its standard input or terminal, waiting for the command to read.
    pub async fn write_all(&self, bytes: &[u8]) -> Result<(), Error> {
        if let Some(terminal) = &self.shared.terminal {
            return terminal.write(bytes).await;
        }
        self.stdin()?.write_all(bytes).await
    }

    /// Ends its standard input.
    pub fn close_input(&self) -> Result<(), Error> {
        self.stdin()?.close()
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        let request = self.shared.request;
        let message = ToInit::Signal { request, signal };
        match &self.sandbox {
            Some(sandbox) => sandbox.say(&message, &[]).await,
            None => Ok(()),
        }
    }

    /// Ends everything it started.
    pub fn kill(&self) -> Result<(), Error> {
        match &self.shared.leaf {
            Some(leaf) => leaf
                .kill()
                .map_err(|error| internal("kill a command", &error)),
            None => Ok(()),
        }
    }
}

impl Exec {
    /// Waits for its end.
    pub async fn wait(&self) -> ExecStatus {
        self.control.wait().await
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.control.signal(signal).await
    }

    /// Ends everything it started.
    pub fn kill(&self) -> Result<(), Error> {
        self.control.kill()
    }

    /// Writes all input, reads all output up to a limit for each stream, and waits for the end.
    pub async fn finish(mut self, input: &[u8], limit: usize) -> Result<Finished, Error> {
        let write = async {
            if self.control.shared.input.is_some() {
                // A command need not read its input. Of a request that came again, some may be taken already.
                let taken = self.control.input_taken().unwrap_or_default();
                let rest = usize::try_from(taken)
                    .ok()
                    .and_then(|taken| input.get(taken..));
                let _ = self.control.write_all(rest.unwrap_or_default()).await;
                let _ = self.control.close_input();
            }
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ((), first, second) = tokio::join!(
            write,
            self.stdout.collect(&mut out, limit),
            self.stderr.collect(&mut err, limit)
        );
        let truncated = first? | second?;
        let status = self.control.wait().await;
        Ok(Finished {
            status,
            stdout: out,
            stderr: err,
            truncated,
        })
    }
}

/// The reading end, then the writing end.
pub(crate) fn new_pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| internal("make a pipe", &std::io::Error::from(error)))
}

pub(crate) fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, Error> {
    rustix::io::ioctl_fionbio(&fd, true)
        .map_err(|error| internal("change a pipe", &std::io::Error::from(error)))?;
    Ok(fd)
}

fn to_wire(spec: &ExecSpec, environment: &[(Vec<u8>, Vec<u8>)]) -> Result<wire::Exec, Error> {
    let argv = match &spec.program {
        Program::Argv(argv) => argv.clone(),
        Program::Shell(line) => vec![
            b"/bin/sh".to_vec(),
            b"-c".to_vec(),
            line.clone().into_bytes(),
        ],
    };
    if argv.first().is_none_or(Vec::is_empty) {
        return Err(Error::invalid(
            "command",
            "the command is empty",
            "name a program to run",
        ));
    }
    if argv.iter().any(|word| word.contains(&0)) {
        return Err(nul("command"));
    }
    for (name, value) in &spec.environment {
        check_variable(name, value)?;
    }
    if spec
        .directory
        .as_ref()
        .is_some_and(|directory| directory.contains(&0))
    {
        return Err(nul("cwd"));
    }
    // What a client of ours is, unless somebody knows better.
    let terminal: Vec<_> = spec
        .terminal
        .map(|_| (b"TERM".to_vec(), b"xterm-256color".to_vec()))
        .into_iter()
        .collect();
    let words = argv.iter().map(Vec::len).sum::<usize>();
    let variables = environment
        .iter()
        .chain(&spec.environment)
        .map(|(name, value)| name.len() + value.len());
    if words + variables.sum::<usize>() > LONGEST {
        return Err(too_long());
    }
    Ok(wire::Exec {
        argv,
        environment: [&terminal[..], environment, &spec.environment].concat(),
        user: spec.user.clone().unwrap_or_default(),
        directory: spec.directory.clone().unwrap_or_default(),
        terminal: spec.terminal.is_some(),
    })
}

fn nul(field: &str) -> Error {
    Error::invalid(field, format!("{field} contains a NUL byte"), "remove it")
}

/// Refuses what no environment can hold.
pub(crate) fn check_variable(name: &[u8], value: &[u8]) -> Result<(), Error> {
    if name.is_empty() || name.contains(&b'=') {
        let name = String::from_utf8_lossy(name);
        let message = format!("{name:?} is not a name for a variable");
        return Err(Error::invalid(
            "env",
            message,
            "names are not empty and contain no =",
        ));
    }
    if name.contains(&0) || value.contains(&0) {
        return Err(nul("env"));
    }
    Ok(())
}

fn too_long() -> Error {
    Error::invalid(
        "command",
        "the command's arguments and environment are too long for the kernel",
        "pass what is long through standard input or a file",
    )
}

fn refused(part: Part, errno: i32, spec: &ExecSpec) -> Error {
    let cause = std::io::Error::from_raw_os_error(errno);
    let reason = rustix::io::Errno::from_raw_os_error(errno);
    match part {
        Part::User => {
            let user = spec.user.clone().unwrap_or_default();
            Error::new(
                Code::UnknownUser,
                format!("user {user:?} is not known in the sandbox"),
            )
            .remedy("name a user of the sandbox's /etc/passwd, a number, or uid:gid")
            .detail("user", user)
        }
        Part::Directory => {
            let directory =
                String::from_utf8_lossy(spec.directory.as_deref().unwrap_or_default()).into_owned();
            Error::new(
                Code::CwdNotFound,
                format!("cwd {directory:?} cannot be entered: {cause}"),
            )
            .remedy("name a directory of the sandbox that the user may enter")
            .detail("cwd", directory)
        }
        Part::Program if reason == rustix::io::Errno::TOOBIG => too_long(),
        Part::Program => {
            let program = match &spec.program {
                Program::Argv(argv) => {
                    String::from_utf8_lossy(argv.first().map_or(b"", |p| p)).into_owned()
                }
                Program::Shell(_) => "/bin/sh".to_owned(),
            };
            let missing = reason == rustix::io::Errno::NOENT;
            let message = if missing {
                format!("{program:?} was not found in the sandbox")
            } else {
                format!("{program:?} cannot be run: {cause}")
            };
            Error::new(Code::ProgramNotFound, message)
                .detail("program", program)
                .detail("exitCode", if missing { "127" } else { "126" })
        }
        Part::Setup if reason == rustix::io::Errno::AGAIN => Error::new(
            Code::QuotaExceeded,
            "the sandbox has no room for another process",
        )
        .remedy("end some of its processes, or give it more pids"),
        Part::Setup => internal("the command could not be set up", &cause),
    }
}
