//! Sees a command to its end, whether or not anybody listens: moves what it writes into its log, gives
//! it its input, keeps its deadline, and writes down how it ended.

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

/// The most that is moved before others get their turn.
const BATCH_BYTES: usize = 1 << 20;
/// How long to wait before what failed for want of room (a log, on a full disk) or of descriptors is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// How long a terminal may take to hand over what was written into it last.
const TERMINAL_DRAIN_TIMEOUT: Duration = Duration::from_millis(50);

/// The reading end of a pipe.
pub(super) type Pipe = AsyncFd<OwnedFd>;

/// Everything the task of a command works with.
pub(super) struct ExecTask {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) shared: Arc<ExecState>,
    pub(super) stdout: Option<Pipe>,
    pub(super) stderr: Option<Pipe>,
    pub(super) stdin: Option<OwnedFd>,
    /// What fills the pipe of its output, if it has a terminal.
    pub(super) terminal_pump: Option<TerminalPump>,
    /// Told its raw status; closed without one if its sandbox ended first.
    pub(super) ended: oneshot::Receiver<i32>,
    /// The sandbox's OOM counter when it started.
    pub(super) oom_kills_at_start: u64,
}

/// A stream of output: its pipe until it is closed.
struct OutputPump {
    stream: Stream,
    pipe: Option<Pipe>,
    /// What fills the pipe, if that is us: what a terminal shows can be moved into a pipe, and from there
    /// into a file, without ever being only in our memory; not straight.
    terminal_pump: Option<TerminalPump>,
    /// The pipe of a terminal: its end is the terminal's, since the keeper holds its other end.
    terminal: bool,
    /// A server that was killed may have left output in the pipe of a terminal. No event of the terminal announces it.
    inherited: bool,
}

/// Our end of a terminal, and the writing end of the pipe its output goes through.
pub(super) struct TerminalPump {
    pub(super) master: Pipe,
    pub(super) pipe: OwnedFd,
}

