//! The combined log of a sandbox, line by line: the output of each command in start order, followed
//! by what running commands write. Lines have no timestamps; commands have.
//!
//! Terminal output is left out, since it is not text. Readers exert no backpressure: a slow reader
//! gets a gap.

use std::fmt::Write as _;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use atoll_model::runtime::LogLine;
use atoll_model::{Error, ExecId, OutputChunk, SandboxId};
use tokio::sync::watch;

use super::ExecState;
use super::output::Progress;
use super::table::ExecTable;
use crate::LocalRuntime;
use crate::error::internal;

/// Bytes of the first read of a line; most lines are shorter. A line beyond the maximum is split.
const SHORT_LINE_BYTES: usize = 1 << 10;
const MAX_LINE_BYTES: usize = 16 << 10;

/// Follows the combined log. It can be dropped and continued by its cursor.
#[derive(Debug)]
pub struct LogFollower {
    table: Arc<ExecTable>,
    /// True when no command will be added any more.
    closed: watch::Receiver<bool>,
    /// The newest command that was opened, in start order.
    newest: Option<ExecId>,
    /// Opened commands that may write more, oldest first.
    open: Vec<OpenExec>,
    /// The command being read, and the offset at which the next one has its turn.
    current: usize,
    until: Option<u64>,
}

#[derive(Debug)]
struct OpenExec {
    exec: Arc<ExecState>,
    position: u64,
    growth: watch::Receiver<u64>,
    progress: watch::Receiver<Progress>,
}

impl OpenExec {
    fn new(exec: Arc<ExecState>, position: u64) -> Self {
        Self {
            growth: exec.log.subscribe_end(),
            progress: exec.progress.subscribe(),
            exec,
            position,
        }
    }

    /// The next line or gap before an offset.
    fn read(&mut self, until: u64) -> Result<Option<LogLine>, Error> {
        let start = self.exec.log.bounds().0;
        let content = if self.position < start {
            let from = std::mem::replace(&mut self.position, start);
            OutputChunk::Gap { from, to: start }
        } else if self.position < until {
            let Some(line) = self.line((until - self.position) as usize)? else {
                // Dropped meanwhile: report a gap.
                return self.read(until);
            };
            line
        } else {
            return Ok(None);
        };
        Ok(Some(LogLine {
            exec: self.exec.id.clone(),
            started_at: self.exec.started_at,
            content,
        }))
    }

    fn line(&mut self, max: usize) -> Result<Option<OutputChunk>, Error> {
        let position = self.position;
        let segment = |max| {
            let segment = self.exec.log.read_segment(position, max);
            segment.map_err(|error| internal("read a command's log", &error))
        };
        let Some((mut stream, mut bytes)) = segment(max.min(SHORT_LINE_BYTES))? else {
            return Ok(None);
        };
        let end = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n');
        if end(&bytes).is_none() && bytes.len() == SHORT_LINE_BYTES {
            let Some(longer) = segment(max.min(MAX_LINE_BYTES))? else {
                return Ok(None);
            };
            (stream, bytes) = longer;
        }
        match end(&bytes) {
            Some(end) => bytes.truncate(end + 1),
            None if bytes.len() == MAX_LINE_BYTES => bytes.truncate(complete_chars(&bytes)),
            None => {}
        }
        self.position += bytes.len() as u64;
        Ok(Some(OutputChunk::Data {
            stream,
            position,
            bytes,
        }))
    }
}

