//! Output of one command, kept on disk and read by byte offset.
//!
//! Bytes go from the pipe into `ID.log` by `splice`: at any moment a byte is in the pipe or in the
//! file, never only in memory, so a kill of the server loses none. `ID.index` has an entry for each
//! change of stream, written *before* the bytes, so that the last entry always reaches to the end
//! of the file. Offsets are file offsets and count both streams together.
//!
//! Only the last part is retained (the window that the [`Budget`] grants): older bytes are punched
//! out of the file, whose length keeps growing. The files are created with the first byte.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use atoll_model::Stream;
use rustix::fs::FallocateFlags;
use rustix::pipe::SpliceFlags;
use tokio::sync::{Notify, watch};

use super::budget::Budget;
use crate::sync::lock;

/// Old bytes are punched out in steps of at least this size.
const PUNCH_BYTES: u64 = 1 << 20;
/// Room in the window for what may still arrive: the contents of two pipes.
const PIPE_HEADROOM: u64 = 256 << 10;
/// Retained changes of stream.
const MAX_INDEX_ENTRIES: u64 = 1 << 20;
/// Time for readers to reconnect after a server restart, during which a full log drops nothing.
const READER_GRACE: Duration = Duration::from_secs(5);
const ENTRY_BYTES: u64 = size_of::<u64>() as u64;
const PAGE_BYTES: u64 = 4096;

/// Output log of one command, with the positions of its readers.
#[derive(Debug)]
pub(crate) struct OutputLog {
    /// Path of its files without the extension.
    stem: PathBuf,
    inner: Mutex<Inner>,
    readers: Mutex<Readers>,
    /// The end offset, for waiting readers.
    end_changed: watch::Sender<u64>,
    /// A reader advanced or left.
    pub(super) reader_moved: Notify,
    /// A reader that does not advance for this long exerts no backpressure any more.
    reader_timeout: Duration,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Inner {
    files: Option<Arc<Files>>,
    /// The files, or one of them, may exist.
    has_files: bool,
    /// Offset of the first retained byte.
    start: u64,
    end: u64,
    /// Number of the first retained index entry.
    first_entry: u64,
    /// Index entries written, dropped ones included.
    entry_count: u64,
    last_stream: Option<Stream>,
}

#[derive(Debug)]
struct Files {
    log: File,
    index: File,
}

#[derive(Debug, Default)]
struct Readers {
    next_id: u64,
    /// Offset of each reader, and when it got there.
    positions: HashMap<u64, (u64, Instant)>,
    /// Until when readers of an earlier server may reconnect, anywhere in the retained range.
    grace_until: Option<Instant>,
}

/// Result of one splice from a pipe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SpliceResult {
    Moved,
    /// The pipe is empty.
    Empty,
    /// The pipe is empty and has no writers.
    Closed,
}

/// Whether the command must wait for readers.
pub(crate) enum Backpressure {
    None,
    /// A reader lags behind; the command waits for it until then.
    Until(Instant),
}

/// Adjacent bytes of one stream: the range that ends at `end`.
pub(crate) struct Segment {
    pub(crate) stream: Stream,
    pub(crate) end: u64,
}

fn entry(stream: Stream, position: u64) -> [u8; ENTRY_BYTES as usize] {
    (position << 1 | u64::from(stream == Stream::Stderr)).to_le_bytes()
}

fn read_entry(index: &File, number: u64) -> io::Result<(Stream, u64)> {
    let mut bytes = [0; ENTRY_BYTES as usize];
    index.read_exact_at(&mut bytes, number * ENTRY_BYTES)?;
    let value = u64::from_le_bytes(bytes);
    let stream = if value & 1 == 0 {
        Stream::Stdout
    } else {
        Stream::Stderr
    };
    Ok((stream, value >> 1))
}

impl Files {
    fn open(stem: &Path, create: bool) -> io::Result<Self> {
        let open = |kind: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .open(stem.with_extension(kind))
        };
        Ok(Self {
            index: open("index")?,
            log: open("log")?,
        })
    }
}

