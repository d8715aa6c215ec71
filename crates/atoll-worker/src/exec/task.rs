//! The supervising task of a command: pumps its output into the log and its input into the pipe,
//! enforces its deadline and records its exit status. It runs whether or not a client is connected.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_model::{ExecStatus, SandboxState, Stream};
use rustix::pipe::SpliceFlags;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use super::ExecState;
use super::output_log::{Backpressure, OutputLog, SpliceResult};
use super::record::Clock;
use crate::sandbox::Sandbox;

#[cfg(test)]
mod tests;

/// Bytes of one splice, so that other tasks get their turn.
const BATCH_BYTES: usize = 1 << 20;
/// Interval of retries after an error of the log (disk full) or while out of descriptors.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Wait for a terminal's last output after its program has exited.
const TERMINAL_DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// The reading end of a pipe, registered with the reactor.
pub(super) type Pipe = AsyncFd<OwnedFd>;

/// State of a command's task.
pub(super) struct ExecTask {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) exec: Arc<ExecState>,
    pub(super) stdout: Option<Pipe>,
    pub(super) stderr: Option<Pipe>,
    pub(super) stdin: Option<OwnedFd>,
    /// Fills the output pipe from the terminal, if it has one.
    pub(super) terminal_pump: Option<TerminalPump>,
    /// Receives the raw wait status; closed without one if the sandbox ended first.
    pub(super) ended: oneshot::Receiver<i32>,
    /// The sandbox's `oom_kill` counter when the command started.
    pub(super) oom_kills_at_start: u64,
}

/// One output stream on its way into the log.
struct OutputPump {
    stream: Stream,
    pipe: Option<Pipe>,
    /// Fills the pipe of a terminal. Output can be spliced from a terminal into a pipe and from
    /// there into a file, but not directly; so it is never only in memory.
    terminal_pump: Option<TerminalPump>,
    /// This is a terminal's pipe. The keeper holds its writing end open, so end of file is detected
    /// on the terminal.
    terminal: bool,
    /// A killed server may have left output in the pipe. No readiness event of the terminal
    /// announces it.
    inherited: bool,
}

/// The master of a terminal, and the writing end of the pipe that takes its output.
pub(super) struct TerminalPump {
    pub(super) master: Pipe,
    pub(super) pipe: OwnedFd,
}

impl TerminalPump {
    /// Waits for output and splices it into the pipe; false at the end.
    async fn pump(&self) -> bool {
        let Ok(mut ready) = self.master.readable().await else {
            return false;
        };
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match rustix::pipe::splice(
            self.master.as_fd(),
            None,
            &self.pipe,
            None,
            BATCH_BYTES,
            flags,
        ) {
            Ok(0) | Err(rustix::io::Errno::IO) => false,
            Ok(_) | Err(rustix::io::Errno::INTR) => true,
            // No output, or the pipe is full: the log has to be filled first.
            Err(rustix::io::Errno::AGAIN) => {
                ready.clear_ready();
                true
            }
            Err(_) => false,
        }
    }
}

impl ExecTask {
    pub(super) fn spawn(self) {
        let sandbox = Arc::clone(&self.sandbox);
        sandbox.spawn(self.run());
    }

