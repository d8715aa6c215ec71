//! What was run in sandboxes, for whoever keeps it for longer than they live.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{Error, SandboxId, SandboxState};
use atoll_store::CommandRow;
use tokio::time::MissedTickBehavior;

use super::{Entry, Farewell, LocalRuntime, Place, Shared};
use crate::error::internal;
use crate::exec::table::ExecTable;
use crate::journal::{FLUSH_INTERVAL, JournalHealth, JournalNotifier, Journals};

/// How long the end of a command that was killed with its sandbox may take to be seen.
const SEEN: Duration = Duration::from_secs(5);

impl Shared {
    /// Where the commands of a sandbox are noted.
    fn mark(&self, id: &SandboxId) -> Option<JournalNotifier> {
        self.journals.as_ref().map(|journals| JournalNotifier {
            id: id.clone(),
            journals: Arc::clone(journals),
            syncer: Arc::clone(&self.syncer),
        })
    }

    /// The commands of a sandbox, below its directory; `complete` if nobody ran one in it before.
    pub(crate) fn table(&self, id: &SandboxId, directory: &Path, complete: bool) -> ExecTable {
        ExecTable::new(directory.join("execs"), complete, self.mark(id)).with_retention(self.kept)
    }
}

impl LocalRuntime {
    /// Begins to write journals.
    pub(super) fn keep_journals(&self) {
        if let Some(journals) = &self.shared.journals {
            tokio::spawn(tend(Arc::clone(journals), Arc::downgrade(&self.shared)));
        }
    }

    /// How the journals are doing.
    pub fn journal_health(&self) -> Option<JournalHealth> {
        self.shared.journals.as_ref().map(|all| all.health())
    }

    /// Sandboxes in which something was run that nobody has taken yet.
    pub fn unsynced_sandboxes(&self) -> HashSet<SandboxId> {
        let journals = self.shared.journals.as_ref();
        journals.map_or_else(HashSet::new, |journals| journals.unsynced_sandboxes())
    }

    /// What was run in a sandbox and nobody has taken yet, the oldest first, at most so many.
    pub async fn history(&self, id: &SandboxId, most: u32) -> Result<Vec<CommandRow>, Error> {
        let Some((journals, table)) = self.journal(id)? else {
            return Ok(Vec::new());
        };
        let read = journals.read(id, &table, most).await;
        read.map_err(|error| internal("read a journal", &error))
    }

    /// Somebody has taken these.
    pub async fn taken(&self, id: &SandboxId, rows: &[CommandRow]) -> Result<(), Error> {
        let Some((journals, table)) = self.journal(id)? else {
            return Ok(());
        };
        let marked = journals.mark_synced(id, &table, rows).await;
        marked.map_err(|error| {
            journals.mark_unsynced(id);
            internal("write a journal", &error)
        })
    }

    /// What was read could not be taken.
    pub fn not_taken(&self, id: &SandboxId) {
        if let Some(journals) = &self.shared.journals {
            journals.mark_unsynced(id);
        }
    }

    fn journal(&self, id: &SandboxId) -> Result<Option<(&Journals, Arc<ExecTable>)>, Error> {
        let (table, _) = self.entry(id)?.execs(id)?;
        Ok(self.shared.journals.as_deref().map(|all| (all, table)))
    }

    /// Gives away what was run in a sandbox whose processes are gone. If nobody takes it, the sandbox is a stopped one.
    pub(super) async fn part(
        &self,
        id: &SandboxId,
        entry: &Entry,
        place: &Place,
        farewell: Farewell,
    ) -> Result<(), Error> {
        let (table, sandbox) = match place {
            Place::Live(sandbox) => (Arc::clone(&sandbox.execs), Some(sandbox)),
            Place::Stopped(_, table) => (Arc::clone(table), None),
            // Its processes have been ended.
            Place::Apart(apart) => (apart.execs(&self.shared), None),
            Place::Gone => return Ok(()),
        };
        let Some(journals) = &self.shared.journals else {
            return Ok(());
        };
        table.wait_for_ends(SEEN).await;
        let kept = farewell(journals.drain(id, &table).await).await;
        match (&kept, sandbox) {
            (Ok(()), _) => journals.remove(id).await,
            (Err(_), Some(sandbox)) => {
                let record = sandbox.write_down(|info| info.state = SandboxState::Stopped)?;
                entry.set(Place::Stopped(Box::new(record), table));
            }
            (Err(_), None) => {}
        }
        kept
    }
}

/// Writes what is new and nobody came for, and first what presses, until the runtime is gone.
async fn tend(journals: Arc<Journals>, shared: Weak<Shared>) {
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
                // What could not be written is due again.
                let _ = journals.write(&id, &table).await;
            }
        }
    }
}
