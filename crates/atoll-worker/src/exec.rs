//! Execution of commands in sandboxes, on the host's side.
//!
//! A command's state is in files, not in a connection: its record (`records`), its output
//! (`ID.log`) and its unread input (`ID.in`). A task supervises it until it ends, whether or not a
//! client is connected. After a server was killed, the next one adopts the command with the
//! descriptors that the keeper held.

pub(crate) mod budget;
pub(crate) mod log_lines;
pub(crate) mod output;
pub(crate) mod output_log;
pub(crate) mod record;
pub(crate) mod record_log;
pub(crate) mod start;
pub(crate) mod stdin;
pub(crate) mod table;
mod task;
mod terminal;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_jail::cgroup::Leaf;
use atoll_jail::wire::ToInit;
use atoll_model::{Code, Error, ExecId, ExecInfo, ExecSpec, ExecStatus, Stream, TerminalSize};
use rustix::pipe::PipeFlags;
use tokio::sync::watch;

use crate::error::internal;
use crate::journal::JournalState;
use crate::sandbox::Sandbox;
use output::{OutputReader, Progress, StreamReader};
use output_log::OutputLog;
use record::ExecRecord;
use stdin::StdinQueue;
use terminal::Terminal;

/// Status of a command whose end was not recorded.
const KILLED: ExecStatus = ExecStatus {
    code: None,
    signal: Some(9),
    oom_killed: false,
    timed_out: false,
};

const SIGKILL: i32 = 9;

/// A command, shared by its task, its readers and the exec table.
#[derive(Debug)]
pub(crate) struct ExecState {
    pub(crate) id: ExecId,
    pub(crate) pid: i32,
    pub(crate) spec: Arc<ExecSpec>,
    pub(crate) started_at: i64,
    pub(crate) request: u32,
    /// `None` if the command ended under an earlier server.
    pub(crate) leaf: Option<Arc<Leaf>>,
    pub(crate) log: Arc<OutputLog>,
    input: Option<StdinQueue>,
    terminal: Option<Terminal>,
    progress: watch::Sender<Progress>,
    record: Mutex<ExecRecord>,
    /// Which of its states the sandbox's journal has.
    pub(crate) journaled: JournalState,
    /// A client killed it, so that a SIGKILL is not taken for the OOM killer's.
    killed: AtomicBool,
}

impl ExecState {
    /// Its current progress.
    pub(crate) fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    pub(crate) fn info(&self) -> ExecInfo {
        let progress = self.progress();
        ExecInfo {
            id: self.id.clone(),
            pid: self.pid,
            spec: Arc::clone(&self.spec),
            started_at: self.started_at,
            status: progress.status,
            ended_at: progress.ended_at,
        }
    }

    /// A command that has ended, from its record.
    fn from_record(record: ExecRecord, log: OutputLog) -> Self {
        Self {
            id: record.id.clone(),
            pid: record.pid,
            spec: Arc::clone(&record.spec),
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
            journaled: JournalState::default(),
            killed: AtomicBool::default(),
        }
    }

    /// Removes the stdin queue and its file.
    fn discard_stdin(&self) {
        if let Some(input) = &self.input {
            input.discard();
        }
    }

    /// Records SIGKILL as its end if no end is known; for a command whose processes are gone.
    fn assume_killed(&self) {
        self.progress.send_if_modified(|progress| {
            let unknown = progress.status.is_none();
            if unknown {
                (progress.status, progress.ended_at) = (Some(KILLED), Some(now()));
            }
            unknown
        });
    }

    /// Whether it has ended and all its output was read from its pipes.
    pub(crate) fn is_closed(&self) -> bool {
        self.progress.borrow().closed
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.progress.borrow().status.is_some()
    }

