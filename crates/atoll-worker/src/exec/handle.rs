//! The public handle of a command: wait for it, write to it, read its output, attach to its terminal
//! and kill it.
//!
//! A handle does not own the command: dropping it changes nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_jail::wire::ToInit;
use atoll_model::runtime::ExecResult;
use atoll_model::{Code, Error, ExecId, ExecInfo, ExecStatus, Stream, TerminalSize};

use super::output::{OutputReader, StreamReader};
use super::stdin::StdinQueue;
use super::terminal::Terminal;
use super::{ExecState, KILLED, SIGKILL};
use crate::error::internal;
use crate::sandbox::Sandbox;

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
    pub handle: ExecHandle,
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
            handle: self,
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
        self.handle.wait().await
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.handle.signal(signal).await
    }

    /// Kills the command and all its descendants.
    pub fn kill(&self) -> Result<(), Error> {
        self.handle.kill()
    }

    /// Writes all input, closes it, collects each output stream up to `limit` bytes and waits for
    /// the end.
    pub async fn finish(mut self, input: &[u8], limit: usize) -> Result<ExecResult, Error> {
        let write = async {
            if self.handle.state.input.is_some() {
                // A command may exit without reading its input. If this is a repeated request, a
                // part may have been accepted already.
                let taken = self.handle.stdin_offset().unwrap_or_default();
                let rest = usize::try_from(taken)
                    .ok()
                    .and_then(|taken| input.get(taken..));
                let _ = self.handle.write_stdin(rest.unwrap_or_default()).await;
                let _ = self.handle.close_stdin();
            }
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ((), first, second) = tokio::join!(
            write,
            self.stdout.collect(&mut out, limit),
            self.stderr.collect(&mut err, limit)
        );
        let truncated = first? | second?;
        let status = self.handle.wait().await;
        Ok(ExecResult {
            status,
            stdout: out,
            stderr: err,
            truncated,
        })
    }
}
