//! Age of the oldest acknowledged change that is not on the disk yet.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::lock;

/// Tracks the oldest change that a power failure could still undo. Shared by the code that makes changes, the task that
/// syncs them and the metric that reports the age.
#[derive(Debug, Clone, Default)]
pub struct Unsynced(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    /// Time of the oldest change that no running sync covers.
    waiting: Option<Instant>,
    /// Time of the oldest change that the running sync covers.
    syncing: Option<Instant>,
}

impl Unsynced {
    fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.0)
    }

    /// Records a change. Returns true if it is the first one that waits for the next sync.
    pub fn note(&self) -> bool {
        let mut times = self.times();
        let first = times.waiting.is_none();
        times.waiting.get_or_insert_with(Instant::now);
        first
    }

    /// Marks the start of a sync, which covers all changes recorded so far.
    pub fn begin(&self) {
        let mut times = self.times();
        times.syncing = times.syncing.or(times.waiting);
        times.waiting = None;
    }

    /// Marks the end of the sync. After a failure, its changes wait for the next one.
    pub fn end(&self, is_synced: bool) {
        let mut times = self.times();
        let covered = times.syncing.take();
        if !is_synced {
            times.waiting = covered.or(times.waiting);
        }
    }

    /// Age of the oldest change that is not on the disk. Zero if there is none.
    pub fn age(&self) -> Duration {
        let times = self.times();
        let oldest = times.syncing.or(times.waiting);
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_during_a_sync_waits_for_the_next_one() {
        let unsynced = Unsynced::default();
        assert!(unsynced.age().is_zero());
        assert!(unsynced.note());
        assert!(!unsynced.note());
        unsynced.begin();
        assert!(!unsynced.age().is_zero());
        assert!(unsynced.note());
        unsynced.end(true);
        assert!(!unsynced.age().is_zero());
        unsynced.begin();
        unsynced.end(true);
        assert!(unsynced.age().is_zero());
    }

    #[test]
    fn failed_sync_leaves_its_changes_unsynced() {
        let unsynced = Unsynced::default();
        unsynced.note();
        unsynced.begin();
        unsynced.end(false);
        assert!(!unsynced.age().is_zero());
        assert!(!unsynced.note());
    }
}
