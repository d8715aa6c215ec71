//! The process that is attached to a named run: what it passes on, and how it leaves.
//!
//! One that is killed is simply gone; the command goes on until a pipe of what it writes is full. One whose
//! terminal is lost stays without it and is_background_holder the run (its output goes to the log, its deadline is
//! kept) until another process asks it to leave.

use std::io::Read;
use std::path::{Path, PathBuf};

use atoll_model::{Bytes, Error, ExecStatus, RunName};
use atoll_worker::{ExecHandle, StartedExec, StreamReader};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::termios::isatty;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::SignalKind;

use super::super::{Signals, copy, feed, pass_on, stdin_is_null, terminal};
use super::goes_on;
use crate::cli::eprint_line;

/// How an attached process ends.
pub(super) enum Outcome {
    /// The command has ended with this code, and all was passed on.
    Ended(u8),
    /// The run goes on without us; our own code.
    Left(u8),
}

/// Why nothing is passed on any more.
enum DetachReason {
    /// Our terminal is lost.
    Hangup,
    /// Nobody reads what we write.
    Closed,
    Failed(Error),
}

impl From<Error> for DetachReason {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A process at a run.
pub(super) struct Client<'a> {
    pub(super) name: &'a RunName,
    pub(super) directory: &'a Path,
    /// It was us who began it.
    pub(super) fresh: bool,
    /// The command was given, if it was not us who began it.
    pub(super) repeated: bool,
}

