//! Detailed descriptions of a path, or of the entries below a directory.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Answer, At, Failed, attributes, entry};
use crate::inside::users::Names;
use crate::wire::{Failure, FileDetails, FromHelper, Target};

/// Bytes of descriptions in one message.
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

    /// Describes the entries below a directory, parents before children, sorted by name; true if the list is incomplete.
    /// Only at the top a link is followed.
    pub(super) fn below(&self, top: &Path, depth: u32, limit: u32) -> Result<bool, Failed> {
        if !fs::metadata(top).at(top)?.is_dir() {
            return Err(Failed::new(Failure::NotADirectory, top));
        }
        let (mut sent, mut bytes, mut batch) = (0, 0, Vec::new());
        // Stack of paths to describe.
        let mut waiting = Vec::new();
        enter(&mut waiting, top, Path::new(""), 1).at(top)?;
        while let Some((name, level)) = waiting.pop() {
            let path = top.join(&name);
            // The entry may have been removed meanwhile.
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
                // Unreadable directories are described and not entered.
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

/// Pushes the entries of a directory on the stack.
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

/// Approximate size in a message, in bytes.
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
