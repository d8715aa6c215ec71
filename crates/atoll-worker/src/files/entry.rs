//! Conversion of the helper's messages into types of the model.

use atoll_jail::wire;
use atoll_model::{FileDetails, FileEntry, FileKind, LinkTarget};

pub(super) fn to_entry(entry: wire::Entry) -> FileEntry {
    let kind = kind(entry.mode);
    FileEntry {
        path: entry.path,
        kind,
        mode: entry.mode & 0o7777,
        uid: entry.uid,
        gid: entry.gid,
        size: entry.size,
        modified: entry.modified,
        link: (kind == FileKind::Link).then_some(entry.link),
    }
}

pub(super) fn to_details(described: wire::FileDetails) -> FileDetails {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let attributes = described.attributes.into_iter();
    FileDetails {
        entry: to_entry(described.entry),
        owner: described.owner,
        group: described.group,
        target: described.target.map(|target| LinkTarget {
            path: target.path,
            kind: kind(target.mode),
            mode: target.mode & 0o7777,
        }),
        attributes: attributes
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
    }
}

fn kind(mode: u32) -> FileKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => FileKind::File,
        rustix::fs::FileType::Directory => FileKind::Directory,
        rustix::fs::FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    }
}
