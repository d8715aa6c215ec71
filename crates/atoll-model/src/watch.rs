//! Watching a directory of a sandbox.

/// How a directory is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// Watch the directories below it too, and those that will be made.
    pub recursive: bool,
    /// At most so many directories; beyond, [`WatchEvent::Limit`] is told.
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
    /// A directory and all below it.
    pub fn recursive() -> Self {
        Self {
            recursive: true,
            ..Self::default()
        }
    }
}

/// One thing that happened below a watched directory. Paths are relative to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
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
    /// Something is no longer there: it was removed, or moved away. A directory takes with it all
    /// that was in it.
    Remove {
        /// Where it was.
        path: Vec<u8>,
        /// It was moved out of the directory, and is somewhere else.
        away: bool,
    },
    /// Something moved within the directory, with all that is in it, and replaced what was there.
    Rename {
        /// Where it was.
        from: Vec<u8>,
        /// Where it is, even if nothing was told of where it was.
        to: Vec<u8>,
    },
    /// Mode, owner, times or attributes changed.
    Chmod {
        /// Of what; empty for the directory itself.
        path: Vec<u8>,
    },
    /// More happened than could be told: look again at everything. What happens from now on is
    /// told.
    Overflow,
    /// There are more directories than may be watched; what happens in the others is not told.
    Limit,
    /// The directory was removed or moved away; nothing follows.
    End,
}