    fn with_record<T>(&self, with: impl FnOnce(&mut ExecRecord) -> T) -> T {
        with(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A started command with readers of its output. Dropping it does not affect the command.
#[derive(Debug)]
pub struct StartedExec {
    /// Pid in the sandbox's PID namespace.
    pub pid: i32,
    /// Reader of standard output, or of the terminal.
    pub stdout: StreamReader,
    /// Reader of standard error; empty with a terminal.
    pub stderr: StreamReader,
    /// Handle to wait for it, write to it and kill it.
    pub control: ExecHandle,
}

/// A command by reference: to wait for it, write to it, read its output and kill it.
#[derive(Debug, Clone)]
pub struct ExecHandle {
    state: Arc<ExecState>,
    /// `None` if the command has ended under an earlier server.
    sandbox: Option<Arc<Sandbox>>,
}

/// What a client needs to attach to a command's terminal.
#[derive(Debug)]
pub struct TerminalAttachment {
    /// Bytes that bring a new terminal to the current screen.
    pub replay: Vec<u8>,
    /// Size that the new terminal must have.
    pub size: TerminalSize,
    /// Output that follows the replay.
    pub output: OutputReader,
}

/// Status and collected output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    /// Exit status.
    pub status: ExecStatus,
    /// Standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// Standard error, up to the limit.
    pub stderr: Vec<u8>,
    /// Output is missing, because of the limit or because it was dropped before it was read.
    pub truncated: bool,
}

/// What the keeper inherited of a command: its two streams, and the queue and pipe of its input.
#[derive(Debug, Default)]
pub(crate) struct InheritedFds {
    pub(crate) streams: Vec<OwnedFd>,
    pub(crate) input: Vec<OwnedFd>,
}

/// The keeper's request number for a command's stdin, which is released before the rest: a pipe
/// reaches end of file only when its last writing end is closed.
pub(crate) fn stdin_request_id(request: u32) -> u32 {
    request | 1 << 31
}

/// Adopts a command that an earlier server started. If `ended` is closed without a status, the
/// command was killed with its sandbox.
pub(crate) fn adopt(
    sandbox: &Arc<Sandbox>,
    record: ExecRecord,
    inherited: InheritedFds,
    ended: tokio::sync::oneshot::Receiver<i32>,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| internal("adopt a command", &error);
    let stem = record.stem();
    let log = OutputLog::open(stem.clone()).map_err(failed)?;
    let log = log
        .with_reader_timeout(sandbox.response_timeout)
        .with_budget(sandbox.execs.budget())
        .with_reader_grace();
    let mut streams = inherited.streams.into_iter();
    let mut next = || streams.next();
    let (first, second, third) = (next(), next(), next());
    let (stdout, stderr, terminal) = match (first, second, third, record.spec.terminal) {
        (Some(master), Some(reader), Some(writer), Some(size)) => {
            let ends = terminal::TerminalFds {
                master,
                reader,
                writer,
            };
            let (terminal, (reader, pump)) = ends.open(size)?;
            for (position, size) in &record.resizes {
                terminal
                    .replay_resize(&log, *position, *size)
                    .map_err(failed)?;
            }
            (Some(reader), None, Some((terminal, pump)))
        }
        (first, second, ..) => {
            let watch = |fd: Option<OwnedFd>| fd.map(start::watch_readable).transpose();
            (watch(first)?, watch(second)?, None)
        }
    };
    let (terminal, terminal_pump) = terminal.unzip();
    let mut input = inherited.input.into_iter();
    let (input, stdin) = match (input.next(), input.next()) {
        (Some(queue), Some(pipe)) => (
            Some(StdinQueue::open(stem, queue).map_err(failed)?),
            Some(set_nonblocking(pipe)?),
        ),
        _ => (None, None),
    };
    let status = record.status;
    let leaf = sandbox.group.named_leaf(&record.leaf, status.is_some());
    let shared = Arc::new(ExecState {
        leaf: Some(Arc::new(leaf)),
        input,
        terminal,
        progress: watch::Sender::new(Progress {
            status,
            ended_at: record.ended_at,
            closed: false,
        }),
        ..ExecState::from_record(record, log)
    });
    sandbox.execs.add(Arc::clone(&shared));
    task::ExecTask {
        sandbox: Arc::clone(sandbox),
        shared,
        stdout,
        stderr,
        stdin,
        terminal_pump,
        ended,
        oom_kills_at_start: sandbox.group.oom_kills(),
    }
    .spawn();
    Ok(())
}

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_micros() as i64
}

impl ExecHandle {
    pub(crate) fn new(state: Arc<ExecState>, sandbox: Option<Arc<Sandbox>>) -> Self {
        Self { state, sandbox }
    }

    /// The command's id.
    pub fn id(&self) -> &ExecId {
        &self.state.id
    }

    /// Details of the command, with its status if it has ended.
    pub fn info(&self) -> ExecInfo {
        self.state.info()
    }

    /// All output from the beginning, as separate streams.
    pub fn into_streams(self) -> StartedExec {
        let output = |stream| StreamReader::new(self.output(0), stream);
        StartedExec {
            pid: self.state.pid,
            stdout: output(Stream::Stdout),
            stderr: output(Stream::Stderr),
            control: self,
        }
    }

    /// Reader of both streams from a byte offset.
    pub fn output(&self, after: u64) -> OutputReader {
        let progress = self.state.progress.subscribe();
        OutputReader::new(Arc::clone(&self.state.log), progress, after)
    }

    /// Offsets of the first retained byte and of the end of its output so far.
    pub fn output_range(&self) -> (u64, u64) {
        self.state.log.bounds()
    }

