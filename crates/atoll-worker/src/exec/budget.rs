//! How much of the host's disk the output of a sandbox's commands may take. It is not on the sandbox's own, whose limit is for its
//! files: a full sandbox can still say so.
//!
//! A command has a window. All commands of a sandbox have so many windows together: where that is not enough the oldest that
//! have ended give way first, then those that run keep less. Where only the host's reserve is left, all of them do.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_model::Bytes;

use crate::storage::Space;

/// How much of a command's output is kept.
pub(crate) const DEFAULT_WINDOW: Bytes = Bytes(64 << 20);
/// The smallest window that there is sense in: more than two pipes hold.
pub(crate) const MIN_WINDOW: Bytes = Bytes(1 << 20);
/// How many windows the commands of a sandbox have together.
const WINDOWS: u64 = 16;
/// What part of its window a command has left when all of them are used.
const SHARE: u64 = 16;

/// What may be kept, as a runtime is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputRetention {
    /// Of each command.
    pub(crate) window: Bytes,
    /// What is the host's of the disk; nothing if that is a part of it.
    pub(crate) reserve: Option<Bytes>,
}

impl Default for OutputRetention {
    fn default() -> Self {
        Self {
            window: DEFAULT_WINDOW,
            reserve: None,
        }
    }
}

/// The budget of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    kept: OutputRetention,
    directory: PathBuf,
    used: AtomicU64,
    /// Only the reserve is left on the disk.
    scarce: AtomicBool,
    /// There is nothing of ended commands to give up any more.
    tight: AtomicBool,
}

impl Budget {
    /// For logs in this directory.
    pub(crate) fn new(kept: OutputRetention, directory: PathBuf) -> Self {
        Self {
            kept,
            directory,
            ..Self::default()
        }
    }

    fn most(&self) -> u64 {
        self.kept.window.0.saturating_mul(WINDOWS)
    }

    /// How much of a command's output is kept now.
    pub(super) fn window(&self) -> u64 {
        let Bytes(window) = self.kept.window;
        let least = MIN_WINDOW.0.min(window);
        if self.scarce.load(Ordering::Relaxed) {
            least
        } else if self.tight.load(Ordering::Relaxed) {
            (window / SHARE).max(least)
        } else {
            window
        }
    }

    pub(super) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Somebody has to give way.
    pub(super) fn presses(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.most() || self.scarce.load(Ordering::Relaxed)
    }

    /// Looks at what the disk has left.
    pub(super) fn look(&self) {
        let scarce = Space::of(&self.directory).is_ok_and(|space| {
            let reserve = self.kept.reserve.unwrap_or(space.reserve);
            // A file system in memory may not know its size.
            space.size > Bytes(0) && space.free <= reserve
        });
        self.scarce.store(scarce, Ordering::Relaxed);
    }

    /// All that have ended have given way.
    pub(super) fn settle(&self) {
        let used = self.used.load(Ordering::Relaxed);
        // Not back and forth at every byte.
        let most = if self.tight.load(Ordering::Relaxed) {
            self.most() / 8 * 7
        } else {
            self.most()
        };
        self.tight.store(used > most, Ordering::Relaxed);
    }

    /// It has to be looked at again whether there is more room.
    pub(super) fn is_tight(&self) -> bool {
        self.tight.load(Ordering::Relaxed)
    }
}
