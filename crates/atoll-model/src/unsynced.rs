//! Since when something is acknowledged that is not on the disk yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The age of the oldest change that a power cut could still undo. Shared by the code that makes changes, the task that
/// syncs them and the metric that shows the age.
#[derive(Debug, Clone, Default)]
pub struct Unsynced(Arc<Mutex<Times>>);

#[derive(Debug, Default)]
struct Times {
    /// The oldest change that no sync under way covers.
    waiting: Option<Instant>,
    /// The oldest change that the sync under way covers.
    syncing: Option<Instant>,
}

impl Unsynced {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a change; true if it is the first that waits for the next sync.
    pub fn note(&self) -> bool {
        let mut times = self.times();
        let first = times.waiting.is_none();
        times.waiting.get_or_insert_with(Instant::now);
        first
    }

    /// A sync begins, which covers every change noted so far.
    pub fn begin(&self) {
        let mut times = self.times();
        times.syncing = times.syncing.or(times.waiting);
        times.waiting = None;
    }

    /// The sync has ended. After a failure its changes wait for the next one.
    pub fn end(&self, is_synced: bool) {
        let mut times = self.times();
        let covered = times.syncing.take();
        if !is_synced {
            times.waiting = covered.or(times.waiting);
        }
    }

    /// The age of the oldest change that is not on the disk; zero if there is none.
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
    fn a_change_during_a_sync_waits_for_the_next() {
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
    fn a_failed_sync_leaves_its_changes_unsynced() {
        let unsynced = Unsynced::default();
        unsynced.note();
        unsynced.begin();
        unsynced.end(false);
        assert!(!unsynced.age().is_zero());
        assert!(!unsynced.note());
    }
}