    async fn run(self) {
        let Self {
            sandbox,
            exec,
            stdout,
            stderr,
            stdin,
            terminal_pump,
            mut ended,
            oom_kills_at_start,
        } = self;
        let feeding = stdin.map(|pipe| {
            let (exec, sandbox) = (Arc::clone(&exec), Arc::clone(&sandbox));
            Arc::clone(&sandbox).spawn(async move {
                if let Some(input) = &exec.input {
                    input.splice_into(pipe).await;
                    sandbox
                        .release_now(super::stdin_request_id(exec.request))
                        .await;
                }
            })
        });
        let mut pumps = [
            OutputPump {
                stream: Stream::Stdout,
                pipe: stdout,
                terminal: terminal_pump.is_some(),
                inherited: terminal_pump.is_some(),
                terminal_pump,
            },
            OutputPump {
                stream: Stream::Stderr,
                pipe: stderr,
                terminal_pump: None,
                terminal: false,
                inherited: false,
            },
        ];
        let recorded = exec.progress.borrow().status;
        if recorded.is_none() {
            let present = sandbox.metrics.track_active(exec.terminal.is_some());
            let (mut timed_out, mut killed) = (false, false);
            let mut deadline = Deadline::new(&exec, sandbox.state.subscribe());
            let raw = loop {
                tokio::select! {
                    biased;
                    raw = &mut ended => break raw,
                    () = deadline.reached(), if !killed => {
                        timed_out = true;
                        killed = exec.leaf.as_ref().is_none_or(|leaf| leaf.kill().is_ok());
                        if !killed {
                            // `cgroup.kill` needs a descriptor, and the process may have none left.
                            tokio::time::sleep(RETRY_INTERVAL).await;
                        }
                    }
                    () = pump_once(&exec.log, &mut pumps) => {
                        sandbox.execs.drop_output_over_budget();
                        update_screen(&exec).await;
                    }
                }
            };
            for pump in &mut pumps {
                pump.drain(&exec.log).await;
            }
            if exec.terminal.is_some() {
                pumps[0].drain_closing_terminal(&exec.log).await;
            }
            update_screen(&exec).await;
            // If PID 1 died without a report, the kernel killed the command with it.
            let mut status = decode_wait_status(raw.unwrap_or(9));
            status.timed_out = timed_out;
            let killed = status.signal == Some(9) || status.code == Some(137);
            let killed_by_request = timed_out || exec.killed.load(Ordering::Relaxed);
            status.oom_killed =
                killed && !killed_by_request && sandbox.claim_oom_kill(oom_kills_at_start);
            let ended_at = super::now();
            exec.progress.send_modify(|progress| {
                (progress.status, progress.ended_at) = (Some(status), Some(ended_at));
            });
            drop(present);
            if exec.terminal.is_none() {
                sandbox.metrics.observe_exec(exec.started_at);
            }
            // Lets waiting clients run before the cleanup.
            tokio::task::yield_now().await;
            if let Some(feeding) = feeding {
                feeding.abort();
                sandbox.release(super::stdin_request_id(exec.request));
            }
            exec.discard_stdin();
            // If this fails, PID 1 keeps the status for the next server.
            if exec
                .with_record(|record| record.write_end(status, ended_at))
                .is_ok()
            {
                sandbox.ack_exec_end(exec.request);
            }
            if let Some(leaf) = &exec.leaf {
                sandbox.retire_leaf(Arc::clone(leaf));
            }
            sandbox.execs.mark_dirty();
        } else {
            // The previous server was killed before it did this.
            exec.discard_stdin();
        }
        // Descendants that still run may write.
        while pumps.iter().any(|pump| pump.pipe.is_some()) {
            pump_once(&exec.log, &mut pumps).await;
            sandbox.execs.drop_output_over_budget();
        }
        exec.progress.send_modify(|progress| progress.closed = true);
        if let Some(terminal) = &exec.terminal {
            terminal.close();
            sandbox.release_now(exec.request).await;
        } else {
            sandbox.release(exec.request);
        }
        sandbox.execs.evict_ended();
    }
}

/// Feeds new output of a terminal to its screen.
async fn update_screen(exec: &ExecState) {
    if let Some(terminal) = &exec.terminal {
        while terminal.update_screen(&exec.log).unwrap_or(false) {
            tokio::task::yield_now().await;
        }
    }
}

/// Pumps one batch, or waits while readers exert backpressure.
async fn pump_once(log: &OutputLog, pumps: &mut [OutputPump; 2]) {
    if let Backpressure::Until(until) = log.backpressure() {
        tokio::select! {
            () = log.reader_moved.notified() => {}
            () = tokio::time::sleep_until(until.into()) => {}
        }
        return;
    }
    let [one, other] = pumps;
    tokio::select! {
        () = one.pump(log) => {}
        () = other.pump(log) => {}
    }
}

