//! File metadata in E2B's form.

use std::collections::BTreeMap;

use atoll_model::{FileDetails, FileKind};
use serde::Serialize;

use crate::e2b::envd::target::{clean_path, file_name};

/// Size of directories on file systems that report none.
const MIN_DIRECTORY_SIZE: u64 = 4096;

/// Metadata of one file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryInfo {
    name: String,
    /// Of the target of a symbolic link; `None` if the target does not exist.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    path: String,
    /// A string, because JSON numbers lose precision above 53 bits.
    size: String,
    /// Permission bits of the target of a symbolic link.
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl From<FileDetails> for EntryInfo {
    fn from(described: FileDetails) -> Self {
        let FileDetails {
            entry,
            owner,
            group,
            target,
            attributes,
        } = described;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let path = clean_path(&text(&entry.path));
        let is_link = entry.kind == FileKind::Link;
        let (kind, mode) = match &target {
            Some(target) => (target.kind, target.mode),
            None if is_link => (FileKind::Other, 0),
            None => (entry.kind, entry.mode),
        };
        let modified = jiff::Timestamp::from_nanosecond(i128::from(entry.modified));
        Self {
            name: file_name(&path).to_owned(),
            kind: match kind {
                FileKind::File => Some("FILE_TYPE_FILE"),
                FileKind::Directory => Some("FILE_TYPE_DIRECTORY"),
                FileKind::Link => Some("FILE_TYPE_SYMLINK"),
                FileKind::Other => None,
            },
            size: match entry.kind {
                FileKind::Directory if entry.size == 0 => MIN_DIRECTORY_SIZE,
                _ => entry.size,
            }
            .to_string(),
            mode: mode & 0o777,
            permissions: permissions(entry.kind, entry.mode),
            owner,
            group,
            modified_time: modified.unwrap_or_default().to_string(),
            symlink_target: is_link
                .then(|| target.map_or_else(|| path.clone(), |target| text(&target.path))),
            metadata: attributes,
            path,
        }
    }
}

/// Type and permissions as Go's `FileMode` prints them.
fn permissions(kind: FileKind, mode: u32) -> String {
    let mut word = String::new();
    match kind {
        FileKind::File => {}
        FileKind::Directory => word.push('d'),
        FileKind::Link => word.push('L'),
        FileKind::Other => word.push('?'),
    }
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if mode & bit != 0 {
            word.push(letter);
        }
    }
    if word.is_empty() {
        word.push('-');
    }
    for (shift, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        word.push(if mode & (1 << shift) == 0 {
            '-'
        } else {
            letter
        });
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_match_go_file_mode() {
        for (kind, mode, word) in [
            (FileKind::File, 0o644, "-rw-r--r--"),
            (FileKind::File, 0o4755, "urwxr-xr-x"),
            (FileKind::Directory, 0o755, "drwxr-xr-x"),
            (FileKind::Directory, 0o1777, "dtrwxrwxrwx"),
            (FileKind::Link, 0o777, "Lrwxrwxrwx"),
        ] {
            assert_eq!(permissions(kind, mode), word);
        }
    }
}
