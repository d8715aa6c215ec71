//! What a helper that watches a directory tells.

use super::wire;

/// One thing that happened below a watched directory. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchChange {
    /// Something is there that was not: it was made, linked or moved here.
    Create {
        /// Where.
        path: Vec<u8>,
        /// It is a directory.
        directory: bool,
    },
    /// A file's contents changed.
    Write {
        /// The file.
        path: Vec<u8>,
    },
    /// Something is no longer there: it was removed.
    Remove {
        /// Where it was.
        path: Vec<u8>,
    },
    /// Something moved within the directory, and replaced what was there.
    Rename {
        /// Where it was.
        from: Vec<u8>,
        /// New path, even if the old path was never reported.
        to: Vec<u8>,
    },
    /// Mode, owner, times or attributes changed.
    Chmod {
        /// Of what; empty for the directory itself.
        path: Vec<u8>,
    },
    /// Changes were missed: read the directory again.
    Overflow,
    /// There are more directories than may be watched; changes in the others are not reported.
    Limit,
    /// The directory itself is gone, and with it the watch.
    End,
    /// Something is no longer there: it was moved out of the directory.
    Away {
        /// Where it was.
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
