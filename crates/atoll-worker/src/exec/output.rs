//! Readers of a command's log: where they are is all they know, so one that comes back goes on where
//! it was.

use std::sync::Arc;

use atoll_model::{Chunk, Error, ExecStatus, Stream};
use tokio::sync::watch;

use super::output_log::OutputLog;
use crate::error::internal;

/// The most one chunk holds.
const MAX_CHUNK_BYTES: usize = 256 << 10;

/// A reader of both streams, from a position on.
#[derive(Debug)]
pub struct OutputReader {
    log: Arc<OutputLog>,
    state: watch::Receiver<Progress>,
    growth: watch::Receiver<u64>,
    position: u64,
    /// Known to the log once something was read: who only could read holds nobody back.
    reader_id: Option<u64>,
    exit_reported: bool,
}

/// How far a command has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// How it ended; everything it wrote until then is in the log.
    pub(crate) status: Option<ExecStatus>,
    /// When that was, if somebody saw it.
    pub(crate) ended_at: Option<i64>,
    /// Nobody can write any more.
    pub(crate) closed: bool,
}

impl OutputReader {
    pub(super) fn new(log: Arc<OutputLog>, state: watch::Receiver<Progress>, after: u64) -> Self {
        Self {
            growth: log.subscribe_end(),
            log,
            state,
            position: after,
            reader_id: None,
            exit_reported: false,
        }
    }

    /// The position of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What comes next; waits for it. Nothing when nothing can come any more.
    pub async fn next(&mut self) -> Result<Option<Chunk>, Error> {
        loop {
            // In this order: all that was written before the end is there when the end is exit_reported.
            let progress = *self.state.borrow_and_update();
            self.growth.borrow_and_update();
            let (start, end) = self.log.bounds();
            if self.position < start {
                let from = std::mem::replace(&mut self.position, start);
                self.report_position();
                return Ok(Some(Chunk::Gap { from, to: start }));
            }
            if self.position < end {
                if let Some(chunk) = self.read()? {
                    return Ok(Some(chunk));
                }
                continue;
            }
            match progress.status {
                Some(status) if !self.exit_reported => {
                    self.exit_reported = true;
                    return Ok(Some(Chunk::Exit(status)));
                }
                Some(_) if progress.closed => return Ok(None),
                _ => {}
            }
            tokio::select! {
                changed = self.growth.changed() => drop(changed),
                changed = self.state.changed() => {
                    if changed.is_err() && self.exit_reported {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The next bytes of one stream; nothing if they were given up meanwhile.
    fn read(&mut self) -> Result<Option<Chunk>, Error> {
        let failed = |error: std::io::Error| internal("read a command's log", &error);
        let position = self.position;
        let Some((stream, bytes)) = self
            .log
            .read_segment(position, MAX_CHUNK_BYTES)
            .map_err(failed)?
        else {
            return Ok(None);
        };
        self.position += bytes.len() as u64;
        self.report_position();
        Ok(Some(Chunk::Data {
            stream,
            position,
            bytes,
        }))
    }

    /// Goes past a segment of a stream nobody asks for.
    fn skip_other_stream(&mut self, stream: Stream) -> Result<(), Error> {
        loop {
            let (start, end) = self.log.bounds();
            if self.position < start || self.position >= end {
                return Ok(());
            }
            let segment = self.log.segment_at(self.position);
            let segment = segment.map_err(|error| internal("read a command's log", &error))?;
            if segment.stream == stream {
                return Ok(());
            }
            self.position = segment.end;
            self.report_position();
        }
    }

    fn report_position(&mut self) {
        self.reader_id = Some(self.log.update_reader(self.reader_id, self.position));
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        if let Some(reader_id) = self.reader_id {
            self.log.remove_reader(reader_id);
        }
    }
}

/// One stream of output. It ends when the command has ended and what was written until then is
/// read: children that live on may go on writing for ever.
#[derive(Debug)]
pub struct StreamReader {
    reader: OutputReader,
    stream: Stream,
    /// Bytes that did not fit.
    unread: Vec<u8>,
    /// How many bytes, of both streams, were given up before they were read.
    lost: u64,
}

impl StreamReader {
    pub(super) fn new(reader: OutputReader, stream: Stream) -> Self {
        Self {
            reader,
            stream,
            unread: Vec::new(),
            lost: 0,
        }
    }

    /// How many bytes, of both streams together, were not kept until they could be read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads some; 0 at the end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        if self.unread.is_empty() {
            self.unread = self.next_bytes().await?;
        }
        let read = self.unread.len().min(buffer.len());
        buffer[..read].copy_from_slice(&self.unread[..read]);
        self.unread.drain(..read);
        Ok(read)
    }

    /// The next bytes of this stream; none at the end.
    async fn next_bytes(&mut self) -> Result<Vec<u8>, Error> {
        while !self.reader.exit_reported {
            self.reader.skip_other_stream(self.stream)?;
            match self.reader.next().await? {
                Some(Chunk::Data { stream, bytes, .. }) if stream == self.stream => {
                    return Ok(bytes);
                }
                Some(Chunk::Gap { from, to }) => self.lost += to - from,
                Some(Chunk::Data { .. }) => {}
                Some(Chunk::Exit(_)) | None => break,
            }
        }
        Ok(Vec::new())
    }

    /// Reads to the end, keeping at most `limit` bytes; says whether more was left out.
    pub async fn collect(&mut self, into: &mut Vec<u8>, limit: usize) -> Result<bool, Error> {
        let mut truncated = false;
        loop {
            let bytes = if self.unread.is_empty() {
                self.next_bytes().await?
            } else {
                std::mem::take(&mut self.unread)
            };
            if bytes.is_empty() {
                return Ok(truncated || self.lost > 0);
            }
            let room = limit.saturating_sub(into.len()).min(bytes.len());
            into.extend_from_slice(&bytes[..room]);
            truncated |= room < bytes.len();
        }
    }
}
