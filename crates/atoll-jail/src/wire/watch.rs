//! Changes that a watching helper reports.

use super::wire;

/// One change below a watched directory. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchChange {
    /// An entry was created, linked, or moved here from outside of the directory.
    Create {
        /// The entry.
        path: Vec<u8>,
        /// Whether the entry is a directory.
        directory: bool,
    },
    /// A file's contents changed.
    Write {
        /// The file.
        path: Vec<u8>,
    },
    /// An entry was removed.
    Remove {
        /// Former path.
        path: Vec<u8>,
    },
    /// An entry was renamed within the directory; an existing target was replaced.
    Rename {
        /// Former path.
        from: Vec<u8>,
        /// New path, even if the old path was never reported.
        to: Vec<u8>,
    },
    /// Mode, owner, times or attributes changed.
    Chmod {
        /// The entry; empty for the directory itself.
        path: Vec<u8>,
    },
    /// Events were lost; the caller must read the directory again.
    Overflow,
    /// The limit of watched directories was reached; changes in further ones are not reported.
    Limit,
    /// The directory was removed, and the watch has ended.
    End,
    /// An entry was moved out of the directory.
    Away {
        /// Former path.
        path: Vec<u8>,
    },
}
wire!(enum WatchChange {
    0 => Create { path, directory },
    1 => Write { path },
    2 => Remove { path },
    3 => Rename { from, to },
    4 => Chmod { path },
    5 => Overflow,
    6 => Limit,
    7 => End,
    8 => Away { path },
});
