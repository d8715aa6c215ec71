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
const PIECE: u64 = 1 << 20;
/// What may still arrive when the window is full: two pipes' contents.
const REST: u64 = 256 << 10;
/// Changes of stream that are kept.
const CHANGES: u64 = 1 << 20;
/// How long readers have to come back after their server was killed, where a log is full.
const RETURN: Duration = Duration::from_secs(5);
const ENTRY: u64 = size_of::<u64>() as u64;
const PAGE: u64 = 4096;

/// The log of one command.
#[derive(Debug)]
pub(crate) struct OutputLog {
    /// Where its files are, but for what tells them apart.
    stem: PathBuf,
    inner: Mutex<Inner>,
    readers: Mutex<Readers>,
    /// The end, for those who wait for more.
    grown: watch::Sender<u64>,
    /// A reader got on.
    pub(super) moved: Notify,
    /// A reader that takes nothing for so long does not hold the command back any more.
    patience: Duration,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Inner {
    files: Option<Arc<Files>>,
    /// There may be files, or one of them.
    begun: bool,
    /// The first byte that is kept.
    start: u64,
    end: u64,
    /// The first entry of the index that is kept.
    first: u64,
    /// How many entries there are, those given up included.
    entries: u64,
    last: Option<Stream>,
}

#[derive(Debug)]
struct Files {
    log: File,
    index: File,
}

#[derive(Debug, Default)]
struct Readers {
    next: u64,
    /// Where each reader is, and when it last got there.
    at: HashMap<u64, (u64, Instant)>,
    /// Until when readers may come back that another server had: they may be anywhere in what is kept.
    expected: Option<Instant>,
}

/// What became of an attempt to take bytes out of a pipe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Some,
    /// There is nothing in it now.
    Nothing,
    /// Nor will there ever be.
    Closed,
}

/// Whether there is room for more.
pub(crate) enum Room {
    Yes,
    /// A reader is far behind; it has until then.
    Full(Instant),
}

/// Bytes of one stream that lie together.
pub(crate) struct Piece {
    pub(crate) stream: Stream,
    pub(crate) end: u64,
}

fn entry(stream: Stream, position: u64) -> [u8; ENTRY as usize] {
    (position << 1 | u64::from(stream == Stream::Stderr)).to_le_bytes()
}

