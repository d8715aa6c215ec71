//! Disk budget for the output logs of one sandbox. The logs are on the host's disk, not on the
//! sandbox's own, so a sandbox whose disk is full can still report errors.
//!
//! Each command has a window; all commands of a sandbox together have a fixed number of windows.
//! Over that, output of ended commands is dropped first, then running commands get smaller windows.
//! If the disk has only its reserve left, all windows are minimal.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atoll_model::Bytes;

use crate::storage::DiskSpace;

/// Retained output of each command, unless configured.
pub(crate) const DEFAULT_WINDOW: Bytes = Bytes(64 << 20);
/// The smallest window: more than two pipes hold.
pub(crate) const MIN_WINDOW: Bytes = Bytes(1 << 20);
/// Windows of all commands of a sandbox together.
const WINDOWS_PER_SANDBOX: u64 = 16;
/// Divisor of the window while the budget is exceeded.
const OVER_BUDGET_DIVISOR: u64 = 16;

/// Output retention of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputRetention {
    /// Retained bytes of each command.
    pub(crate) window: Bytes,
    /// Free disk space to leave to the host. `None`: a share of the disk's size.
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

/// Output of one sandbox on the disk, and the pressure on it.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    retention: OutputRetention,
    directory: PathBuf,
    used: AtomicU64,
    /// The disk has only its reserve left.
    low_disk: AtomicBool,
    /// The budget is exceeded although all ended commands have dropped their output.
    exceeded: AtomicBool,
}

impl Budget {
    /// A budget for logs in this directory.
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

    /// Window of each command, under the current pressure.
    pub(super) fn window(&self) -> u64 {
        let Bytes(window) = self.retention.window;
        let min = MIN_WINDOW.0.min(window);
        if self.low_disk.load(Ordering::Relaxed) {
            min
        } else if self.exceeded.load(Ordering::Relaxed) {
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

    /// Whether output must be dropped.
    pub(super) fn needs_space(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.max_bytes()
            || self.low_disk.load(Ordering::Relaxed)
    }

    /// Measures the free disk space.
    pub(super) fn refresh_disk_space(&self) {
        let low_disk = DiskSpace::for_path(&self.directory).is_ok_and(|space| {
            let reserve = self.retention.reserve.unwrap_or(space.reserve);
            // tmpfs without a size limit reports 0.
            space.size > Bytes(0) && space.free <= reserve
        });
        self.low_disk.store(low_disk, Ordering::Relaxed);
    }

    /// Decides on smaller windows, after ended commands have dropped their output.
    pub(super) fn update_pressure(&self) {
        let used = self.used.load(Ordering::Relaxed);
        // Hysteresis: the state ends at 7/8 of the budget.
        let max = if self.exceeded.load(Ordering::Relaxed) {
            self.max_bytes() / 8 * 7
        } else {
            self.max_bytes()
        };
        self.exceeded.store(used > max, Ordering::Relaxed);
    }

    /// Whether the budget was exceeded at the last update.
    pub(super) fn is_over_budget(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }
}