impl OutputLog {
    /// The log of a new command.
    pub(crate) fn new(stem: PathBuf) -> Self {
        Self::with(stem, Inner::default())
    }

    /// The log of a command that an earlier server started.
    pub(crate) fn open(stem: PathBuf) -> io::Result<Self> {
        let files = match Files::open(&stem, false) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A server that was killed while creating the files left only the index.
                let inner = Inner {
                    has_files: true,
                    ..Inner::default()
                };
                return Ok(Self::with(stem, inner));
            }
            Err(error) => return Err(error),
        };
        let end = files.log.metadata()?.len();
        let entry_count = files.index.metadata()?.len() / ENTRY_BYTES;
        // Dropped bytes are a hole that ends at a page boundary.
        let first_byte = |file: &File, length: u64| match rustix::fs::seek(
            file,
            rustix::fs::SeekFrom::Data(0),
        ) {
            Ok(found) => found,
            Err(_) => length,
        };
        let start = first_byte(&files.log, end);
        let hole = first_byte(&files.index, entry_count * ENTRY_BYTES) / ENTRY_BYTES;
        let first_entry = find_entry(&files.index, hole, entry_count, start)?;
        let last_stream = match entry_count.checked_sub(1) {
            Some(last) => Some(read_entry(&files.index, last)?.0),
            None => None,
        };
        let inner = Inner {
            files: Some(Arc::new(files)),
            has_files: true,
            start,
            end,
            first_entry,
            entry_count,
            last_stream,
        };
        let log = Self::with(stem, inner);
        log.budget.add(end - start);
        Ok(log)
    }

    fn with(stem: PathBuf, inner: Inner) -> Self {
        let end_changed = watch::Sender::new(inner.end);
        Self {
            stem,
            inner: Mutex::new(inner),
            readers: Mutex::default(),
            end_changed,
            reader_moved: Notify::new(),
            reader_timeout: Duration::ZERO,
            budget: Arc::default(),
        }
    }

    /// Sets how long a reader that does not advance exerts backpressure.
    pub(crate) fn with_reader_timeout(mut self, reader_timeout: Duration) -> Self {
        self.reader_timeout = reader_timeout;
        self
    }

    /// Waits for readers of an earlier server: nothing unread is dropped before the first of them
    /// reconnects or [`READER_GRACE`] is over.
    pub(crate) fn with_reader_grace(self) -> Self {
        self.readers().grace_until = Some(Instant::now() + READER_GRACE);
        self
    }

    /// Accounts the log to a budget.
    pub(crate) fn with_budget(mut self, budget: &Arc<Budget>) -> Self {
        let retained = self.inner().retained_bytes();
        self.budget.release(retained);
        self.budget = Arc::clone(budget);
        self.budget.add(retained);
        self
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        lock(&self.readers)
    }

    /// Moves at most `max` bytes from the pipe to the end of the log.
    pub(crate) fn splice_from(
        &self,
        stream: Stream,
        pipe: BorrowedFd<'_>,
        max: usize,
    ) -> io::Result<SpliceResult> {
        match poll_pipe(pipe)? {
            SpliceResult::Moved => {}
            nothing => return Ok(nothing),
        }
        let mut inner = self.inner();
        let inner = &mut *inner;
        inner.has_files = true;
        let files = match &inner.files {
            Some(files) => files,
            None => inner.files.insert(Arc::new(Files::open(&self.stem, true)?)),
        };
        if inner.last_stream != Some(stream) {
            let at = inner.entry_count * ENTRY_BYTES;
            files.index.write_all_at(&entry(stream, inner.end), at)?;
            inner.entry_count += 1;
            inner.last_stream = Some(stream);
        }
        let mut offset = inner.end;
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let moved =
            match rustix::pipe::splice(pipe, None, &files.log, Some(&mut offset), max, flags) {
                Ok(0) => return Ok(SpliceResult::Closed),
                Ok(moved) => moved as u64,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    return Ok(SpliceResult::Empty);
                }
                Err(error) => return Err(error.into()),
            };
        self.budget.add(moved);
        if inner.end / PUNCH_BYTES != (inner.end + moved) / PUNCH_BYTES {
            self.budget.refresh_disk_space();
        }
        inner.end += moved;
        let dropped = inner.punch_before_window(self.budget.window());
        self.budget.release(dropped?);
        self.end_changed.send_replace(inner.end);
        Ok(SpliceResult::Moved)
    }

    /// Whether the command must wait: a lagging reader that still reads holds it back, one that
    /// stopped reading does not.
    pub(crate) fn backpressure(&self) -> Backpressure {
        let far = self.budget.window() - PIPE_HEADROOM;
        let (start, end) = {
            let inner = self.inner();
            (inner.start, inner.effective_end(far))
        };
        let mut readers = self.readers();
        let now = Instant::now();
        readers.grace_until = readers.grace_until.filter(|until| now < *until);
        readers.positions.retain(|_, (position, since)| {
            *position + far > end || now < *since + self.reader_timeout
        });
        let behind = readers
            .positions
            .values()
            .filter(|(position, _)| *position + far <= end);
        let awaited = readers.grace_until.filter(|_| start + far <= end);
        match behind
            .map(|(_, since)| *since + self.reader_timeout)
            .chain(awaited)
            .min()
        {
            Some(until) => Backpressure::Until(until),
            None => Backpressure::None,
        }
    }

    /// Drops all output but the last page, to free space for other commands; false if nothing was
    /// dropped.
    pub(super) fn drop_old_output(&self) -> bool {
        let mut inner = self.inner();
        let end = inner.end;
        // Blocks that cannot be freed stay accounted.
        let dropped = inner
            .punch_before(end / PAGE_BYTES * PAGE_BYTES)
            .unwrap_or(0);
        self.budget.release(dropped);
        dropped > 0
    }

    /// Removes its files.
    pub(crate) fn remove(&self) {
        if self.inner().has_files {
            for kind in ["log", "index"] {
                let _ = std::fs::remove_file(self.stem.with_extension(kind));
            }
        }
    }

    /// Offsets of the first retained byte and of the end.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.start, inner.end)
    }

    /// Notified of every new end offset.
    pub(crate) fn subscribe_end(&self) -> watch::Receiver<u64> {
        self.end_changed.subscribe()
    }

    /// The segment at an offset within the bounds.
    pub(crate) fn segment_at(&self, position: u64) -> io::Result<Segment> {
        let inner = self.inner();
        let Some(files) = &inner.files else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let number = find_entry(&files.index, inner.first_entry, inner.entry_count, position)?;
        let (stream, _) = read_entry(&files.index, number)?;
        let end = if number + 1 < inner.entry_count {
            read_entry(&files.index, number + 1)?.1
        } else {
            inner.end
        };
        Ok(Segment { stream, end })
    }

    /// Reads at an offset; fewer bytes than requested only at the end.
    pub(crate) fn read(&self, position: u64, into: &mut [u8]) -> io::Result<usize> {
        let Some(files) = self.inner().files.clone() else {
            return Ok(0);
        };
        // Outside the lock, so that the command can go on writing.
        files.log.read_at(into, position)
    }

    /// At most `max` adjacent bytes of one stream from an offset within the bounds; `None` if they
    /// were dropped meanwhile.
    pub(crate) fn read_segment(
        &self,
        position: u64,
        max: usize,
    ) -> io::Result<Option<(Stream, Vec<u8>)>> {
        let segment = self.segment_at(position)?;
        let max = (segment.end.saturating_sub(position)).min(max as u64) as usize;
        let mut bytes = vec![0; max];
        let read = self.read(position, &mut bytes)?;
        bytes.truncate(read);
        // Bytes that were punched out during the read are zeros.
        let gone = self.bounds().0 > position || bytes.is_empty();
        Ok((!gone).then_some((segment.stream, bytes)))
    }

    /// Records a reader's offset and returns its id; `None` registers a new reader.
    pub(crate) fn update_reader(&self, reader: Option<u64>, position: u64) -> u64 {
        let number = {
            let mut readers = self.readers();
            let number = reader.unwrap_or_else(|| {
                readers.next_id += 1;
                readers.next_id
            });
            readers.positions.insert(number, (position, Instant::now()));
            readers.grace_until = None;
            number
        };
        self.reader_moved.notify_one();
        number
    }

    /// Removes a reader, which then exerts no backpressure.
    pub(crate) fn remove_reader(&self, reader: u64) {
        self.readers().positions.remove(&reader);
        self.reader_moved.notify_one();
    }
}

