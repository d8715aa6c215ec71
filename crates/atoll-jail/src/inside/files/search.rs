//! Searches files by name and by content, with a time limit.

mod glob;

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Answer, At, Failed, entry};
use crate::wire::{Failure, FromHelper, SearchHit};
use glob::Glob;

/// Time limit of a search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Larger files are not searched.
const LARGEST: u64 = 64 << 20;
/// Maximum bytes of a line that are searched, and of a line that are returned.
const LONGEST_LINE: usize = 64 << 10;
const LONGEST_TOLD: usize = 256;
/// Bytes of matches in one message, which has at most 16 KiB.
const TOGETHER: usize = 6 << 10;

/// What to search for.
pub(super) struct Wanted<'a> {
    /// Pattern of names; empty for any.
    pub(super) name: &'a [u8],
    /// Text in lines; empty for a search by name only.
    pub(super) text: &'a [u8],
    /// Maximum number of matches.
    pub(super) limit: u32,
}

/// Reports the matches below a directory; true if there may be more.
pub(super) fn search(top: &Path, wanted: &Wanted<'_>, answer: &Answer) -> Result<bool, Failed> {
    let found = fs::metadata(top).at(top)?;
    if !found.is_dir() {
        return Err(Failed::new(Failure::NotADirectory, top));
    }
    let mut search = Search {
        glob: Glob::new(wanted.name),
        wanted,
        answer,
        until: Instant::now() + SEARCH_TIMEOUT,
        left: wanted.limit,
        batch: Vec::new(),
        bytes: 0,
    };
    let truncated = search.tree(top, found.dev())?;
    search.send(top)?;
    Ok(truncated)
}

struct Search<'a> {
    glob: Glob,
    wanted: &'a Wanted<'a>,
    answer: &'a Answer,
    until: Instant,
    left: u32,
    batch: Vec<SearchHit>,
    bytes: usize,
}

impl Search<'_> {
    /// Parents before children, sorted by name. Unreadable entries are skipped. Other file systems are not entered: files of
    /// `/proc` may be endless.
    fn tree(&mut self, top: &Path, device: u64) -> Result<bool, Failed> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(relative) = waiting.pop() {
            let directory = top.join(&relative);
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(_) if !relative.as_os_str().is_empty() => continue,
                Err(error) => return Err(error).at(&directory),
            };
            let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            names.sort_unstable();
            let mut below = Vec::new();
            for name in names {
                let (path, relative) = (directory.join(&name), relative.join(&name));
                let Ok(found) = fs::symlink_metadata(&path) else {
                    continue;
                };
                if self.one(&path, &relative, &found)? || Instant::now() > self.until {
                    return Ok(true);
                }
                if found.is_dir() && found.dev() == device {
                    below.push(relative);
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(false)
    }

    /// Searches one entry; true if the limit is reached.
    fn one(&mut self, path: &Path, relative: &Path, found: &fs::Metadata) -> Result<bool, Failed> {
        if !self.glob.matches(relative.as_os_str().as_bytes()) {
            return Ok(false);
        }
        if self.wanted.text.is_empty() {
            return self.tell(path, relative, found, 0, Vec::new());
        }
        if !found.is_file() || found.len() > LARGEST {
            return Ok(false);
        }
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        match opened {
            Ok(file) if file.metadata().is_ok_and(|found| found.is_file()) => {
                self.lines(path, relative, found, &file)
            }
            _ => Ok(false),
        }
    }

    fn lines(
        &mut self,
        path: &Path,
        relative: &Path,
        found: &fs::Metadata,
        file: &File,
    ) -> Result<bool, Failed> {
        let mut reader = BufReader::with_capacity(LONGEST_LINE, file);
        // A file with zero bytes is not text.
        if reader.fill_buf().is_ok_and(|first| first.contains(&0)) {
            return Ok(false);
        }
        let (mut number, mut line) = (0, Vec::new());
        while Instant::now() <= self.until {
            match read_line(&mut reader, &mut line) {
                Ok(true) => number += 1,
                Ok(false) | Err(_) => return Ok(false),
            }
            let text = self.wanted.text;
            let Some(at) = line.windows(text.len()).position(|part| part == text) else {
                continue;
            };
            // With the text before the match, as far as it fits.
            let begin = at.saturating_sub(LONGEST_TOLD / 2);
            let end = (begin + LONGEST_TOLD).min(line.len());
            let text = line[begin..end].to_vec();
            if self.tell(path, relative, found, number, text)? {
                return Ok(true);
            }
        }
        Ok(true)
    }

    fn tell(
        &mut self,
        path: &Path,
        relative: &Path,
        found: &fs::Metadata,
        line: u64,
        text: Vec<u8>,
    ) -> Result<bool, Failed> {
        if self.left == 0 {
            return Ok(true);
        }
        self.left -= 1;
        let entry = entry(path, relative.as_os_str(), found);
        self.bytes += entry.path.len() + entry.link.len() + text.len() + 80;
        self.batch.push(SearchHit { entry, line, text });
        if self.bytes > TOGETHER {
            self.send(path)?;
        }
        Ok(false)
    }

    fn send(&mut self, path: &Path) -> Result<(), Failed> {
        self.bytes = 0;
        let found = FromHelper::SearchHit(std::mem::take(&mut self.batch));
        self.answer.send(&found, &[]).at(path)
    }
}

/// Reads a line without its line feed, truncated if it is too long; false at the end of the file.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let some = reader.fill_buf()?;
        if some.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = some.iter().position(|byte| *byte == b'\n');
        let part = &some[..end.unwrap_or(some.len())];
        let room = LONGEST_LINE.saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(some.len(), |end| end + 1);
        reader.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}
