//! How much of the host's disk the output of a sandbox's commands may take. It is not on the sandbox's own, whose limit is for its
//! files: a full sandbox can still say so.
//!
//! A command has a window. All commands of a sandbox have so many windows together: where that is not enough the oldest that
//! have ended give way first, then those that run keep less. Where only the host's reserve is left, all of them do.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_model::Bytes;

use crate::storage::Space;

/// How much of a command's output is retention.
pub(crate) const DEFAULT_WINDOW: Bytes = Bytes(64 << 20);
/// The smallest window that there is sense in: more than two pipes hold.
pub(crate) const MIN_WINDOW: Bytes = Bytes(1 << 20);
/// How many windows the commands of a sandbox have together.
const WINDOWS_PER_SANDBOX: u64 = 16;
/// What part of its window a command has left when all of them are used.
const OVER_BUDGET_DIVISOR: u64 = 16;

/// What may be retention, as a runtime is told.
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
    retention: OutputRetention,
    directory: PathBuf,
    used: AtomicU64,
    /// Only the reserve is left on the disk.
    low_disk: AtomicBool,
    /// There is nothing of ended commands to give up any more.
    over_budget: AtomicBool,
}

impl Budget {
    /// For logs in this directory.
    pub(crate) fn new(retention: OutputRetention, directory: PathBuf) -> Self {
        Self {
            retention,
            directory,
            ..Self::default()
        }
    }

    fn max_bytes(&self) -> u64 {
        self.retention.window.0.saturating_mul(WINDOWS_PER_SANDBOX)
    }

    /// How much of a command's output is retention now.
    pub(super) fn window(&self) -> u64 {
        let Bytes(window) = self.retention.window;
        let min = MIN_WINDOW.0.min(window);
        if self.low_disk.load(Ordering::Relaxed) {
            min
        } else if self.over_budget.load(Ordering::Relaxed) {
            (window / OVER_BUDGET_DIVISOR).max(min)
        } else {
            window
        }
    }

    pub(super) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Somebody has to give way.
    pub(super) fn needs_space(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max_bytes()
            || self.low_disk.load(Ordering::Relaxed)
    }

    /// Looks at what the disk has left.
    pub(super) fn refresh_disk_space(&self) {
        let low_disk = Space::of(&self.directory).is_ok_and(|space| {
            let reserve = self.retention.reserve.unwrap_or(space.reserve);
            // A file system in memory may not know its size.
            space.size > Bytes(0) && space.free <= reserve
        });
        self.low_disk.store(low_disk, Ordering::Relaxed);
    }

    /// All that have ended have given way.
    pub(super) fn update_pressure(&self) {
        let used = self.used.load(Ordering::Relaxed);
        // Not back and forth at every byte.
        let max = if self.over_budget.load(Ordering::Relaxed) {
            self.max_bytes() / 8 * 7
        } else {
            self.max_bytes()
        };
        self.over_budget.store(used > max, Ordering::Relaxed);
    }

    /// It has to be looked at again whether there is more room.
    pub(super) fn is_over_budget(&self) -> bool {
        self.over_budget.load(Ordering::Relaxed)
    }
}
