//! Append-only log of a sandbox's command records: one line for each event of a command, prefixed
//! with its id. All commands share one file, because a file for each would dominate the cost of a
//! short command.
//!
//! A line that was cut off by a kill or a full disk is ignored; every write begins with a newline
//! of its own. Deleted commands are marked by a tombstone line, and the log is compacted when more
//! than half of it is dead.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};

use atoll_model::{Error, ExecId};

use crate::error::host_file_error;
use crate::sync::lock;

#[cfg(test)]
mod tests;

const FILE_NAME: &str = "records";
/// Written during a compaction, then renamed to [`FILE_NAME`].
const NEW_FILE_NAME: &str = "records.new";
/// Line of a deleted command; no JSON line equals it.
const TOMBSTONE: &[u8] = b"-";
/// Dead bytes below which the log is not compacted.
const MIN_COMPACTION_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(crate) struct RecordLog {
    directory: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Opened by the first write, closed when no command runs.
    file: Option<File>,
    /// Bytes in the file.
    total_bytes: usize,
    /// Bytes of lines about deleted commands.
    dead_bytes: usize,
}

/// Logs in use, by directory.
static OPEN_LOGS: LazyLock<Mutex<HashMap<PathBuf, Weak<RecordLog>>>> =
    LazyLock::new(Mutex::default);

fn open_logs() -> MutexGuard<'static, HashMap<PathBuf, Weak<RecordLog>>> {
    lock(&OPEN_LOGS)
}

impl RecordLog {
    /// The log of a directory. All users of a directory share one log, since a compaction replaces
    /// the file: tasks from before a stop may still write after a restart.
    pub(crate) fn open(directory: PathBuf) -> Arc<Self> {
        let mut open = open_logs();
        if let Some(log) = open.get(&directory).and_then(Weak::upgrade) {
            return log;
        }
        let log = Arc::new(Self::new(directory.clone()));
        open.insert(directory, Arc::downgrade(&log));
        log
    }

    fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            inner: Mutex::default(),
        }
    }

    /// The directory of the commands' files.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Appends a line about a command.
    pub(super) fn append(&self, id: &ExecId, line: &[u8]) -> Result<(), Error> {
        let mut text = Vec::with_capacity(line_bytes(id.as_str(), line));
        write_line(&mut text, id.as_str(), line);
        self.write(&mut self.inner(), &text)
    }

    fn write(&self, inner: &mut Inner, text: &[u8]) -> Result<(), Error> {
        let written = self.file(inner).and_then(|mut file| file.write_all(text));
        written.map_err(|error| host_file_error("write", &self.path(), &error))?;
        inner.total_bytes += text.len();
        Ok(())
    }

    /// The open file, opened for appending if needed.
    fn file<'a>(&self, inner: &'a mut Inner) -> io::Result<&'a File> {
        let open = inner.file.take();
        let open = open.map_or_else(|| create(OpenOptions::new().append(true), &self.path()), Ok);
        Ok(inner.file.insert(open?))
    }

    /// Closes the file, since no command runs.
    pub(super) fn close_when_idle(&self) {
        self.inner().file = None;
    }

    /// Deletes commands, given with their number of bytes in the log. If the write fails, a later
    /// server reads them again and deletes them then.
    pub(super) fn tombstone(&self, commands: &[(ExecId, usize)]) {
        let mut text = Vec::new();
        for (id, _) in commands {
            write_line(&mut text, id.as_str(), TOMBSTONE);
        }
        let mut inner = self.inner();
        if self.write(&mut inner, &text).is_err() {
            return;
        }
        let dead: usize = commands.iter().map(|(_, size)| size).sum();
        inner.dead_bytes += dead + text.len();
        if inner.dead_bytes > MIN_COMPACTION_BYTES && inner.dead_bytes > inner.total_bytes / 2 {
            // If it fails (disk full), it is retried after as many dead bytes again.
            inner.total_bytes = self.compact().unwrap_or(inner.total_bytes);
            inner.dead_bytes = 0;
            // The open file was replaced.
            inner.file = None;
        }
    }

    /// Rewrites the log without dead lines and returns its size.
    fn compact(&self) -> io::Result<usize> {
        let (text, old) = self.read_all()?;
        let mut live = Vec::with_capacity(text.len() / 2);
        for (id, line) in live_lines(&text) {
            write_line(&mut live, id, line);
        }
        let new = self.directory.join(NEW_FILE_NAME);
        let written = create(OpenOptions::new().write(true).truncate(true), &new)
            .and_then(|mut file| file.write_all(&live))
            .and_then(|()| fs::rename(&new, self.path()));
        if let Err(error) = written {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        for path in old {
            let _ = fs::remove_file(path);
        }
        Ok(live.len())
    }

    /// All live lines, in write order.
    pub(super) fn read(&self) -> Result<Lines, Error> {
        let mut inner = self.inner();
        let text = self.read_all();
        let (text, _) = text.map_err(|error| host_file_error("read", &self.path(), &error))?;
        let alive = live_lines(&text).map(|(id, line)| line_bytes(id, line));
        let alive: usize = alive.sum();
        inner.total_bytes = text.len();
        inner.dead_bytes = inner.total_bytes.saturating_sub(alive);
        Ok(Lines(text))
    }

    /// The raw log, and the files of earlier versions, one for each command, whose lines it
    /// includes.
    fn read_all(&self) -> io::Result<(Vec<u8>, Vec<PathBuf>)> {
        let (mut text, mut old) = (Vec::new(), Vec::new());
        // No directory: no command was ever started.
        let entries = none_if_missing(fs::read_dir(&self.directory))?;
        for entry in entries.into_iter().flatten() {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str());
            let Some(id) = id.filter(|_| path.extension().is_some_and(|kind| kind == "json"))
            else {
                continue;
            };
            // Unreadable files stay.
            if let Ok(lines) = fs::read(&path) {
                for line in lines.split(|byte| *byte == b'\n') {
                    write_line(&mut text, id, line);
                }
                old.push(path);
            }
        }
        text.extend(none_if_missing(fs::read(self.path()))?.unwrap_or_default());
        Ok((text, old))
    }
}

impl Drop for RecordLog {
    fn drop(&mut self) {
        let mut open = open_logs();
        // A new log of the directory may have been opened meanwhile.
        if open
            .get(&self.directory)
            .is_some_and(|log| log.strong_count() == 0)
        {
            open.remove(&self.directory);
        }
    }
}

/// Contents of a record log.
pub(super) struct Lines(Vec<u8>);

impl Lines {
    /// Live lines with their command ids; some may be cut off.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        live_lines(&self.0)
    }
}

/// Bytes of a line in the log.
pub(super) fn line_bytes(id: &str, line: &[u8]) -> usize {
    id.len() + line.len() + 3
}

/// Starts with a newline, in case the previous write was cut off.
fn write_line(text: &mut Vec<u8>, id: &str, line: &[u8]) {
    for part in [b"\n", id.as_bytes(), b" ", line, b"\n"] {
        text.extend_from_slice(part);
    }
}

fn live_lines(text: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    let lines = || {
        text.split(|byte| *byte == b'\n').filter_map(|line| {
            let space = line.iter().position(|byte| *byte == b' ')?;
            let (id, line) = line.split_at(space);
            Some((std::str::from_utf8(id).ok()?, &line[1..]))
        })
    };
    let deleted = lines().filter(|(_, line)| *line == TOMBSTONE);
    let deleted: HashSet<&str> = deleted.map(|(id, _)| id).collect();
    lines().filter(move |(id, _)| !deleted.contains(id))
}

fn none_if_missing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

fn create(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.create(true).mode(0o600).open(path)
}
