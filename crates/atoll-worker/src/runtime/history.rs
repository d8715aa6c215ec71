//! Journals of commands: writes them in the background, and hands rows to the control plane until
//! they are in its store.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{CommandRow, Error, SandboxId, SandboxState};
use tokio::time::MissedTickBehavior;

use super::{EntryState, HistoryFlush, LocalRuntime, RuntimeState, SandboxEntry};
use crate::error::internal;
use crate::exec::table::ExecTable;
use crate::journal::{FLUSH_INTERVAL, JournalHealth, JournalNotifier, Journals};

/// How long to wait for exec ends to be observed after the sandbox was killed.
const EXEC_END_TIMEOUT: Duration = Duration::from_secs(5);

impl RuntimeState {
    /// Notifier that marks a sandbox's journal as dirty; `None` without a journal.
    fn journal_notifier(&self, id: &SandboxId) -> Option<JournalNotifier> {
        self.journals.as_ref().map(|journals| JournalNotifier {
            id: id.clone(),
            journals: Arc::clone(journals),
            syncer: Arc::clone(&self.syncer),
        })
    }

    /// The exec table of a sandbox directory. `complete` means that the sandbox is new and no
    /// journal rows exist.
    pub(crate) fn table(&self, id: &SandboxId, directory: &Path, complete: bool) -> ExecTable {
        ExecTable::new(directory.join("execs"), complete, self.journal_notifier(id))
            .with_retention(self.output_retention)
    }
}

impl LocalRuntime {
    /// Starts the task that writes journals.
    pub(super) fn start_journals(&self) {
        if let Some(journals) = &self.shared.journals {
            tokio::spawn(write_journals(
                Arc::clone(journals),
                Arc::downgrade(&self.shared),
            ));
        }
    }

    /// State of the journal writer; `None` without a journal.
    pub fn journal_health(&self) -> Option<JournalHealth> {
        self.shared.journals.as_ref().map(|all| all.health())
    }

    /// Sandboxes with commands that the store does not have yet.
    pub fn unsynced_sandboxes(&self) -> HashSet<SandboxId> {
        let journals = self.shared.journals.as_ref();
        journals.map_or_else(HashSet::new, |journals| journals.unsynced_sandboxes())
    }

    /// Commands of a sandbox that the store does not have yet, oldest first, at most `most`.
    pub async fn unsynced_commands(
        &self,
        id: &SandboxId,
        most: u32,
    ) -> Result<Vec<CommandRow>, Error> {
        let Some((journals, table)) = self.journal(id)? else {
            return Ok(Vec::new());
        };
        let read = journals.read(id, &table, most).await;
        read.map_err(|error| internal("read a journal", &error))
    }

    /// Marks commands as written to the store.
    pub async fn mark_synced(&self, id: &SandboxId, rows: &[CommandRow]) -> Result<(), Error> {
        let Some((journals, table)) = self.journal(id)? else {
            return Ok(());
        };
        let marked = journals.mark_synced(id, &table, rows).await;
        marked.map_err(|error| {
            journals.mark_unsynced(id);
            internal("write a journal", &error)
        })
    }

    /// Marks a sandbox again after its commands could not be written to the store.
    pub fn mark_unsynced(&self, id: &SandboxId) {
        if let Some(journals) = &self.shared.journals {
            journals.mark_unsynced(id);
        }
    }

    fn journal(&self, id: &SandboxId) -> Result<Option<(&Journals, Arc<ExecTable>)>, Error> {
        let (table, _) = self.entry(id)?.execs(id)?;
        Ok(self.shared.journals.as_deref().map(|all| (all, table)))
    }

    /// Passes the remaining commands of a sandbox without processes to `flush`. If that fails, the
    /// sandbox becomes a stopped one.
    pub(super) async fn flush_history(
        &self,
        id: &SandboxId,
        entry: &SandboxEntry,
        state: &EntryState,
        flush: HistoryFlush,
    ) -> Result<(), Error> {
        let (table, sandbox) = match state {
            EntryState::Live(sandbox) => (Arc::clone(&sandbox.execs), Some(sandbox)),
            EntryState::Stopped(_, table) => (Arc::clone(table), None),
            // The caller has ended its processes.
            EntryState::Unadoptable(sandbox) => (sandbox.execs(&self.shared), None),
            EntryState::Gone => return Ok(()),
        };
        let Some(journals) = &self.shared.journals else {
            return Ok(());
        };
        table.wait_for_ends(EXEC_END_TIMEOUT).await;
        let flushed = flush(journals.drain(id, &table).await).await;
        match (&flushed, sandbox) {
            (Ok(()), _) => journals.remove(id).await,
            (Err(_), Some(sandbox)) => {
                let record = sandbox.update_record(|info| info.state = SandboxState::Stopped)?;
                entry.set_state(EntryState::Stopped(Box::new(record), table));
            }
            (Err(_), None) => {}
        }
        flushed
    }
}

/// Writes journals that are due, urgent ones first, until the runtime is dropped.
async fn write_journals(journals: Arc<Journals>, shared: Weak<RuntimeState>) {
    let mut clock = tokio::time::interval(FLUSH_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut due = Vec::new();
        tokio::select! {
            () = journals.wait_for_flush_request() => {}
            _ = clock.tick() => {
                journals.close_idle().await;
                due = journals.take_due();
            }
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let runtime = LocalRuntime { shared };
        while let Some(id) = journals.next_urgent().or_else(|| due.pop()) {
            if let Ok(Some((journals, table))) = runtime.journal(&id) {
                // A failed write makes the journal due again.
                let _ = journals.write(&id, &table).await;
            }
        }
    }
}
