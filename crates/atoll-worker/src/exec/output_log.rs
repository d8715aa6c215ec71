//! What a command wrote, kept for whoever asks later.
//!
//! Bytes go from the pipe into `ID.log` by `splice`: at any moment a byte is in the pipe or in the file,
//! never only in our memory, so killing us loses none. `ID.index` says which stream they came from: a
//! number each time the stream changes, written *before* the bytes, so that the last one always reaches
//! to the end of the file. Positions are offsets of the file and count both streams together.
//!
//! Only the last part is kept (the window, which a [`Budget`] gives it): what is older is punched out of the file, whose length
//! goes on growing. Neither file is made before there is something to write.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::Stream;
use rustix::fs::FallocateFlags;
use rustix::pipe::SpliceFlags;
use tokio::sync::{Notify, watch};

use super::budget::Budget;

/// Old bytes are given up in pieces of at least this size.
const PUNCH_BYTES: u64 = 1 << 20;
/// What may still arrive when the window is full: two pipes' contents.
const PIPE_HEADROOM: u64 = 256 << 10;
/// Changes of stream that are kept.
const MAX_INDEX_ENTRIES: u64 = 1 << 20;
/// How long readers have to come back after their server was killed, where a log is full.
const READER_GRACE: Duration = Duration::from_secs(5);
const ENTRY_BYTES: u64 = size_of::<u64>() as u64;
const PAGE_BYTES: u64 = 4096;

/// The log of one command.
#[derive(Debug)]
pub(crate) struct OutputLog {
    /// Where its files are, but for what tells them apart.
    stem: PathBuf,
    inner: Mutex<Inner>,
    readers: Mutex<Readers>,
    /// The end, for those who wait for more.
    end_changed: watch::Sender<u64>,
    /// A reader got on.
    pub(super) reader_moved: Notify,
    /// A reader that takes nothing for so long does not hold the command back any more.
    reader_timeout: Duration,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Inner {
    files: Option<Arc<Files>>,
    /// There may be files, or one of them.
    has_files: bool,
    /// The first byte that is kept.
    start: u64,
    end: u64,
    /// The first entry of the index that is kept.
    first_entry: u64,
    /// How many entry_count there are, those given up included.
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
    /// Where each reader is, and when it last got there.
    positions: HashMap<u64, (u64, Instant)>,
    /// Until when readers may come back that another server had: they may be anywhere in what is kept.
    grace_until: Option<Instant>,
}

/// What became of an attempt to take bytes out of a pipe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SpliceResult {
    Moved,
    /// There is nothing in it now.
    Empty,
    /// Nor will there ever be.
    Closed,
}

/// Whether there is room for more.
pub(crate) enum Backpressure {
    None,
    /// A reader is far behind; it has until then.
    Until(Instant),
}

/// Bytes of one stream that lie together.
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

    /// The log that somebody else began.
    pub(crate) fn open(stem: PathBuf) -> io::Result<Self> {
        let files = match Files::open(&stem, false) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // One that was killed between the two left the first.
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
        // What was given up is a hole; its end is where a page begins.
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

    /// Waits so long for a reader that takes nothing.
    pub(crate) fn with_reader_timeout(mut self, reader_timeout: Duration) -> Self {
        self.reader_timeout = reader_timeout;
        self
    }

    /// Readers of the server before may come back: what they have not read is not given up before the first of them did, or had
    /// its time.
    pub(crate) fn with_reader_grace(self) -> Self {
        self.readers().grace_until = Some(Instant::now() + READER_GRACE);
        self
    }

    /// Takes no more than this has left.
    pub(crate) fn with_budget(mut self, budget: &Arc<Budget>) -> Self {
        let retained = self.inner().retained_bytes();
        self.budget.release(retained);
        self.budget = Arc::clone(budget);
        self.budget.add(retained);
        self
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what is in the pipe, at max so many bytes, to the end of the log.
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

    /// Whether the command may go on writing: a reader that is attached and reads holds it back, one
    /// that does not read is let go.
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

    /// Gives up what was written but for the last of it, for others that have no room; false if it has nothing to give.
    pub(super) fn drop_old_output(&self) -> bool {
        let mut inner = self.inner();
        let end = inner.end;
        // What cannot be given up takes its room as before.
        let dropped = inner
            .punch_before(end / PAGE_BYTES * PAGE_BYTES)
            .unwrap_or(0);
        self.budget.release(dropped);
        dropped > 0
    }

    /// Removes its files, if there may be any.
    pub(crate) fn remove(&self) {
        if self.inner().has_files {
            for kind in ["log", "index"] {
                let _ = std::fs::remove_file(self.stem.with_extension(kind));
            }
        }
    }

    /// The first byte that is kept, and the end.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.start, inner.end)
    }

    /// Told whenever there is more.
    pub(crate) fn subscribe_end(&self) -> watch::Receiver<u64> {
        self.end_changed.subscribe()
    }

    /// The piece a position lies in; it must be inside the bounds.
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

    /// Reads at a position; fewer bytes than poll_fds for only at the end.
    pub(crate) fn read(&self, position: u64, into: &mut [u8]) -> io::Result<usize> {
        let Some(files) = self.inner().files.clone() else {
            return Ok(0);
        };
        // Not under the lock: the command may go on writing.
        files.log.read_at(into, position)
    }

    /// Bytes of one stream that lie together at a position inside the bounds, at max so many; nothing if they were
    /// given up meanwhile.
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
        // What was given up while we read it reads as zeros.
        let gone = self.bounds().0 > position || bytes.is_empty();
        Ok((!gone).then_some((segment.stream, bytes)))
    }

    /// A reader has come to a position (its number, if it is known).
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

    /// A reader has gone.
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
    /// The end as it counts for readers that must not be `far` behind: who is as many changes of stream behind as are
    /// kept is so far behind, however few bytes that are.
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

    /// How much is kept.
    fn retained_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Gives up what is before the window, or before the last changes of stream that are kept; how much that was.
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

    /// Gives up what is before the beginning of a page; how much that was.
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

/// Gives up a file's contents before an offset.
fn punch(file: &File, before: u64) -> io::Result<()> {
    if before == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, 0, before) {
        // A file system without holes keeps everything.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The number of the last entry at or before a position.
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

/// What there is in a pipe or terminal.
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
