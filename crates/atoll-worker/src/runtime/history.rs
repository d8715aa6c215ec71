//! Journals of commands: writes them in the background, and passes their rows to the history sink.
//!
//! A row stays unsynced until the sink has accepted it, so an unreachable sink loses nothing.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::runtime::{HistorySink, JournalStatus};
use atoll_model::{Code, CommandRow, Error, SandboxId, SandboxState};
use tokio::time::MissedTickBehavior;

use super::{EntryState, LocalRuntime, RuntimeState, SandboxEntry};
use crate::error::internal;
use crate::exec::table::ExecTable;
use crate::journal::{FLUSH_INTERVAL, JournalNotifier, Journals};

/// How long to wait for exec ends to be observed after the sandbox was killed.
const EXEC_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two syncs of all journals. Each sync opens the journal of every sandbox with new
/// commands.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

/// Rows per batch of a sync.
const SYNC_BATCH: u32 = 200;

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
    /// Starts the tasks that write and sync journals.
    pub(super) fn start_journals(&self) {
        if let Some(journals) = &self.shared.journals {
            let shared = Arc::downgrade(&self.shared);
            tokio::spawn(write_journals(Arc::clone(journals), shared.clone()));
            if self.shared.history.is_some() {
                tokio::spawn(sync_journals(shared));
            }
        }
    }

    /// State of the journal writer; `None` without a journal.
    pub(super) fn journal_status(&self) -> Option<JournalStatus> {
        self.shared.journals.as_ref().map(|all| all.status())
    }

    /// Passes all unsynced commands of a sandbox to the history sink. A concurrent call waits for
    /// the end of this one.
    pub(super) async fn sync_history(&self, id: &SandboxId) -> Result<(), Error> {
        let Some(sink) = self.shared.history.clone() else {
            return Ok(());
        };
        let (runtime, id) = (self.clone(), id.clone());
        // In a task of its own, so that a cancelled request does not leave a partial sync.
        let synced = tokio::spawn(async move { runtime.sync_journal(&id, &*sink).await });
        synced.await.unwrap_or(Ok(()))
    }

    async fn sync_journal(&self, id: &SandboxId, sink: &dyn HistorySink) -> Result<(), Error> {
        let entry = self.entry(id)?;
        let _alone = entry.history_lock.lock().await;
        loop {
            let (journals, table) = match self.journal(id) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(()),
                // The sandbox was deleted meanwhile, which flushed its journal.
                Err(error) if error.code == Code::SandboxNotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            let read = journals.read(id, &table, SYNC_BATCH).await;
            let rows = read.map_err(|error| internal("read a journal", &error))?;
            if rows.is_empty() {
                return Ok(());
            }
            if let Err(error) = sink.append(id, &rows).await {
                journals.mark_unsynced(id);
                return Err(error);
            }
            let marked = journals.mark_synced(id, &table, &rows).await;
            marked.map_err(|error| {
                journals.mark_unsynced(id);
                internal("write a journal", &error)
            })?;
            if rows.len() < SYNC_BATCH as usize {
                return Ok(());
            }
        }
    }

    fn journal(&self, id: &SandboxId) -> Result<Option<(&Journals, Arc<ExecTable>)>, Error> {
        let (table, _) = self.entry(id)?.execs(id)?;
        Ok(self.shared.journals.as_deref().map(|all| (all, table)))
    }

    /// Passes the remaining commands of a sandbox without processes to the history sink. If that
    /// fails, the sandbox becomes a stopped one.
    pub(super) async fn flush_history(
        &self,
        id: &SandboxId,
        entry: &SandboxEntry,
        state: &EntryState,
    ) -> Result<(), Error> {
        let (Some(journals), Some(sink)) = (&self.shared.journals, &self.shared.history) else {
            return Ok(());
        };
        let (table, sandbox) = match state {
            EntryState::Live(sandbox) => (Arc::clone(&sandbox.execs), Some(sandbox)),
            EntryState::Stopped(_, table) => (Arc::clone(table), None),
            // The caller has ended its processes.
            EntryState::Unadoptable(sandbox) => (sandbox.execs(&self.shared), None),
            EntryState::Gone => return Ok(()),
        };
        table.wait_for_ends(EXEC_END_TIMEOUT).await;
        let rows: Vec<CommandRow> = journals.drain(id, &table).await;
        let flushed = if rows.is_empty() {
            Ok(())
        } else {
            sink.append(id, &rows).await
        };
        match (&flushed, sandbox) {
            (Ok(()), _) => journals.remove(id).await,
            (Err(_), Some(sandbox)) => {
                let record =
                    sandbox.update_record(|record| record.info.state = SandboxState::Stopped)?;
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

/// Syncs the journals of all sandboxes with new commands periodically.
async fn sync_journals(shared: Weak<RuntimeState>) {
    let mut clock = tokio::time::interval(SYNC_INTERVAL);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let (Some(journals), Some(sink)) = (shared.journals.clone(), shared.history.clone()) else {
            return;
        };
        let runtime = LocalRuntime { shared };
        let mut failed = None;
        for id in journals.unsynced_sandboxes() {
            match runtime.sync_journal(&id, &*sink).await {
                Err(error) if error.code != Code::SandboxNotFound => {
                    failed.get_or_insert((id, error));
                }
                _ => {}
            }
        }
        // One log line for all: the usual causes, the sink or the disk, concern every journal.
        if let Some((id, error)) = failed {
            tracing::warn!(sandbox = %id, %error, "failed to sync journal, will retry");
        }
    }
}
