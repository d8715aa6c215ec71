//! Rules of a copy: which entries are left out, and which may be hard links to the host's files.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::super::ID_COUNT;

/// Larger files are not searched for credentials: they are caches or certificate bundles.
const MAX_SEARCHED_BYTES: u64 = 1 << 20;

/// Smaller files below `edited` are copied even if they could be linked, because users edit scripts
/// in place.
const MIN_LINKED_EDITED_BYTES: u64 = 1 << 20;

/// Which entries of a tree are copied, and how.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::template) struct Rules {
    /// Leave out entries that only the owner or the group may read.
    pub(in crate::template) public_only: bool,
    /// Leave out small files that contain a URL with a user name or password
    /// (`https://name:word@host`).
    pub(in crate::template) no_credentials: bool,
    /// Create hard links where possible.
    pub(in crate::template) link: bool,
    /// Do not enter other file systems.
    pub(in crate::template) one_file_system: bool,
    /// Directory whose small files are never hard links.
    pub(in crate::template) edited: Option<&'static str>,
    /// Paths in the layer that are left out; `*` at the end matches any rest.
    pub(in crate::template) excluded: &'static [&'static str],
    /// Owner and group of the copy; `None` keeps the original's.
    pub(in crate::template) owner: Option<(u32, u32)>,
    /// Device and inode of a directory that is left out.
    pub(in crate::template) avoid: (u64, u64),
}

impl Rules {
    /// Whether an entry is left out because of its metadata or path.
    pub(super) fn excludes(&self, stat: &Stat, at: &[u8]) -> bool {
        let private = self.public_only
            && match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => stat.st_mode & 0o005 != 0o005,
                FileType::RegularFile => stat.st_mode & 0o004 == 0,
                _ => false,
            };
        private || matches_any(at, self.excluded) || (stat.st_dev, stat.st_ino) == self.avoid
    }

    /// Whether a file is left out because of its contents.
    pub(super) fn has_credentials(&self, file: &File, size: u64) -> std::io::Result<bool> {
        Ok(self.no_credentials && size <= MAX_SEARCHED_BYTES && contains_credentials(file)?)
    }

    /// Whether a symlink can be a hard link in a layer on `device`. A symlink cannot be changed in
    /// place.
    pub(super) fn can_link_symlink(&self, stat: &Stat, device: u64) -> bool {
        self.link
            && self.owner.is_none()
            && stat.st_dev == device
            && stat.st_uid == 0
            && stat.st_gid < ID_COUNT
    }

    /// Whether a file can be a hard link: only root can change it, it is replaced rather than
    /// edited, and it has no attribute that a layer must not have.
    pub(super) fn can_link_file(&self, stat: &Stat, file: &File, at: &[u8], device: u64) -> bool {
        let edited = self.edited.is_some_and(|directory| {
            at.starts_with(directory.as_bytes()) && stat.st_size < MIN_LINKED_EDITED_BYTES as i64
        });
        self.can_link_symlink(stat, device)
            && stat.st_mode & 0o022 == 0
            && !edited
            && only_security_attributes(file)
    }
}

/// Whether `name` matches one of `patterns`.
pub(in crate::template) fn matches_any(name: &[u8], patterns: &[&str]) -> bool {
    patterns
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(begin) => name
                .strip_prefix(begin.as_bytes())
                .is_some_and(|rest| !rest.contains(&b'/')),
            None => name == pattern.as_bytes(),
        })
}

fn only_security_attributes(file: &File) -> bool {
    let mut list = [0_u8; 1024];
    match rustix::fs::flistxattr(file, &mut list[..]) {
        Ok(length) => list[..length]
            .split(|byte| *byte == 0)
            .all(|name| name.is_empty() || name.starts_with(b"security.")),
        Err(error) => error == Errno::OPNOTSUPP,
    }
}

/// Whether the file contains a URL with a user part.
fn contains_credentials(file: &File) -> std::io::Result<bool> {
    let mut text = Vec::new();
    file.take(MAX_SEARCHED_BYTES).read_to_end(&mut text)?;
    rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Start(0))?;
    let ends = |byte: &u8| {
        byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'\'' | b'<' | b'>' | 0)
    };
    Ok(text.windows(3).enumerate().any(|(start, window)| {
        let host = &text[start + window.len()..];
        window == b"://"
            && host
                .split(ends)
                .next()
                .is_some_and(|host| host.contains(&b'@'))
    }))
}
