//! Connects a command to the standard streams and signals of this process, with or without a
//! terminal.

use std::io::Read;

use atoll_model::{Error, ExecStatus};
use atoll_worker::{ExecHandle, StartedExec, StreamReader};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::SignalKind;

use super::super::{print_error, unwritten};
use super::{Signals, terminal};

/// Connects the command to this terminal.
pub(super) async fn on_terminal(
    control: &ExecHandle,
    signals: &mut Signals,
) -> Result<ExecStatus, Error> {
    let _raw = terminal::Raw::new()?;
    pass_input(control);
    let shown = async {
        if let Some(status) = terminal::show(control, control.output(0)).await? {
            return Ok(status);
        }
        control.signal(SignalKind::hangup().as_raw_value()).await?;
        Ok(control.wait().await)
    };
    tokio::select! {
        status = shown => status,
        error = forward(signals, control) => Err(error),
    }
}

/// Forwards standard input to a command.
fn pass_input(control: &ExecHandle) {
    let (read, given) = tokio::sync::mpsc::channel(4);
    // On a separate thread, because a read of a terminal cannot be cancelled.
    std::thread::spawn(move || drop(pass_on(std::io::stdin().lock(), &read)));
    tokio::spawn(feed(control.clone(), given));
}

/// Forwards standard input and output until the command has ended and all output was written.
pub(super) async fn stream(exec: StartedExec, signals: &mut Signals) -> Result<ExecStatus, Error> {
    pass_input(&exec.handle);
    let outputs = async {
        tokio::join!(
            pass_output(exec.stdout, tokio::io::stdout(), &exec.handle),
            pass_output(exec.stderr, tokio::io::stderr(), &exec.handle)
        )
    };
    let control = exec.handle.clone();
    tokio::select! {
        copied = outputs => {
            copied.0?;
            copied.1?;
        }
        error = forward(signals, &control) => return Err(error),
    }
    tokio::select! {
        status = exec.handle.wait() => Ok(status),
        error = forward(signals, &control) => Err(error),
    }
}

/// Forwards the first signal; the second one kills the command.
async fn forward(signals: &mut Signals, control: &ExecHandle) -> Error {
    loop {
        let number = signals.next().await;
        if let Err(error) = signals.hand_on(number, control).await {
            return error;
        }
    }
}

/// Copies output until its end. If the reader of this process's output has exited, the command
/// receives SIGPIPE, as from a closed pipe without a sandbox.
async fn pass_output(
    mut output: StreamReader,
    to: impl tokio::io::AsyncWrite + Unpin,
    control: &ExecHandle,
) -> Result<(), Error> {
    match copy(&mut output, to).await? {
        None => Ok(()),
        Some(error) => {
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                print_error(&unwritten(&error));
            }
            control.signal(SignalKind::pipe().as_raw_value()).await
        }
    }
}

/// Copies output until its end, or until the reader has exited: then returns the error.
pub(super) async fn copy(
    output: &mut StreamReader,
    mut to: impl tokio::io::AsyncWrite + Unpin,
) -> Result<Option<std::io::Error>, Error> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = output.read(&mut buffer).await?;
        if read == 0 {
            return Ok(None);
        }
        let written = async {
            to.write_all(&buffer[..read]).await?;
            to.flush().await
        };
        if let Err(error) = written.await {
            return Ok(Some(error));
        }
    }
}

/// Reads standard input until its end, or until the receiver is dropped.
pub(crate) fn pass_on(
    mut from: impl Read,
    to: &tokio::sync::mpsc::Sender<Vec<u8>>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 || to.blocking_send(buffer[..read].to_vec()).is_err() {
            return Ok(());
        }
    }
}

/// Forwards standard input until its end. The command need not read it.
pub(super) async fn feed(control: ExecHandle, mut given: tokio::sync::mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = given.recv().await {
        if control.write_stdin(&bytes).await.is_err() {
            return;
        }
    }
    let _ = control.close_stdin();
}

/// Whether standard input is closed or `/dev/null`.
pub(crate) fn stdin_is_null() -> bool {
    use std::os::unix::fs::MetadataExt;
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    match (rustix::fs::fstat(std::io::stdin()), null) {
        (Ok(stdin), Ok(null)) => stdin.st_rdev == null,
        // Standard input is closed.
        _ => true,
    }
}
