//! Commands and terminals of a runtime.

use std::collections::BTreeMap;
use std::fmt::Debug;

use async_trait::async_trait;

use crate::{
    DiskUsage, Error, ExecId, ExecInfo, ExecSpec, ExecStatus, OutputChunk, Sample, SandboxId,
    TerminalSize,
};

/// Commands and terminals of the sandboxes of a runtime.
#[async_trait]
pub trait Execs: Debug + Send + Sync {
    /// Starts a command. A repeated idempotency key returns the command of the first call.
    async fn exec(&self, id: &SandboxId, spec: ExecSpec) -> Result<Box<dyn ExecHandle>, Error>;

    /// The commands of a sandbox, newest first.
    async fn execs(&self, id: &SandboxId) -> Result<Vec<ExecInfo>, Error>;

    /// A running or ended command, by its id.
    async fn find_exec(&self, id: &SandboxId, exec: &ExecId) -> Result<Box<dyn ExecHandle>, Error>;

    /// A command by its pid in the sandbox.
    async fn find_exec_by_pid(
        &self,
        id: &SandboxId,
        pid: i32,
    ) -> Result<Box<dyn ExecHandle>, Error>;

    /// The newest command with a tag.
    async fn find_exec_by_tag(
        &self,
        id: &SandboxId,
        tag: &str,
    ) -> Result<Box<dyn ExecHandle>, Error>;

    /// Environment variables of every command of a running sandbox: the template's and its own.
    async fn variables(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, Error>;

    /// Resource usage of a sandbox between two times, in microseconds since 1970, oldest first.
    async fn samples(&self, id: &SandboxId, from: i64, to: i64) -> Result<Vec<Sample>, Error>;

    /// Disk space that a sandbox uses, and its limit.
    async fn disk_usage(&self, id: &SandboxId) -> Result<DiskUsage, Error>;

    /// Follows the combined log of a sandbox from a cursor, or from the beginning.
    async fn logs(
        &self,
        id: &SandboxId,
        cursor: Option<&str>,
    ) -> Result<Box<dyn LogFollower>, Error>;
}

/// A command by reference. Dropping the handle does not affect the command.
#[async_trait]
pub trait ExecHandle: Debug + Send + Sync {
    /// The id of the command.
    fn id(&self) -> &ExecId;

    /// Details of the command, with its status if it has ended.
    async fn info(&self) -> Result<ExecInfo, Error>;

    /// Both output streams from a byte offset.
    async fn output(&self, after: u64) -> Result<Box<dyn OutputStream>, Error>;

    /// Offsets of the first retained byte and of the end of the output so far.
    async fn output_range(&self) -> Result<(u64, u64), Error>;

    /// Waits until the command has ended.
    async fn wait(&self) -> Result<ExecStatus, Error>;

    /// Writes all input, closes it, collects each output stream up to `limit` bytes and waits for the end.
    async fn finish(self: Box<Self>, input: &[u8], limit: usize) -> Result<ExecResult, Error>;

    /// Attaches to the terminal of the command.
    async fn attach(&self) -> Result<TerminalAttachment, Error>;

    /// Sets the size of the terminal.
    async fn resize(&self, size: TerminalSize) -> Result<(), Error>;

    /// Writes to standard input at an offset and returns the offset after the accepted bytes, which may be fewer than
    /// offered. Bytes before the current end are skipped, so a retry is safe.
    async fn write_stdin_at(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error>;

    /// Writes all bytes to standard input or the terminal, waiting while the queue is full.
    async fn write_stdin(&self, bytes: &[u8]) -> Result<(), Error>;

    /// Closes standard input after the bytes accepted so far.
    async fn close_stdin(&self) -> Result<(), Error>;

    /// Sends a signal to the process group of the command.
    async fn signal(&self, signal: i32) -> Result<(), Error>;

    /// Kills the command and all its descendants.
    async fn kill(&self) -> Result<(), Error>;
}

/// Output of a command from an offset on.
#[async_trait]
pub trait OutputStream: Debug + Send {
    /// Waits for the next chunk; `None` at the end of the output. Cancel-safe.
    async fn next(&mut self) -> Result<Option<OutputChunk>, Error>;

    /// Offset of the next byte.
    fn position(&self) -> u64;
}

/// Current screen of a terminal, and the output that follows it.
#[derive(Debug)]
pub struct TerminalAttachment {
    /// Bytes that bring a new terminal to the current screen.
    pub replay: Vec<u8>,
    /// Size that the new terminal must have.
    pub size: TerminalSize,
    /// Output that follows the replay.
    pub output: Box<dyn OutputStream>,
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

/// The combined log of a sandbox, line by line.
#[async_trait]
pub trait LogFollower: Debug + Send {
    /// Returns up to `max` lines that are available now, without waiting. Fewer lines mean that there are no more.
    async fn available(&mut self, max: usize) -> Result<Vec<LogLine>, Error>;

    /// Waits for the next line; `None` at the end of the log. Cancel-safe.
    async fn next(&mut self) -> Result<Option<LogLine>, Error>;

    /// Position to continue from.
    fn cursor(&self) -> String;
}

/// A line of a command's output, or a gap in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The command that wrote it.
    pub exec: ExecId,
    /// Start of that command, in microseconds since 1970.
    pub started_at: i64,
    /// A line including its newline, if that was written; or a gap.
    pub content: OutputChunk,
}