impl Drop for OutputLog {
    fn drop(&mut self) {
        self.budget.release(self.inner().retained_bytes());
    }
}

impl Inner {
    /// The end offset for the computation of lag. A reader that is [`MAX_INDEX_ENTRIES`] changes of
    /// stream behind counts as `far` behind, however few bytes these are.
    fn effective_end(&self, far: u64) -> u64 {
        let Some(files) = &self.files else {
            return self.end;
        };
        if self.entry_count - self.first_entry <= MAX_INDEX_ENTRIES {
            return self.end;
        }
        let oldest = read_entry(&files.index, self.entry_count - MAX_INDEX_ENTRIES);
        oldest.map_or(self.end, |(_, oldest)| self.end.max(oldest + far))
    }

    /// Retained bytes.
    fn retained_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Drops bytes before the window and before the retained index entries; returns their number.
    fn punch_before_window(&mut self, window: u64) -> io::Result<u64> {
        let Some(files) = &self.files else {
            return Ok(0);
        };
        let mut keep = self.end.saturating_sub(window);
        if self.entry_count - self.first_entry > MAX_INDEX_ENTRIES + MAX_INDEX_ENTRIES / 4 {
            keep = keep.max(read_entry(&files.index, self.entry_count - MAX_INDEX_ENTRIES)?.1);
        }
        let few = self.entry_count - self.first_entry <= MAX_INDEX_ENTRIES + MAX_INDEX_ENTRIES / 4;
        let keep = keep / PAGE_BYTES * PAGE_BYTES;
        if few && keep < self.start + PUNCH_BYTES {
            return Ok(0);
        }
        self.punch_before(keep)
    }

