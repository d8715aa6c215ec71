//! Options and events of a directory watch in a sandbox.

/// Options of a directory watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// Include all subdirectories, also those created later.
    pub recursive: bool,
    /// Maximum number of watched directories. Reaching it produces [`WatchEvent::Limit`].
    pub directories: u32,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            recursive: false,
            directories: 65_536,
        }
    }
}

impl WatchOptions {
    /// Watches a directory and all its subdirectories.
    pub fn recursive() -> Self {
        Self {
            recursive: true,
            ..Self::default()
        }
    }
}

/// A change below a watched directory. Paths are relative to that directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// An entry was created, linked or moved into the tree.
    Create {
        /// The new entry.
        path: Vec<u8>,
        /// Whether it is a directory.
        directory: bool,
    },
    /// The content of a file changed.
    Write {
        /// The file.
        path: Vec<u8>,
    },
    /// An entry was removed or moved out of the tree. For a directory, this includes all its contents.
    Remove {
        /// The former path.
        path: Vec<u8>,
        /// Whether the entry still exists outside the watched tree.
        moved_away: bool,
    },
    /// An entry was moved within the tree, with its contents. It replaced an entry that existed at the new path.
    Rename {
        /// The former path.
        from: Vec<u8>,
        /// The new path. No earlier event need have mentioned the former one.
        to: Vec<u8>,
    },
    /// Mode, owner, times or extended attributes changed.
    Chmod {
        /// The entry. Empty for the watched directory itself.
        path: Vec<u8>,
    },
    /// Events were lost: the caller must read the tree again. Later changes are reported.
    Overflow,
    /// The maximum number of directories is reached. Changes in the others are not reported.
    Limit,
    /// The watched directory was removed or moved. No event follows.
    End,
}
