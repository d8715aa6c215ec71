//! A command's terminal: the PTY master, and a screen that is fed with all output, so that a client
//! can attach at any time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use atoll_model::{Code, Error, TerminalSize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::output_log::OutputLog;
use super::task::{Pipe, TerminalPump};
use crate::error::{internal, jail};
use crate::keeper::register_fd;
use crate::screen::{Screen, Size};
use crate::sync::lock;

/// Bytes fed to the screen before other tasks get their turn: some escape sequences are expensive.
const BATCH_BYTES: usize = 16 << 10;

/// Master and screen of a command's terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// `None` once the slave is closed, to release the PTY: their number is limited.
    master: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    /// Notified then: writers wait for space that will not come.
    closed: Notify,
    screen_state: Mutex<ScreenState>,
}

/// Descriptors of a terminal: its master and the pipe that takes its output. The keeper holds all
/// of them.
#[derive(Debug)]
pub(crate) struct TerminalFds {
    pub(crate) master: OwnedFd,
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

impl TerminalFds {
    /// In the order in which the keeper holds them.
    pub(crate) fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [&self.master, &self.reader, &self.writer].map(AsFd::as_fd)
    }

    /// Registers the descriptors: the terminal, the pipe to read its output from, and the pump that
    /// fills it.
    pub(super) fn open(
        self,
        first: TerminalSize,
    ) -> Result<(Terminal, (Pipe, TerminalPump)), Error> {
        let copy = self.master.try_clone();
        let copy = copy.map_err(|error| internal("copy a descriptor", &error))?;
        let pump = TerminalPump {
            master: super::start::watch_readable(self.master)?,
            pipe: super::set_nonblocking(self.writer)?,
        };
        let reader = super::start::watch_readable(self.reader)?;
        Ok((Terminal::new(copy, first)?, (reader, pump)))
    }
}

/// A screen, and the log offset up to which it was fed.
#[derive(Debug)]
struct ScreenState {
    screen: Screen,
    position: u64,
}

/// Converts a size.
fn size(size: TerminalSize) -> Size {
    Size {
        rows: size.rows.into(),
        columns: size.columns.into(),
    }
}

impl Terminal {
    /// A terminal with an empty screen of this size.
    pub(crate) fn new(master: OwnedFd, first: TerminalSize) -> Result<Self, Error> {
        Ok(Self {
            master: Mutex::new(Some(Arc::new(register_fd(master, Interest::WRITABLE)?))),
            closed: Notify::new(),
            screen_state: Mutex::new(ScreenState {
                screen: Screen::new(size(first)),
                position: 0,
            }),
        })
    }

    fn master(&self) -> Result<Arc<AsyncFd<OwnedFd>>, Error> {
        lock(&self.master).clone().ok_or_else(closed_error)
    }

    /// Releases the master, after the slave was closed by all processes.
    pub(crate) fn close(&self) {
        lock(&self.master).take();
        self.closed.notify_waiters();
    }

    /// Feeds one batch of new output to the screen; true if there is more.
    pub(crate) fn update_screen(&self, log: &OutputLog) -> io::Result<bool> {
        let mut screen_state = lock(&self.screen_state);
        screen_state.catch_up(log, BATCH_BYTES as u64)?;
        Ok(screen_state.position < log.bounds().1)
    }

    /// Repeats a recorded resize: feeds output up to its offset, then resizes the screen.
    pub(crate) fn replay_resize(
        &self,
        log: &OutputLog,
        position: u64,
        to: TerminalSize,
    ) -> io::Result<()> {
        let mut screen_state = lock(&self.screen_state);
        let left = position.saturating_sub(screen_state.position);
        screen_state.catch_up(log, left)?;
        screen_state.screen.resize(size(to));
        Ok(())
    }

    /// Resizes terminal and screen; returns the log offset at which the size took effect.
    pub(crate) fn resize(&self, log: &OutputLog, to: TerminalSize) -> Result<u64, Error> {
        let failed = |error: io::Error| internal("read a terminal's log", &error);
        let mut screen_state = lock(&self.screen_state);
        screen_state.catch_up(log, u64::MAX).map_err(failed)?;
        atoll_jail::terminal::resize(&*self.master()?, to.rows, to.columns)
            .map_err(|error| jail(&error))?;
        screen_state.screen.resize(size(to));
        Ok(screen_state.position)
    }

    /// Bytes that bring a new terminal to the current screen, the log offset after them, and the
    /// size.
    pub(crate) fn replay(&self, log: &OutputLog) -> Result<(Vec<u8>, u64, TerminalSize), Error> {
        let failed = |error: io::Error| internal("read a terminal's log", &error);
        let mut screen_state = lock(&self.screen_state);
        screen_state.catch_up(log, u64::MAX).map_err(failed)?;
        let size = screen_state.screen.size();
        let size = TerminalSize {
            rows: size.rows as u16,
            columns: size.columns as u16,
        };
        Ok((screen_state.screen.replay(), screen_state.position, size))
    }

    /// Writes to the terminal, waiting while its input buffer is full.
    pub(crate) async fn write(&self, mut bytes: &[u8]) -> Result<(), Error> {
        let failed = |error: io::Error| internal("write to a terminal", &error);
        let mut gone = std::pin::pin!(self.closed.notified());
        gone.as_mut().enable();
        let master = self.master()?;
        while !bytes.is_empty() {
            let ready = tokio::select! {
                ready = master.writable() => ready,
                () = &mut gone => return Err(closed_error()),
            };
            let mut ready = ready.map_err(failed)?;
            match rustix::io::write(master.as_fd(), bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        Ok(())
    }
}

fn closed_error() -> Error {
    Error::new(Code::StdinClosed, "the terminal was closed by its program")
}

impl ScreenState {
    /// Feeds at most `max` bytes of the log to the screen.
    fn catch_up(&mut self, log: &OutputLog, max: u64) -> io::Result<()> {
        let mut left = max;
        let mut buffer = vec![0; BATCH_BYTES];
        loop {
            let (start, end) = log.bounds();
            self.position = self.position.max(start);
            let room = left.min(end - self.position).min(BATCH_BYTES as u64) as usize;
            if room == 0 {
                return Ok(());
            }
            let read = log.read(self.position, &mut buffer[..room])?;
            if read == 0 {
                return Ok(());
            }
            self.screen.feed(&buffer[..read]);
            self.position += read as u64;
            left -= read as u64;
        }
    }
}