    /// Drops bytes before a page boundary; returns their number.
    fn punch_before(&mut self, keep: u64) -> io::Result<u64> {
        let Some(files) = self.files.as_ref().filter(|_| keep > self.start) else {
            return Ok(0);
        };
        punch(&files.log, keep)?;
        let dropped = keep - self.start;
        self.start = keep;
        self.first_entry = find_entry(&files.index, self.first_entry, self.entry_count, keep)?;
        punch(
            &files.index,
            self.first_entry * ENTRY_BYTES / PAGE_BYTES * PAGE_BYTES,
        )?;
        Ok(dropped)
    }
}

/// Frees the blocks of a file before an offset.
fn punch(file: &File, before: u64) -> io::Result<()> {
    if before == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, 0, before) {
        // Without hole punching everything is retained.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Number of the last index entry at or before an offset (binary search).
fn find_entry(index: &File, first_entry: u64, entry_count: u64, position: u64) -> io::Result<u64> {
    let (mut low, mut high) = (first_entry, entry_count);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if read_entry(index, middle)?.1 <= position {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Polls a pipe or terminal for input.
fn poll_pipe(pipe: BorrowedFd<'_>) -> io::Result<SpliceResult> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut poll_fds = [PollFd::new(&pipe, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut poll_fds, Some(&now))?;
    let events = poll_fds[0].revents();
    Ok(if events.contains(PollFlags::IN) {
        SpliceResult::Moved
    } else if events.contains(PollFlags::HUP) {
        SpliceResult::Closed
    } else {
        SpliceResult::Empty
    })
}

#[cfg(test)]
mod tests;