/// Length without an incomplete UTF-8 character at the end.
fn complete_chars(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

impl LogFollower {
    fn new(table: Arc<ExecTable>, cursor: Option<&str>) -> Result<Self, Error> {
        let (newest, positions) = match cursor {
            Some(cursor) => parse_cursor(cursor).ok_or_else(|| {
                Error::invalid(
                    "after",
                    "the cursor is not valid",
                    "pass the X-Next-Cursor of the previous page, or an event's id",
                )
            })?,
            None => (None, Vec::new()),
        };
        // Commands that were evicted meanwhile have no more output.
        let open = positions.into_iter().filter_map(|(id, position)| {
            let exec = table.find(&id).ok()?;
            Some(OpenExec::new(exec, position))
        });
        Ok(Self {
            closed: table.subscribe(),
            newest,
            open: open.collect(),
            table,
            current: 0,
            until: None,
        })
    }

    /// Position to continue from: the newest opened command, and the offset in each that may write
    /// more.
    pub fn cursor(&self) -> String {
        let mut cursor = self.newest.as_ref().map_or("", ExecId::as_str).to_owned();
        for open in &self.open {
            let _ = write!(cursor, ".{}:{}", open.exec.id, open.position);
        }
        cursor
    }

    /// The next available line; `None` if all was returned.
    pub fn try_next(&mut self) -> Result<Option<LogLine>, Error> {
        loop {
            let Some(open) = self.open.get_mut(self.current) else {
                // Reset first, so that a command that is added later wakes the reader.
                self.closed.mark_unchanged();
                if self.open_next() {
                    continue;
                }
                (self.current, self.until) = (0, None);
                return Ok(None);
            };
            let until = *self.until.get_or_insert_with(|| {
                // Reset first, so that later output wakes the reader.
                open.growth.mark_unchanged();
                open.progress.mark_unchanged();
                open.exec.log.bounds().1
            });
            if let Some(line) = open.read(until)? {
                return Ok(Some(line));
            }
            self.until = None;
            if open.exec.is_closed() && open.position >= open.exec.log.bounds().1 {
                self.open.remove(self.current);
            } else {
                self.current += 1;
            }
        }
    }

    /// Opens the next command, if there is one.
    fn open_next(&mut self) -> bool {
        let skip = |exec: &ExecState| {
            exec.spec.terminal.is_some() || self.open.iter().any(|open| open.exec.id == exec.id)
        };
        let Some(next) = self.table.next_after(self.newest.as_ref(), skip) else {
            return false;
        };
        self.newest = Some(next.id.clone());
        self.open.push(OpenExec::new(next, 0));
        true
    }

    /// Waits for the next line; `None` at the end of the log.
    pub async fn next(&mut self) -> Result<Option<LogLine>, Error> {
        loop {
            if let Some(line) = self.try_next()? {
                return Ok(Some(line));
            }
            if *self.closed.borrow() {
                return Ok(None);
            }
            self.wait_for_more().await;
        }
    }

    /// Waits until more may be available.
    async fn wait_for_more(&mut self) {
        let mut all: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        let closed = &mut self.closed;
        all.push(Box::pin(async { drop(closed.changed().await) }));
        for open in &mut self.open {
            let OpenExec {
                growth, progress, ..
            } = open;
            all.push(Box::pin(async {
                tokio::select! {
                    _ = growth.changed() => {}
                    _ = progress.changed() => {}
                }
            }));
        }
        poll_fn(|context| {
            let mut ready = all.iter_mut().map(|one| one.as_mut().poll(context));
            if ready.any(|one| one.is_ready()) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }
}

type Positions = Vec<(ExecId, u64)>;

/// Parses a cursor.
fn parse_cursor(cursor: &str) -> Option<(Option<ExecId>, Positions)> {
    let mut parts = cursor.split('.');
    let newest = match parts.next()? {
        "" => None,
        id => Some(id.parse().ok()?),
    };
    let position = |part: &str| {
        let (id, position) = part.split_once(':')?;
        Some((id.parse().ok()?, position.parse().ok()?))
    };
    let positions = parts.map(position).collect::<Option<Positions>>()?;
    Some((newest, positions))
}

impl LocalRuntime {
    /// Follows the combined log of a sandbox from a cursor, or from the beginning.
    pub fn logs(&self, id: &SandboxId, cursor: Option<&str>) -> Result<LogFollower, Error> {
        LogFollower::new(self.execs_of(id)?, cursor)
    }
}
