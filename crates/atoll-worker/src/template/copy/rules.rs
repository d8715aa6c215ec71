//! What of a tree is copied, and what of it may be the host's own file.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::super::IDS;

/// A larger file is not searched for credentials: it is a cache or a bundle of certificates.
const MOST_SEARCHED: u64 = 1 << 20;

/// A smaller file under `edited` is copied although it could be linked: people edit scripts in place.
const LEAST_LINKED_EDITED: u64 = 1 << 20;

/// What of a tree is copied, and how.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::template) struct Rules {
    /// Leave out what users other than the owner and the group may not read.
    pub(in crate::template) public_only: bool,
    /// Leave out small files that carry a name or password in an address (`https://name:word@host`).
    pub(in crate::template) no_credentials: bool,
    /// Make hard links where possible.
    pub(in crate::template) link: bool,
    /// Do not walk into other file systems.
    pub(in crate::template) one_file_system: bool,
    /// A directory whose small files are copied in any case.
    pub(in crate::template) edited: Option<&'static str>,
    /// Names in the layer that are left out; `*` at the end stands for any rest.
    pub(in crate::template) excluded: &'static [&'static str],
    /// Who owns the copy, if not who owns the original.
    pub(in crate::template) owner: Option<(u32, u32)>,
    /// A directory that is left out, by device and inode.
    pub(in crate::template) avoid: (u64, u64),
}

impl Rules {
    /// Whether an entry is left out, by what can be seen from outside.
    pub(super) fn leaves_out(&self, stat: &Stat, at: &[u8]) -> bool {
        let private = self.public_only
            && match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => stat.st_mode & 0o005 != 0o005,
                FileType::RegularFile => stat.st_mode & 0o004 == 0,
                _ => false,
            };
        private || is_listed(at, self.excluded) || (stat.st_dev, stat.st_ino) == self.avoid
    }

    /// Whether a file is left out for what is in it.
    pub(super) fn hides(&self, file: &File, size: u64) -> std::io::Result<bool> {
        Ok(self.no_credentials && size <= MOST_SEARCHED && carries_credentials(file)?)
    }

    /// Whether a hard link to a symlink is as good as a copy, which it is for a layer on `device`: it cannot be changed in
    /// place.
    pub(super) fn shares_symlink(&self, stat: &Stat, device: u64) -> bool {
        self.link
            && self.owner.is_none()
            && stat.st_dev == device
            && stat.st_uid == 0
            && stat.st_gid < IDS
    }

    /// Whether a hard link to a file is: only root changes it, by replacing it, and it carries nothing that a layer may not
    /// have.
    pub(super) fn shares_file(&self, stat: &Stat, file: &File, at: &[u8], device: u64) -> bool {
        let edited = self.edited.is_some_and(|directory| {
            at.starts_with(directory.as_bytes()) && stat.st_size < LEAST_LINKED_EDITED as i64
        });
        self.shares_symlink(stat, device)
            && stat.st_mode & 0o022 == 0
            && !edited
            && only_security_attributes(file)
    }
}

/// Whether `name` is one of `patterns`.
pub(in crate::template) fn is_listed(name: &[u8], patterns: &[&str]) -> bool {
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

/// Whether there is an address with a user part in the file.
fn carries_credentials(file: &File) -> std::io::Result<bool> {
    let mut text = Vec::new();
    file.take(MOST_SEARCHED).read_to_end(&mut text)?;
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
