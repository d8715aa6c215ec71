//! The table's side of the sandbox's journal: which commands it lacks.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use atoll_model::CommandRow;
use atoll_store::Journal;

use super::super::ExecState;
use super::ExecTable;

/// Commands whose current state is not in the journal.
pub(crate) struct Unjournaled {
    pub(crate) commands: Vec<Arc<ExecState>>,
    /// All recorded commands of earlier servers are among them.
    includes_earlier: bool,
}

impl ExecTable {
    /// Path of the sandbox's journal.
    pub(crate) fn journal(&self) -> PathBuf {
        self.directory().with_file_name("journal.db")
    }

    /// Marks the sandbox for the next journal flush.
    pub(crate) fn mark_dirty(&self) {
        if let Some(notifier) = &self.notifier {
            notifier.mark_dirty();
        }
    }

    /// Commands whose current state is not in the journal.
    pub(crate) fn unjournaled(&self) -> Unjournaled {
        let inner = self.inner();
        // Checks the end last: most commands were written long ago.
        let new = inner.all.values().filter(|exec| {
            !exec.journaled.is_current(true) && !exec.journaled.is_current(exec.has_ended())
        });
        let mut commands: Vec<Arc<ExecState>> = new.cloned().collect();
        let mut includes_earlier = inner.journal_behind;
        if includes_earlier {
            let (earlier, all) = inner.read_earlier(&self.record_log, &self.budget);
            commands.extend(earlier.into_iter().map(Arc::new));
            includes_earlier = all;
        }
        Unjournaled {
            commands,
            includes_earlier,
        }
    }

    /// Notes that these rows were written, one for each command.
    pub(crate) fn mark_journaled(&self, written: &Unjournaled, rows: &[CommandRow]) {
        for (exec, row) in written.commands.iter().zip(rows) {
            exec.journaled.set_written(row.ended.is_some());
        }
        let mut inner = self.inner();
        inner.journal_behind &= !written.includes_earlier;
        inner.flush_requested = false;
        let journal_behind = inner.journal_behind;
        if inner.open.is_empty() {
            self.record_log.close_when_idle();
        }
        drop(inner);
        if journal_behind {
            self.mark_dirty();
        }
        self.evict_ended();
    }

    /// Counts rows that were synced; true if the journal should be pruned.
    pub(crate) fn count_synced(&self, rows: usize) -> bool {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let before = self.synced_rows.fetch_add(rows, Ordering::Relaxed);
        let prune = before.saturating_add(rows) >= Journal::ROWS_KEPT;
        if prune {
            self.synced_rows.store(0, Ordering::Relaxed);
        }
        prune
    }

    /// Has all commands written again, after the journal was lost.
    pub(crate) fn mark_all_unjournaled(&self) {
        let mut inner = self.inner();
        inner.journal_behind = true;
        for exec in inner.all.values() {
            exec.journaled.clear();
        }
        drop(inner);
        self.mark_dirty();
    }
}
