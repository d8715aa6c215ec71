//! The terminal of a command: its server's end, and the screen of whoever watched from the beginning.

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
use crate::keeper::watch_for;
use crate::sandbox::lock;
use crate::screen::{Screen, Size};

/// The max that is screen_state before others get their turn: some sequences are dear.
const BATCH_BYTES: usize = 16 << 10;

/// A command's terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Nothing once nobody has the other end: there are only so many terminals.
    master: Mutex<Option<Arc<AsyncFd<OwnedFd>>>>,
    /// Told then: whoever types waits for room that nobody makes any more.
    closed: Notify,
    screen_state: Mutex<ScreenState>,
}

/// Our end of a terminal, and the pipe its output goes through. The keeper holds all of them.
#[derive(Debug)]
pub(crate) struct TerminalFds {
    pub(crate) master: OwnedFd,
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
}

impl TerminalFds {
    /// In the order the keeper holds them.
    pub(crate) fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        [&self.master, &self.reader, &self.writer].map(AsFd::as_fd)
    }

    /// The terminal, the pipe to read its output from, and what fills that.
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

/// A screen, and how much of the log it has seen.
#[derive(Debug)]
struct ScreenState {
    screen: Screen,
    position: u64,
}

/// A size as the screen counts.
fn size(size: TerminalSize) -> Size {
    Size {
        rows: size.rows.into(),
        columns: size.columns.into(),
    }
}

impl Terminal {
    /// With a size.
    pub(crate) fn new(master: OwnedFd, first: TerminalSize) -> Result<Self, Error> {
        Ok(Self {
            master: Mutex::new(Some(Arc::new(watch_for(master, Interest::WRITABLE)?))),
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

    /// Nobody has the other end any more.
    pub(crate) fn close(&self) {
        lock(&self.master).take();
        self.closed.notify_waiters();
    }

    /// Shows what has come into the log; says whether there is more.
    pub(crate) fn update_screen(&self, log: &OutputLog) -> io::Result<bool> {
        let mut screen_state = lock(&self.screen_state);
        screen_state.catch_up(log, BATCH_BYTES as u64)?;
        Ok(screen_state.position < log.bounds().1)
    }

    /// Shows everything up to a position, then takes another size: as it happened before we were there.
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

    /// Gives it another size; the position in the log at which it has it.
    pub(crate) fn resize(&self, log: &OutputLog, to: TerminalSize) -> Result<u64, Error> {
        let failed = |error: io::Error| internal("read a terminal's log", &error);
        let mut screen_state = lock(&self.screen_state);
        screen_state.catch_up(log, u64::MAX).map_err(failed)?;
        atoll_jail::terminal::resize(&*self.master()?, to.rows, to.columns)
            .map_err(|error| jail(&error))?;
        screen_state.screen.resize(size(to));
        Ok(screen_state.position)
    }

    /// What a fresh terminal must be sent to show the same, and the position in the log after it.
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

    /// Types.
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
    /// Shows what is in the log, at max so many bytes of it.
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