fn read_entry(index: &File, number: u64) -> io::Result<(Stream, u64)> {
    let mut bytes = [0; ENTRY as usize];
    index.read_exact_at(&mut bytes, number * ENTRY)?;
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
                    begun: true,
                    ..Inner::default()
                };
                return Ok(Self::with(stem, inner));
            }
            Err(error) => return Err(error),
        };
        let end = files.log.metadata()?.len();
        let entries = files.index.metadata()?.len() / ENTRY;
        // What was given up is a hole; its end is where a page begins.
        let first_byte = |file: &File, length: u64| match rustix::fs::seek(
            file,
            rustix::fs::SeekFrom::Data(0),
        ) {
            Ok(found) => found,
            Err(_) => length,
        };
        let start = first_byte(&files.log, end);
        let hole = first_byte(&files.index, entries * ENTRY) / ENTRY;
        let first = find(&files.index, hole, entries, start)?;
        let last = match entries.checked_sub(1) {
            Some(last) => Some(read_entry(&files.index, last)?.0),
            None => None,
        };
        let inner = Inner {
            files: Some(Arc::new(files)),
            begun: true,
            start,
            end,
            first,
            entries,
            last,
        };
        let log = Self::with(stem, inner);
        log.budget.add(end - start);
        Ok(log)
    }

    fn with(stem: PathBuf, inner: Inner) -> Self {
        let grown = watch::Sender::new(inner.end);
        Self {
            stem,
            inner: Mutex::new(inner),
            readers: Mutex::default(),
            grown,
            moved: Notify::new(),
            patience: Duration::ZERO,
            budget: Arc::default(),
        }
    }

    /// Waits so long for a reader that takes nothing.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Readers of the server before may come back: what they have not read is not given up before the first of them did, or had
    /// its time.
    pub(crate) fn expecting_readers(self) -> Self {
        self.readers().expected = Some(Instant::now() + RETURN);
        self
    }

    /// Takes no more than this has left.
    pub(crate) fn within(mut self, budget: &Arc<Budget>) -> Self {
        let kept = self.inner().kept();
        self.budget.give_back(kept);
        self.budget = Arc::clone(budget);
        self.budget.add(kept);
        self
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what is in the pipe, at most so many bytes, to the end of the log.
    pub(crate) fn take(
        &self,
        stream: Stream,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> io::Result<Taken> {
        match look(pipe)? {
            Taken::Some => {}
            nothing => return Ok(nothing),
        }
        let mut inner = self.inner();
        let inner = &mut *inner;
        inner.begun = true;
        let files = match &inner.files {
            Some(files) => files,
            None => inner.files.insert(Arc::new(Files::open(&self.stem, true)?)),
        };
        if inner.last != Some(stream) {
            let at = inner.entries * ENTRY;
            files.index.write_all_at(&entry(stream, inner.end), at)?;
            inner.entries += 1;
            inner.last = Some(stream);
        }
        let mut offset = inner.end;
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let taken =
            match rustix::pipe::splice(pipe, None, &files.log, Some(&mut offset), most, flags) {
                Ok(0) => return Ok(Taken::Closed),
                Ok(taken) => taken as u64,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                    return Ok(Taken::Nothing);
                }
                Err(error) => return Err(error.into()),
            };
        self.budget.add(taken);
        if inner.end / PIECE != (inner.end + taken) / PIECE {
            self.budget.look();
        }
        inner.end += taken;
        let given_up = inner.give_up_old(self.budget.window());
        self.budget.give_back(given_up?);
        self.grown.send_replace(inner.end);
        Ok(Taken::Some)
    }

    /// Whether the command may go on writing: a reader that is attached and reads holds it back, one
    /// that does not read is let go.
    pub(crate) fn room(&self) -> Room {
        let far = self.budget.window() - REST;
        let (start, end) = {
            let inner = self.inner();
            (inner.start, inner.reckoned_end(far))
        };
        let mut readers = self.readers();
        let now = Instant::now();
        readers.expected = readers.expected.filter(|until| now < *until);
        readers
            .at
            .retain(|_, (position, since)| *position + far > end || now < *since + self.patience);
        let behind = readers
            .at
            .values()
            .filter(|(position, _)| *position + far <= end);
        let awaited = readers.expected.filter(|_| start + far <= end);
        match behind
            .map(|(_, since)| *since + self.patience)
            .chain(awaited)
            .min()
        {
            Some(until) => Room::Full(until),
            None => Room::Yes,
        }
    }

    /// Gives up what was written but for the last of it, for others that have no room; false if it has nothing to give.
    pub(super) fn give_way(&self) -> bool {
        let mut inner = self.inner();
        let end = inner.end;
        // What cannot be given up takes its room as before.
        let given_up = inner.give_up_before(end / PAGE * PAGE).unwrap_or(0);
        self.budget.give_back(given_up);
        given_up > 0
    }

    /// Removes its files, if there may be any.
    pub(crate) fn remove(&self) {
        if self.inner().begun {
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
    pub(crate) fn growth(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// The piece a position lies in; it must be inside the bounds.
    pub(crate) fn piece(&self, position: u64) -> io::Result<Piece> {
        let inner = self.inner();
        let Some(files) = &inner.files else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let number = find(&files.index, inner.first, inner.entries, position)?;
        let (stream, _) = read_entry(&files.index, number)?;
        let end = if number + 1 < inner.entries {
            read_entry(&files.index, number + 1)?.1
        } else {
            inner.end
        };
        Ok(Piece { stream, end })
    }

    /// Reads at a position; fewer bytes than asked for only at the end.
    pub(crate) fn read(&self, position: u64, into: &mut [u8]) -> io::Result<usize> {
        let Some(files) = self.inner().files.clone() else {
            return Ok(0);
        };
        // Not under the lock: the command may go on writing.
        files.log.read_at(into, position)
    }

    /// Bytes of one stream that lie together at a position inside the bounds, at most so many; nothing if they were
    /// given up meanwhile.
    pub(crate) fn part(&self, position: u64, most: usize) -> io::Result<Option<(Stream, Vec<u8>)>> {
        let piece = self.piece(position)?;
        let most = (piece.end.saturating_sub(position)).min(most as u64) as usize;
        let mut bytes = vec![0; most];
        let read = self.read(position, &mut bytes)?;
        bytes.truncate(read);
        // What was given up while we read it reads as zeros.
        let gone = self.bounds().0 > position || bytes.is_empty();
        Ok((!gone).then_some((piece.stream, bytes)))
    }

    /// A reader has come to a position (its number, if it is known).
    pub(crate) fn arrive(&self, reader: Option<u64>, position: u64) -> u64 {
        let number = {
            let mut readers = self.readers();
            let number = reader.unwrap_or_else(|| {
                readers.next += 1;
                readers.next
            });
            readers.at.insert(number, (position, Instant::now()));
            readers.expected = None;
            number
        };
        self.moved.notify_one();
        number
    }

    /// A reader has gone.
    pub(crate) fn depart(&self, reader: u64) {
        self.readers().at.remove(&reader);
        self.moved.notify_one();
    }
}

impl Drop for OutputLog {
    fn drop(&mut self) {
        self.budget.give_back(self.inner().kept());
    }
}

impl Inner {
    /// The end as it counts for readers that must not be `far` behind: who is as many changes of stream behind as are
    /// kept is so far behind, however few bytes that are.
    fn reckoned_end(&self, far: u64) -> u64 {
        let Some(files) = &self.files else {
            return self.end;
        };
        if self.entries - self.first <= CHANGES {
            return self.end;
        }
        let oldest = read_entry(&files.index, self.entries - CHANGES);
        oldest.map_or(self.end, |(_, oldest)| self.end.max(oldest + far))
    }

    /// How much is kept.
    fn kept(&self) -> u64 {
        self.end - self.start
    }

    /// Gives up what is before the window, or before the last changes of stream that are kept; how much that was.
    fn give_up_old(&mut self, window: u64) -> io::Result<u64> {
        let Some(files) = &self.files else {
            return Ok(0);
        };
        let mut keep = self.end.saturating_sub(window);
        if self.entries - self.first > CHANGES + CHANGES / 4 {
            keep = keep.max(read_entry(&files.index, self.entries - CHANGES)?.1);
        }
        let few = self.entries - self.first <= CHANGES + CHANGES / 4;
        let keep = keep / PAGE * PAGE;
        if few && keep < self.start + PIECE {
            return Ok(0);
        }
        self.give_up_before(keep)
    }

    /// Gives up what is before the beginning of a page; how much that was.
    fn give_up_before(&mut self, keep: u64) -> io::Result<u64> {
        let Some(files) = self.files.as_ref().filter(|_| keep > self.start) else {
            return Ok(0);
        };
        punch(&files.log, keep)?;
        let given_up = keep - self.start;
        self.start = keep;
        self.first = find(&files.index, self.first, self.entries, keep)?;
        punch(&files.index, self.first * ENTRY / PAGE * PAGE)?;
        Ok(given_up)
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
fn find(index: &File, first: u64, entries: u64, position: u64) -> io::Result<u64> {
    let (mut low, mut high) = (first, entries);
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
fn look(pipe: BorrowedFd<'_>) -> io::Result<Taken> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(&pipe, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut asked, Some(&now))?;
    let told = asked[0].revents();
    Ok(if told.contains(PollFlags::IN) {
        Taken::Some
    } else if told.contains(PollFlags::HUP) {
        Taken::Closed
    } else {
        Taken::Nothing
    })
}

#[cfg(test)]
mod tests;
