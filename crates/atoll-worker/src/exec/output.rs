//! Readers of a command's output log. A reader's only state is its offset, so a client that
//! reconnects continues where it was.

use std::sync::Arc;

use atoll_model::{Error, ExecStatus, OutputChunk, Stream};
use tokio::sync::watch;

use super::output_log::OutputLog;
use crate::error::internal;

/// Bytes of one chunk.
const MAX_CHUNK_BYTES: usize = 256 << 10;

/// Reads both streams from an offset.
#[derive(Debug)]
pub struct OutputReader {
    log: Arc<OutputLog>,
    state: watch::Receiver<Progress>,
    growth: watch::Receiver<u64>,
    position: u64,
    /// Set when something was read for the first time: a reader that never reads exerts no
    /// backpressure.
    reader_id: Option<u64>,
    exit_reported: bool,
}

/// Whether a command has ended, and whether its output is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// Exit status; all output written before the end is in the log then.
    pub(crate) status: Option<ExecStatus>,
    /// When it ended, in microseconds since 1970; `None` if no server observed it.
    pub(crate) ended_at: Option<i64>,
    /// Its pipes are closed: no more output can come.
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

    /// Offset of the next byte.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Waits for the next chunk; `None` at the end of the output.
    pub async fn next(&mut self) -> Result<Option<OutputChunk>, Error> {
        loop {
            // Progress first: all output written before the end is in the log when the end is seen.
            let progress = *self.state.borrow_and_update();
            self.growth.borrow_and_update();
            let (start, end) = self.log.bounds();
            if self.position < start {
                let from = std::mem::replace(&mut self.position, start);
                self.report_position();
                return Ok(Some(OutputChunk::Gap { from, to: start }));
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
                    return Ok(Some(OutputChunk::Exit(status)));
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

    /// The next bytes of one stream; `None` if they were dropped meanwhile.
    fn read(&mut self) -> Result<Option<OutputChunk>, Error> {
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
        Ok(Some(OutputChunk::Data {
            stream,
            position,
            bytes,
        }))
    }

    /// Skips segments of the other stream.
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

/// One stream of output. It ends when the command has ended and its output until then was read;
/// descendants that still run may write for ever.
#[derive(Debug)]
pub struct StreamReader {
    reader: OutputReader,
    stream: Stream,
    /// Bytes that were read and not returned yet.
    unread: Vec<u8>,
    /// Bytes of both streams that were dropped before they were read.
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

    /// Bytes of both streams that were dropped before they were read.
    pub fn lost_bytes(&self) -> u64 {
        self.lost
    }

    /// Waits for bytes and returns their number; 0 at the end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        if self.unread.is_empty() {
            self.unread = self.next_bytes().await?;
        }
        let read = self.unread.len().min(buffer.len());
        buffer[..read].copy_from_slice(&self.unread[..read]);
        self.unread.drain(..read);
        Ok(read)
    }

    /// Waits for the next bytes of this stream; empty at the end.
    async fn next_bytes(&mut self) -> Result<Vec<u8>, Error> {
        while !self.reader.exit_reported {
            self.reader.skip_other_stream(self.stream)?;
            match self.reader.next().await? {
                Some(OutputChunk::Data { stream, bytes, .. }) if stream == self.stream => {
                    return Ok(bytes);
                }
                Some(OutputChunk::Gap { from, to }) => self.lost += to - from,
                Some(OutputChunk::Data { .. }) => {}
                Some(OutputChunk::Exit(_)) | None => break,
            }
        }
        Ok(Vec::new())
    }

    /// Reads to the end and keeps at most `limit` bytes; true if output is missing.
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
