//! The process that is attached to a named run: forwards streams and signals, and detaches.
//!
//! If it is killed, the command continues until its output pipe is full. If it loses its terminal,
//! it continues in the background and holds the run (its output goes to the log, its deadline is
//! enforced) until another process requests the lock.

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

/// How an attached process detaches.
pub(super) enum Outcome {
    /// The command has ended with this code, and all output was delivered.
    Ended(u8),
    /// The run continues without this process, which exits with this code.
    Left(u8),
}

/// Why the process stops forwarding.
enum DetachReason {
    /// The terminal is lost.
    Hangup,
    /// The reader of standard output has exited.
    Closed,
    Failed(Error),
}

impl From<Error> for DetachReason {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// An attached process.
pub(super) struct Client<'a> {
    pub(super) name: &'a RunName,
    pub(super) directory: &'a Path,
    /// Whether this process started the run.
    pub(super) fresh: bool,
    /// Whether the command was given on the command line although another process started the run.
    pub(super) repeated: bool,
}

impl Client<'_> {
    /// Forwards streams and signals until the command has ended; returns its result, or the exit
    /// code of this process.
    pub(super) async fn pass(
        &self,
        exec: StartedExec,
        signals: &mut Signals,
    ) -> Result<Result<ExecStatus, u8>, Error> {
        let control = exec.handle.clone();
        let ended = control.info().status.is_some();
        let passed = match control.info().spec.terminal {
            // The output of a finished command can be read without a terminal.
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
        report_lost_output(missing);
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
        report_lost_output(stdout.lost_bytes().saturating_sub(missing));
        tokio::select! {
            status = control.wait() => Ok(status),
            away = forward_signals(signals, &control) => Err(away),
        }
    }

    /// Connects this terminal to the command's, and replays its previous output.
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
                // The replay expects an empty screen.
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

    /// Forwards standard input. The end of standard input closes the command's input; detaching
    /// does not.
    fn pass_input(&self, control: &ExecHandle) {
        // Without standard input, the input that another process began stays open.
        if !self.fresh && stdin_is_null() {
            return;
        }
        let terminal = isatty(std::io::stdin());
        // A user who repeats the command repeats its input; the part that was accepted before is
        // skipped.
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
                // Not the end of the input: the next attached process may continue it.
                loop {
                    std::thread::park();
                }
            }
        });
        tokio::spawn(feed(control.clone(), given));
    }

    /// Continues in the background until the command has ended or another process requests to
    /// attach.
    async fn hold_in_background(&self, control: &ExecHandle, signals: &mut Signals) {
        let path = holder_file(self.directory);
        let _ = std::fs::write(&path, std::process::id().to_string());
        let released =
            async { while signals.next().await == SignalKind::hangup().as_raw_value() {} };
        tokio::select! {
            _ = control.wait() => {}
            () = released => {}
        }
        let _ = std::fs::remove_file(&path);
    }
}

/// Forwards signals as for a run without a name, except that SIGHUP is not forwarded.
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

fn report_lost_output(bytes: u64) {
    if bytes > 0 {
        eprint_line(&format!(
            "atoll: {} of its output are missing here: more was written than is kept",
            Bytes(bytes)
        ));
    }
}

/// File with the id of the process that holds a run in the background.
fn holder_file(directory: &Path) -> PathBuf {
    directory.join("minded")
}

/// Whether the attached process only holds the run in the background.
pub(crate) fn is_background_holder(directory: &Path, pid: i32) -> bool {
    std::fs::read_to_string(holder_file(directory)).is_ok_and(|text| text == pid.to_string())
}

/// Removes the holder file of a run.
pub(super) fn clear_holder(directory: &Path) {
    let _ = std::fs::remove_file(holder_file(directory));
}

/// Signals the process that holds a run in the background to release it.
pub(super) fn ask_to_leave(directory: &Path, pid: i32) -> bool {
    // Opened before the check, so that the descriptor refers to the checked process or to none.
    let process = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let is_background_holder = is_background_holder(directory, pid);
    match process {
        Some(Ok(process)) if is_background_holder => {
            pidfd_send_signal(&process, Signal::TERM).is_ok()
        }
        _ => false,
    }
}
