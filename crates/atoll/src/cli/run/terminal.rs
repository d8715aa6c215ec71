//! This terminal as the command's: raw mode, forwarded size, and restored at the end.

use std::os::fd::AsFd;

use atoll_model::{Code, Error, ExecStatus, OutputChunk, TerminalSize};
use atoll_worker::{ExecHandle, OutputReader};
use rustix::termios::{
    LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};

/// Size of this terminal; an error with a remedy if there is none.
pub(crate) fn size() -> Result<TerminalSize, Error> {
    let (input, output) = (std::io::stdin(), std::io::stdout());
    if !isatty(&input) || !isatty(&output) {
        return Err(Error::invalid(
            "tty",
            "a terminal was requested, but standard input or output is none",
            "leave out -t, or run it from a terminal",
        ));
    }
    Ok(current(output.as_fd()))
}

/// Size of a terminal, if the descriptor is one.
pub(crate) fn current(terminal: std::os::fd::BorrowedFd<'_>) -> TerminalSize {
    match tcgetwinsize(terminal) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize {
            rows: size.ws_row,
            columns: size.ws_col,
        },
        _ => TerminalSize::default(),
    }
}

/// Changed terminal mode, which is restored on drop.
pub(crate) struct Raw(Termios);

impl Raw {
    /// Raw mode: every key is passed to the command.
    pub(crate) fn new() -> Result<Self, Error> {
        Self::changed(Termios::make_raw)
    }

    /// Disables echo.
    pub(crate) fn without_echo() -> Result<Self, Error> {
        Self::changed(|modes| modes.local_modes.remove(LocalModes::ECHO))
    }

    fn changed(change: impl FnOnce(&mut Termios)) -> Result<Self, Error> {
        let failed = |error: rustix::io::Errno| {
            Error::new(
                Code::Internal,
                format!("the terminal cannot be changed: {error}"),
            )
        };
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut changed = before.clone();
        change(&mut changed);
        tcsetattr(std::io::stdin(), OptionalActions::Now, &changed).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Copies the command's output to this terminal until it ends, and forwards size changes. Returns
/// `None` if this terminal is lost.
pub(super) async fn show(
    control: &ExecHandle,
    mut output: OutputReader,
) -> Result<Option<ExecStatus>, Error> {
    let mut resized = signal(SignalKind::window_change())
        .map_err(|error| Error::new(Code::Internal, format!("watch signals: {error}")))?;
    let mut screen = tokio::io::stdout();
    loop {
        tokio::select! {
            chunk = output.next() => match chunk? {
                Some(OutputChunk::Data { bytes, .. }) => {
                    let written = async {
                        screen.write_all(&bytes).await?;
                        screen.flush().await
                    };
                    if written.await.is_err() {
                        return Ok(None);
                    }
                }
                Some(OutputChunk::Gap { .. }) => {}
                Some(OutputChunk::Exit(status)) => return Ok(Some(status)),
                None => return Ok(Some(control.wait().await)),
            },
            _ = resized.recv() => control.resize(current(std::io::stdout().as_fd()))?,
        }
    }
}
