//! A command's standard input, written by byte offset, so that a caller that lost its connection
//! can continue.
//!
//! Input is appended to a file, whose length is the number of accepted bytes, and spliced from
//! there into the pipe. The number of delivered bytes is the file offset, which belongs to the open
//! file description: the keeper holds the same one, so after a kill the next server continues at
//! the exact byte.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_model::{Code, Error};
use rustix::pipe::SpliceFlags;
use tokio::io::Interest;
use tokio::sync::Notify;

use crate::error::internal;
use crate::keeper::register_fd;
use crate::sync::lock;
use crate::syncer::create_private;

/// Extensions of its files: accepted bytes, and a marker that stdin was closed.
const EXTENSIONS: [&str; 2] = ["in", "closed"];

/// Accepted bytes that the command has not read yet.
const MAX_PENDING_BYTES: u64 = 4 << 20;

/// The host's side of a standard input.
#[derive(Debug)]
pub(crate) struct StdinQueue {
    state: Mutex<State>,
    stem: PathBuf,
    /// Bytes were accepted, or stdin was closed.
    data_added: Notify,
    /// The command read some bytes, or stopped reading.
    data_read: Notify,
}

#[derive(Debug)]
struct State {
    file: Arc<File>,
    length: u64,
    closed: bool,
    /// The command closed its end, or has ended.
    reader_gone: bool,
}

fn open_file(stem: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(stem.with_extension("in"))
}

impl StdinQueue {
    /// The queue of a new command.
    pub(crate) fn new(stem: PathBuf) -> io::Result<Self> {
        let file = open_file(&stem)?;
        Ok(Self::from_parts(stem, file, 0, false))
    }

    /// The queue of an adopted command, from the open file that the keeper held.
    pub(crate) fn open(stem: PathBuf, file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        let length = file.metadata()?.len();
        let closed = stem.with_extension("closed").exists();
        Ok(Self::from_parts(stem, file, length, closed))
    }

    fn from_parts(stem: PathBuf, file: File, length: u64, closed: bool) -> Self {
        Self {
            state: Mutex::new(State {
                file: Arc::new(file),
                length,
                closed,
                reader_gone: false,
            }),
            stem,
            data_added: Notify::new(),
            data_read: Notify::new(),
        }
    }

    /// Drops the queue after the command has ended; further writes fail.
    pub(crate) fn discard(&self) {
        let mut state = self.state();
        state.reader_gone = true;
        // The keeper may still have the file open: free its blocks.
        let _ = state.file.set_len(0);
        Self::remove_files(&self.stem);
        self.data_read.notify_one();
    }

    /// Removes files of commands that do not run: an earlier server may have been killed before it
    /// removed them.
    pub(crate) fn remove_stale(directory: &Path, running: &HashSet<&str>) {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let part = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_owned);
            let (Some(id), Some(kind)) = (part(path.file_stem()), part(path.extension())) else {
                continue;
            };
            if EXTENSIONS.contains(&kind.as_str()) && !running.contains(id.as_str()) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Removes the files of one command.
    pub(crate) fn remove_files(stem: &Path) {
        for kind in EXTENSIONS {
            let _ = std::fs::remove_file(stem.with_extension(kind));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The open file, to be held by the keeper.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.state().file)
    }

    /// Bytes accepted so far.
    pub(crate) fn accepted_bytes(&self) -> u64 {
        self.state().length
    }

    /// Accepts bytes at an offset and returns the offset after them, which is lower than offered if
    /// the queue is full. Bytes before the current end are skipped.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let mut state = self.state();
        if state.closed || state.reader_gone {
            return Err(
                Error::new(Code::StdinClosed, "the command's standard input is closed")
                    .detail("position", state.length.to_string()),
            );
        }
        let Some(repeated) = state.length.checked_sub(offset) else {
            return Err(Error::invalid(
                "offset",
                format!(
                    "offset {offset} is beyond the {} accepted bytes",
                    state.length
                ),
                "continue at the offset of the last response",
            )
            .detail("position", state.length.to_string()));
        };
        let new = bytes.get(repeated as usize..).unwrap_or_default();
        let failed = |error: io::Error| internal("store a command's input", &error);
        let delivered = rustix::fs::tell(&*state.file).map_err(|error| failed(error.into()))?;
        let room = MAX_PENDING_BYTES.saturating_sub(state.length - delivered) as usize;
        let new = &new[..new.len().min(room)];
        let at = state.length;
        state.file.write_all_at(new, at).map_err(failed)?;
        state.length += new.len() as u64;
        let length = state.length;
        drop(state);
        self.data_added.notify_one();
        Ok(length)
    }

    /// Appends all bytes, waiting while the queue is full.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        let mut position = self.accepted_bytes();
        loop {
            let now = self.write(position, bytes)?;
            bytes = &bytes[(now - position) as usize..];
            position = now;
            if bytes.is_empty() {
                return Ok(());
            }
            self.data_read.notified().await;
        }
    }

    /// Closes stdin after the accepted bytes.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let mut state = self.state();
        if !state.reader_gone {
            let marked = create_private(&self.stem.with_extension("closed"));
            marked.map_err(|error| internal("close a command's input", &error))?;
        }
        state.closed = true;
        drop(state);
        self.data_added.notify_one();
        Ok(())
    }

    /// Splices accepted bytes into the pipe until stdin is closed or the command stops reading.
    pub(crate) async fn splice_into(&self, pipe: OwnedFd) {
        let Ok(pipe) = register_fd(pipe, Interest::WRITABLE) else {
            return;
        };
        let mut punched = 0;
        loop {
            let (file, length, closed) = {
                let state = self.state();
                (Arc::clone(&state.file), state.length, state.closed)
            };
            let delivered = rustix::fs::tell(&*file).unwrap_or(length);
            if delivered >= length {
                if closed {
                    break;
                }
                self.data_added.notified().await;
                continue;
            }
            let Ok(mut ready) = pipe.writable().await else {
                break;
            };
            let max = (length - delivered) as usize;
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            // Without an offset splice advances the file offset.
            match rustix::pipe::splice(&*file, None, pipe.as_fd(), None, max, flags) {
                Ok(_) => {
                    punch_delivered(&file, &mut punched);
                    self.data_read.notify_one();
                }
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                // The reading end is closed.
                Err(_) => break,
            }
        }
        self.state().reader_gone = true;
        self.data_read.notify_one();
    }
}

/// Frees delivered bytes, except those that may still be in the pipe.
fn punch_delivered(file: &File, punched: &mut u64) {
    use rustix::fs::FallocateFlags;
    let delivered = rustix::fs::tell(file).unwrap_or(0);
    let before = delivered.saturating_sub(1 << 20) / 4096 * 4096;
    if before >= *punched + MAX_PENDING_BYTES {
        *punched = before;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(file, flags, 0, before);
    }
}