impl Client<'_> {
    /// Passes everything on until the command has ended: how, or the code to leave with.
    pub(super) async fn pass(
        &self,
        exec: StartedExec,
        signals: &mut Signals,
    ) -> Result<Result<ExecStatus, u8>, Error> {
        let control = exec.handle.clone();
        let ended = control.info().status.is_some();
        let passed = match control.info().spec.terminal {
            // What it showed can be read without one, once it is over.
            Some(_) if !ended => self.show(&control, signals).await,
            _ => self.stream(exec, signals).await,
        };
        match passed {
            Ok(status) => Ok(Ok(status)),
            Err(DetachReason::Failed(error)) => Err(error),
            Err(DetachReason::Closed) => {
                goes_on(self.name);
                Ok(Err(128 + SignalKind::pipe().as_raw_value() as u8))
            }
            Err(DetachReason::Hangup) => {
                self.hold_in_background(&control, signals).await;
                Ok(Err(128 + SignalKind::hangup().as_raw_value() as u8))
            }
        }
    }

    async fn stream(
        &self,
        exec: StartedExec,
        signals: &mut Signals,
    ) -> Result<ExecStatus, DetachReason> {
        let StartedExec {
            mut stdout,
            mut stderr,
            handle: control,
            ..
        } = exec;
        let missing = control.output_range().0;
        tell_lost(missing);
        self.pass_input(&control);
        let outputs = async {
            tokio::try_join!(
                pass_output(&mut stdout, tokio::io::stdout()),
                pass_output(&mut stderr, tokio::io::stderr())
            )
        };
        tokio::select! {
            passed = outputs => drop(passed?),
            away = forward_signals(signals, &control) => return Err(away),
        }
        tell_lost(stdout.lost_bytes().saturating_sub(missing));
        tokio::select! {
            status = control.wait() => Ok(status),
            away = forward_signals(signals, &control) => Err(away),
        }
    }

    /// Our own terminal becomes the command's, with what it showed before.
    async fn show(
        &self,
        control: &ExecHandle,
        signals: &mut Signals,
    ) -> Result<ExecStatus, DetachReason> {
        let size = terminal::size()?;
        let _raw = terminal::Raw::new()?;
        let output = if self.fresh {
            control.output(0)
        } else {
            let attached = control.attach()?;
            let mut screen = tokio::io::stdout();
            let shown = async {
                // The replay is for an empty screen.
                screen.write_all(b"\x1b[H\x1b[2J").await?;
                screen.write_all(&attached.replay).await?;
                screen.flush().await
            };
            shown.await.map_err(|_| DetachReason::Hangup)?;
            control.resize(size)?;
            attached.output
        };
        self.pass_input(control);
        tokio::select! {
            shown = terminal::show(control, output) => shown?.ok_or(DetachReason::Hangup),
            away = forward_signals(signals, control) => Err(away),
        }
    }

    /// Gives the command what we read. That we are gone does not end its input; the end of ours does.
    fn pass_input(&self, control: &ExecHandle) {
        // Nothing to say is not the end of what somebody else began to say.
        if !self.fresh && stdin_is_null() {
            return;
        }
        let terminal = isatty(std::io::stdin());
        // Who gives the command again gives its input again; what was taken of it is not taken twice.
        let taken = match control.stdin_offset() {
            Some(taken) if self.repeated && !self.fresh && !terminal => taken,
            _ => 0,
        };
        let (read, given) = tokio::sync::mpsc::channel(4);
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            let skipped = std::io::copy(&mut input.by_ref().take(taken), &mut std::io::sink());
            let passed = skipped.and_then(|_| pass_on(input, &read));
            let hung_up = terminal && !isatty(std::io::stdin());
            if passed.is_err() || hung_up {
                // Not the end: whoever attaches next may go on.
                loop {
                    std::thread::park();
                }
            }
        });
        tokio::spawn(feed(control.clone(), given));
    }

    /// Stays without a terminal until the command has ended or another process wants to attach.
    async fn hold_in_background(&self, control: &ExecHandle, signals: &mut Signals) {
        let path = holder_file(self.directory);
        let _ = std::fs::write(&path, std::process::id().to_string());
        let asked = async { while signals.next().await == SignalKind::hangup().as_raw_value() {} };
        tokio::select! {
            _ = control.wait() => {}
            () = asked => {}
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// Passes the first signal on, as for a run without a name; only a lost terminal is nothing to it.
async fn forward_signals(signals: &mut Signals, control: &ExecHandle) -> DetachReason {
    loop {
        let number = signals.next().await;
        if number == SignalKind::hangup().as_raw_value() {
            return DetachReason::Hangup;
        }
        if let Err(error) = signals.hand_on(number, control).await {
            return error.into();
        }
    }
}

async fn pass_output(
    output: &mut StreamReader,
    to: impl tokio::io::AsyncWrite + Unpin,
) -> Result<(), DetachReason> {
    match copy(output, to).await? {
        None => Ok(()),
        Some(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
            Err(DetachReason::Hangup)
        }
        Some(_) => Err(DetachReason::Closed),
    }
}

fn tell_lost(bytes: u64) {
    if bytes > 0 {
        eprint_line(&format!(
            "atoll: {} of its output are missing here: more was written than is kept",
            Bytes(bytes)
        ));
    }
}

/// Names the process that only is_background_holder a run.
fn holder_file(directory: &Path) -> PathBuf {
    directory.join("minded")
}

/// Whether a process that serves a run only is_background_holder it.
pub(crate) fn is_background_holder(directory: &Path, pid: i32) -> bool {
    std::fs::read_to_string(holder_file(directory)).is_ok_and(|text| text == pid.to_string())
}

/// Nobody is_background_holder a run any more.
pub(super) fn clear_holder(directory: &Path) {
    let _ = std::fs::remove_file(holder_file(directory));
}

/// Asks the process that holds a run to leave, if it only is_background_holder it.
pub(super) fn ask_to_leave(directory: &Path, pid: i32) -> bool {
    // Before we look: then it is the one that was there when we did, or none.
    let process = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let is_background_holder = is_background_holder(directory, pid);
    match process {
        Some(Ok(process)) if is_background_holder => {
            pidfd_send_signal(&process, Signal::TERM).is_ok()
        }
        _ => false,
    }
}
