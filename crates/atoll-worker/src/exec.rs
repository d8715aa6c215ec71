//! Execution of commands in sandboxes, on the host's side.
//!
//! A command's state is in files, not in a connection: its record (`records`), its output
//! (`ID.log`) and its unread input (`ID.in`). A task supervises it until it ends, whether or not a
//! client is connected. After a server was killed, the next one adopts the command with the
//! descriptors that the keeper held.

mod adopt;
pub(crate) mod budget;
mod handle;
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
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_jail::cgroup::Leaf;
use atoll_model::{Error, ExecId, ExecInfo, ExecSpec, ExecStatus};
use rustix::pipe::PipeFlags;
use tokio::sync::watch;

use crate::error::internal;
use crate::journal::JournalState;
use crate::sync::lock;
pub(crate) use adopt::adopt;
pub use handle::{ExecHandle, StartedExec, TerminalAttachment};
use output::Progress;
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
        with(&mut lock(&self.record))
    }
}

/// A command's descriptors from the keeper: output streams, and the stdin file and pipe.
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

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_micros() as i64
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