impl TerminalPump {
    /// Waits for something and moves it into the pipe; false when nothing can come any more.
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
            // Nothing there, or the pipe is full: the log has to take some first.
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
            shared,
            stdout,
            stderr,
            stdin,
            terminal_pump,
            mut ended,
            oom_kills_at_start,
        } = self;
        let feeding = stdin.map(|pipe| {
            let (shared, sandbox) = (Arc::clone(&shared), Arc::clone(&sandbox));
            Arc::clone(&sandbox).spawn(async move {
                if let Some(input) = &shared.input {
                    input.splice_into(pipe).await;
                    sandbox
                        .release_now(super::stdin_request_id(shared.request))
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
        let recorded = shared.progress.borrow().status;
        if recorded.is_none() {
            let present = sandbox.meters.present(shared.terminal.is_some());
            let (mut timed_out, mut killed) = (false, false);
            let mut deadline = Deadline::new(&shared, sandbox.state.subscribe());
            let raw = loop {
                tokio::select! {
                    biased;
                    raw = &mut ended => break raw,
                    () = deadline.reached(), if !killed => {
                        timed_out = true;
                        killed = shared.leaf.as_ref().is_none_or(|leaf| leaf.kill().is_ok());
                        if !killed {
                            // It takes descriptors, of which there may be none just now.
                            tokio::time::sleep(RETRY_INTERVAL).await;
                        }
                    }
                    () = pump_once(&shared.log, &mut pumps) => {
                        sandbox.execs.drop_output_over_budget();
                        update_screen(&shared).await;
                    }
                }
            };
            for pump in &mut pumps {
                pump.drain(&shared.log).await;
            }
            if shared.terminal.is_some() {
                pumps[0].drain_closing_terminal(&shared.log).await;
            }
            update_screen(&shared).await;
            // A PID 1 that died without a word took the command with it.
            let mut status = decode_wait_status(raw.unwrap_or(9));
            status.timed_out = timed_out;
            let killed = status.signal == Some(9) || status.code == Some(137);
            let killed_by_request = timed_out || shared.killed.load(Ordering::Relaxed);
            status.oom_killed =
                killed && !killed_by_request && sandbox.claim_oom_kill(oom_kills_at_start);
            let ended_at = super::now();
            shared.progress.send_modify(|progress| {
                (progress.status, progress.ended_at) = (Some(status), Some(ended_at));
            });
            drop(present);
            if shared.terminal.is_none() {
                sandbox.meters.exec_ended(shared.started_at);
            }
            // Whoever waits goes first.
            tokio::task::yield_now().await;
            if let Some(feeding) = feeding {
                feeding.abort();
                sandbox.release(super::stdin_request_id(shared.request));
            }
            shared.discard_stdin();
            // Not written down it stays known to PID 1, for the next server.
            if shared
                .with_record(|record| record.write_end(status, ended_at))
                .is_ok()
            {
                sandbox.forget(shared.request);
            }
            if let Some(leaf) = &shared.leaf {
                sandbox.leave(Arc::clone(leaf));
            }
            sandbox.execs.mark_dirty();
        } else {
            // The server before was killed before it could.
            shared.discard_stdin();
        }
        // Children that live on may go on writing.
        while pumps.iter().any(|pump| pump.pipe.is_some()) {
            pump_once(&shared.log, &mut pumps).await;
            sandbox.execs.drop_output_over_budget();
        }
        shared
            .progress
            .send_modify(|progress| progress.closed = true);
        if let Some(terminal) = &shared.terminal {
            terminal.close();
            sandbox.release_now(shared.request).await;
        } else {
            sandbox.release(shared.request);
        }
        sandbox.execs.evict_ended();
    }
}

/// Shows on its screen what a terminal's program wrote.
async fn update_screen(shared: &ExecState) {
    if let Some(terminal) = &shared.terminal {
        while terminal.update_screen(&shared.log).unwrap_or(false) {
            tokio::task::yield_now().await;
        }
    }
}

/// Moves some of what was written, when there is some and room for it.
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
    /// Waits for something and moves it; can be given up at any time.
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
            // The bytes stay in the pipe, and the command waits, until the disk has room again.
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }

    /// Moves everything that is in the pipe now: more than a pipe can hold was written later.
    async fn drain(&mut self, log: &OutputLog) {
        let begin = log.bounds().1;
        while let Some(pipe) = &self.pipe
            && log.bounds().1 < begin + BATCH_BYTES as u64
        {
            match log.splice_from(self.stream, pipe.as_fd(), BATCH_BYTES) {
                Ok(SpliceResult::Moved) => {}
                Ok(SpliceResult::Empty) if self.terminal && self.terminal_pump.is_none() => {
                    self.pipe = None
                }
                Ok(SpliceResult::Empty) => return,
                Ok(SpliceResult::Closed) => self.pipe = None,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Moves what is still on its way through a terminal, whose other end its program has just closed.
    async fn drain_closing_terminal(&mut self, log: &OutputLog) {
        let closed = async {
            while self.pipe.is_some() {
                self.pump(log).await;
            }
        };
        // Children that live on may have it open.
        let _ = tokio::time::timeout(TERMINAL_DRAIN_TIMEOUT, closed).await;
    }
}

/// When a command's time is over. The clock stands still while the sandbox is paused, and that is
/// written down: a later server goes on with what is left.
struct Deadline {
    shared: Arc<ExecState>,
    state: watch::Receiver<SandboxState>,
    clock: Option<DeadlineClock>,
}

/// A command's clock.
#[derive(Clone, Copy)]
enum DeadlineClock {
    Until(Instant),
    Stopped(Duration),
}

impl Deadline {
    fn new(shared: &Arc<ExecState>, state: watch::Receiver<SandboxState>) -> Self {
        let left = shared.with_record(|record| record.clock.map(|clock| clock.left()));
        Self {
            clock: left.map(|left| DeadlineClock::Until(Instant::now() + left)),
            shared: Arc::clone(shared),
            state,
        }
    }

    /// Can be given up and asked again at any time.
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
        let _ = self.shared.with_record(|record| record.write_clock(clock));
    }
}

/// A raw wait status as the truth it encodes.
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
