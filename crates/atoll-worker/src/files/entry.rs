//! Conversion of the helper's messages into types of the model.

use atoll_jail::wire;
use atoll_model::{Described, Entry, EntryKind, Target};

pub(super) fn entry(entry: wire::Entry) -> Entry {
    let kind = kind(entry.mode);
    Entry {
        path: entry.path,
        kind,
        mode: entry.mode & 0o7777,
        uid: entry.uid,
        gid: entry.gid,
        size: entry.size,
        modified: entry.modified,
        link: (kind == EntryKind::Link).then_some(entry.link),
    }
}

pub(super) fn described(described: wire::FileDetails) -> Described {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let attributes = described.attributes.into_iter();
    Described {
        entry: entry(described.entry),
        owner: described.owner,
        group: described.group,
        target: described.target.map(|target| Target {
            path: target.path,
            kind: kind(target.mode),
            mode: target.mode & 0o7777,
        }),
        attributes: attributes
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
    }
}

fn kind(mode: u32) -> EntryKind {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => EntryKind::File,
        rustix::fs::FileType::Directory => EntryKind::Directory,
        rustix::fs::FileType::Symlink => EntryKind::Link,
        _ => EntryKind::Other,
    }
}
