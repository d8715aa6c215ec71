//! Detailed descriptions of a path, or of the entries below a directory.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Answer, At, Failed, attributes, entry};
use crate::inside::users::Names;
use crate::wire::{Failure, FileDetails, FromHelper, Target};

/// Bytes sent together.
const TOGETHER: usize = 6 * 1024;

/// Describes files for one call.
pub(super) struct Describer<'a> {
    pub(super) names: Names,
    /// Prefix of the attributes to report.
    pub(super) prefix: &'a [u8],
    pub(super) answer: &'a Answer,
}

impl Describer<'_> {
    /// Describes one path.
    pub(super) fn one(&self, path: &Path) -> Result<(), Failed> {
        let found = fs::symlink_metadata(path).at(path)?;
        self.say(vec![self.describe(path, &found)])
    }

    /// Describes what is below a directory, each directory before what is in it, names in order; true if something
    /// was left out. Links are not followed, but for the top.
    pub(super) fn below(&self, top: &Path, depth: u32, limit: u32) -> Result<bool, Failed> {
        if !fs::metadata(top).at(top)?.is_dir() {
            return Err(Failed::new(Failure::NotADirectory, top));
        }
        let (mut sent, mut bytes, mut batch) = (0, 0, Vec::new());
        // What is still to be described; the last is next.
        let mut waiting = Vec::new();
        enter(&mut waiting, top, Path::new(""), 1).at(top)?;
        while let Some((name, level)) = waiting.pop() {
            let path = top.join(&name);
            // It may have gone in the meantime.
            let Ok(found) = fs::symlink_metadata(&path) else {
                continue;
            };
            if sent == limit {
                self.say(batch)?;
                return Ok(true);
            }
            sent += 1;
            let described = self.describe(&path, &found);
            bytes += size(&described);
            batch.push(described);
            if bytes > TOGETHER {
                self.say(std::mem::take(&mut batch))?;
                bytes = 0;
            }
            if found.is_dir() && level < depth {
                // What cannot be read is described and not entered.
                let _ = enter(&mut waiting, &path, &name, level + 1);
            }
        }
        self.say(batch)?;
        Ok(false)
    }

    fn describe(&self, path: &Path, found: &fs::Metadata) -> FileDetails {
        FileDetails {
            entry: entry(path, path.as_os_str(), found),
            owner: self.names.user(found.uid()),
            group: self.names.group(found.gid()),
            target: found.is_symlink().then(|| target(path)).flatten(),
            attributes: attributes::read(path, self.prefix),
        }
    }

    fn say(&self, described: Vec<FileDetails>) -> Result<(), Failed> {
        let word = FromHelper::Described(described);
        self.answer.send(&word, &[]).at(Path::new(""))
    }
}

/// Puts what is in a directory before everything that waits.
fn enter(
    waiting: &mut Vec<(PathBuf, u32)>,
    directory: &Path,
    relative: &Path,
    level: u32,
) -> std::io::Result<()> {
    let entries = fs::read_dir(directory)?.flatten();
    let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    waiting.extend(names.into_iter().map(|name| (relative.join(name), level)));
    Ok(())
}

fn target(path: &Path) -> Option<Target> {
    let path = fs::canonicalize(path).ok()?;
    let mode = fs::metadata(&path).ok()?.mode();
    let path = path.into_os_string().into_vec();
    Some(Target { path, mode })
}

/// About what it takes in a message.
fn size(described: &FileDetails) -> usize {
    let target = described.target.as_ref();
    let attributes = described.attributes.iter();
    described.entry.path.len()
        + described.entry.link.len()
        + described.owner.len()
        + described.group.len()
        + target.map_or(0, |target| target.path.len())
        + attributes
            .map(|(name, value)| name.len() + value.len() + 8)
            .sum::<usize>()
        + 128
}