impl OutputPump {
    /// Waits for output and splices it into the log. Cancel safe.
    async fn pump(&mut self, log: &OutputLog) {
        let Some(pipe) = &self.pipe else {
            return std::future::pending().await;
        };
        if self.inherited {
            self.drain(log).await;
            self.inherited = false;
            return;
        }
        if let Some(terminal) = &self.terminal_pump {
            if !terminal.pump().await {
                self.terminal_pump = None;
            }
            return self.drain(log).await;
        }
        let Ok(mut ready) = pipe.readable().await else {
            self.pipe = None;
            return;
        };
        match log.splice_from(self.stream, pipe.as_fd(), BATCH_BYTES) {
            Ok(SpliceResult::Moved) => {}
            Ok(SpliceResult::Empty) => ready.clear_ready(),
            Ok(SpliceResult::Closed) => self.pipe = None,
            // The bytes stay in the pipe, and the command blocks until the disk has space.
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }

    /// Drains the pipe. More than a pipe holds was written later, and is left.
    async fn drain(&mut self, log: &OutputLog) {
        let begin = log.bounds().1;
        while let Some(pipe) = &self.pipe
            && log.bounds().1 < begin + BATCH_BYTES as u64
        {
            match log.splice_from(self.stream, pipe.as_fd(), BATCH_BYTES) {
                Ok(SpliceResult::Moved) => {}
                Ok(SpliceResult::Empty) if self.terminal && self.terminal_pump.is_none() => {
                    self.pipe = None;
                }
                Ok(SpliceResult::Empty) => return,
                Ok(SpliceResult::Closed) => self.pipe = None,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Drains a terminal whose program has just exited.
    async fn drain_closing_terminal(&mut self, log: &OutputLog) {
        let closed = async {
            while self.pipe.is_some() {
                self.pump(log).await;
            }
        };
        // Descendants may still have the terminal open.
        let _ = tokio::time::timeout(TERMINAL_DRAIN_TIMEOUT, closed).await;
    }
}

/// Deadline of a command. The clock stops while the sandbox is paused; both transitions are
/// recorded, so that a later server continues with the remaining time.
struct Deadline {
    exec: Arc<ExecState>,
    state: watch::Receiver<SandboxState>,
    clock: Option<DeadlineClock>,
}

/// State of the deadline's clock.
#[derive(Clone, Copy)]
enum DeadlineClock {
    Until(Instant),
    Stopped(Duration),
}

impl Deadline {
    fn new(exec: &Arc<ExecState>, state: watch::Receiver<SandboxState>) -> Self {
        let left = exec.with_record(|record| record.clock.map(|clock| clock.left()));
        Self {
            clock: left.map(|left| DeadlineClock::Until(Instant::now() + left)),
            exec: Arc::clone(exec),
            state,
        }
    }

    /// Waits until the deadline. Cancel safe.
    async fn reached(&mut self) {
        loop {
            let paused = *self.state.borrow_and_update() == SandboxState::Paused;
            match (self.clock, paused) {
                (None, _) => return std::future::pending().await,
                (Some(DeadlineClock::Until(until)), true) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.set(DeadlineClock::Stopped(left), Clock::stopped(left));
                }
                (Some(DeadlineClock::Stopped(left)), false) => {
                    self.set(
                        DeadlineClock::Until(Instant::now() + left),
                        Clock::running(left),
                    );
                }
                (Some(DeadlineClock::Stopped(_)), true) => {
                    if self.state.changed().await.is_err() {
                        return std::future::pending().await;
                    }
                }
                (Some(DeadlineClock::Until(until)), false) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until.into()) => return,
                        changed = self.state.changed() => {
                            if changed.is_err() {
                                return std::future::pending().await;
                            }
                        }
                    }
                }
            }
        }
    }

    fn set(&mut self, running: DeadlineClock, clock: Clock) {
        self.clock = Some(running);
        let _ = self.exec.with_record(|record| record.write_clock(clock));
    }
}

/// Decodes a raw wait status.
fn decode_wait_status(raw: i32) -> ExecStatus {
    let signal = raw & 0x7f;
    if signal == 0 {
        ExecStatus {
            code: Some((raw >> 8) & 0xff),
            ..ExecStatus::default()
        }
    } else {
        ExecStatus {
            signal: Some(signal),
            ..ExecStatus::default()
        }
    }
}