    /// Whether its end was not recorded: its sandbox was gone before the status was written.
    pub fn is_status_unknown(&self) -> bool {
        self.state.is_closed() && self.state.with_record(|record| record.status.is_none())
    }

    /// Waits until it has ended.
    pub async fn wait(&self) -> ExecStatus {
        let mut progress = self.state.progress.subscribe();
        match progress
            .wait_for(|progress| progress.status.is_some())
            .await
        {
            Ok(progress) => progress.status.unwrap_or_default(),
            Err(_) => KILLED,
        }
    }

    fn terminal(&self) -> Result<&Terminal, Error> {
        self.state.terminal.as_ref().ok_or_else(|| {
            Error::new(Code::Conflict, "the command has no terminal, or has ended")
                .remedy("start it with a terminal")
        })
    }

    /// Attaches to its terminal.
    pub fn attach(&self) -> Result<TerminalAttachment, Error> {
        let (replay, position, size) = self.terminal()?.replay(&self.state.log)?;
        Ok(TerminalAttachment {
            replay,
            size,
            output: self.output(position),
        })
    }

    /// Sets the size of its terminal.
    pub fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        let position = self.terminal()?.resize(&self.state.log, size)?;
        self.state
            .with_record(|record| record.write_resize(position, size))
    }

    fn stdin(&self) -> Result<&StdinQueue, Error> {
        self.state.input.as_ref().ok_or_else(|| {
            Error::new(
                Code::StdinClosed,
                "the command's standard input is /dev/null",
            )
            .remedy("start it with an open standard input")
        })
    }

    /// Writes to standard input at an offset and returns the offset after the accepted bytes, which
    /// may be fewer than offered. Bytes before the current end are skipped, so a retry is safe.
    pub fn write_stdin_at(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        self.stdin()?.write(offset, bytes)
    }

    /// Bytes of standard input accepted so far; `None` for a terminal or `/dev/null`.
    pub fn stdin_offset(&self) -> Option<u64> {
        self.state.input.as_ref().map(StdinQueue::accepted_bytes)
    }

    /// Writes all bytes to standard input or the terminal, waiting while the queue is full.
    pub async fn write_stdin(&self, bytes: &[u8]) -> Result<(), Error> {
        if let Some(terminal) = &self.state.terminal {
            return terminal.write(bytes).await;
        }
        self.stdin()?.write_all(bytes).await
    }

    /// Closes standard input after the bytes accepted so far.
    pub fn close_stdin(&self) -> Result<(), Error> {
        self.stdin()?.close()
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        let request = self.state.request;
        let message = ToInit::Signal { request, signal };
        if signal == SIGKILL {
            self.state.killed.store(true, Ordering::Relaxed);
        }
        match &self.sandbox {
            Some(sandbox) => sandbox.send(&message, &[]).await,
            None => Ok(()),
        }
    }

    /// Kills the command and all its descendants.
    pub fn kill(&self) -> Result<(), Error> {
        self.state.killed.store(true, Ordering::Relaxed);
        match &self.state.leaf {
            Some(leaf) => leaf
                .kill()
                .map_err(|error| internal("kill a command", &error)),
            None => Ok(()),
        }
    }
}

impl StartedExec {
    /// Waits until it has ended.
    pub async fn wait(&self) -> ExecStatus {
        self.control.wait().await
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.control.signal(signal).await
    }

    /// Kills the command and all its descendants.
    pub fn kill(&self) -> Result<(), Error> {
        self.control.kill()
    }

    /// Writes all input, closes it, collects each output stream up to `limit` bytes and waits for
    /// the end.
    pub async fn finish(mut self, input: &[u8], limit: usize) -> Result<ExecResult, Error> {
        let write = async {
            if self.control.state.input.is_some() {
                // A command may exit without reading its input. If this is a repeated request, a
                // part may have been accepted already.
                let taken = self.control.stdin_offset().unwrap_or_default();
                let rest = usize::try_from(taken)
                    .ok()
                    .and_then(|taken| input.get(taken..));
                let _ = self.control.write_stdin(rest.unwrap_or_default()).await;
                let _ = self.control.close_stdin();
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
        Ok(ExecResult {
            status,
            stdout: out,
            stderr: err,
            truncated,
        })
    }
}

/// Creates a pipe: reading end, writing end.
pub(crate) fn create_pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| internal("create a pipe", &std::io::Error::from(error)))
}

pub(crate) fn set_nonblocking(fd: OwnedFd) -> Result<OwnedFd, Error> {
    rustix::io::ioctl_fionbio(&fd, true)
        .map_err(|error| internal("set a pipe non-blocking", &std::io::Error::from(error)))?;
    Ok(fd)
}
