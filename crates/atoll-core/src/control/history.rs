//! Sessions: the history of sandboxes, its synchronization and its retention.
//!
//! Commands are recorded in the journal of each sandbox and copied to the store, where they outlive the sandbox. Old
//! history is deleted in batches.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{
    Code, CommandKind, CommandRow, Error, Event, Page, PageRequest, SandboxId, Scope, SessionId,
};
use atoll_store::{SandboxRow, Store};
use atoll_worker::HistoryFlush;

use crate::{Core, Inner, RequestContext, error};

/// Time between two syncs of all journals. A request for a session syncs its journal at once. Each sync opens the
/// journal of every sandbox with new commands.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);
/// Rows per batch of a sync.
const SYNC_BATCH: u32 = 200;
/// Time between two runs of the retention.
const RETENTION_INTERVAL: Duration = Duration::from_mins(10);
/// Rows per delete, so that other writers get their turn.
const RETENTION_BATCH: u32 = 500;

const DAY: i64 = 24 * 3_600_000_000;
/// Retention of deleted sandboxes, ended commands, and revoked or expired keys, in microseconds.
const HISTORY_RETENTION: i64 = 30 * DAY;
/// Retention of events.
const EVENT_RETENTION: i64 = 7 * DAY;
/// Retention of idempotency keys of creates.
const IDEMPOTENCY_RETENTION: i64 = DAY;

/// Retention of files in `orphaned/`.
const ORPHAN_RETENTION: i64 = atoll_worker::orphans::RETENTION.as_micros() as i64;

/// A session with the size of its history.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The row of its sandbox, which may be deleted.
    pub row: SandboxRow,
    /// Number of commands.
    pub commands: i64,
    /// Number of terminals.
    pub terminals: i64,
}

impl Core {
    /// Returns a session of the caller's org by its id or sandbox id.
    pub async fn session(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<SessionView, Error> {
        let row = self.find_session(context, name).await?;
        self.inner.sync_now(&row).await;
        let count = |kind| self.inner.store.count_commands(&row.session, kind);
        let commands = count(CommandKind::Command).await.map_err(error::store)?;
        let terminals = count(CommandKind::Terminal).await.map_err(error::store)?;
        Ok(SessionView {
            row,
            commands,
            terminals,
        })
    }

    /// Returns a page of commands or terminals of a session, newest first.
    pub async fn session_commands(
        &self,
        context: &RequestContext,
        name: &str,
        kind: CommandKind,
        page: &PageRequest,
    ) -> Result<Page<CommandRow>, Error> {
        let row = self.find_session(context, name).await?;
        self.inner.sync_now(&row).await;
        let (store, more) = (&self.inner.store, page.with_lookahead());
        let rows = store.commands(&row.session, kind, &more).await;
        let rows = rows.map_err(error::store)?;
        Ok(Page::from_lookahead(rows, page, |row| {
            (row.started_at, row.id.to_string())
        }))
    }

    /// Returns events of a session after a sequence number, oldest first.
    pub async fn session_events(
        &self,
        context: &RequestContext,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>, Error> {
        let row = self.find_session(context, name).await?;
        let store = &self.inner.store;
        let events = store.events(&context.org.id, Some(&row.id), after, limit);
        events.await.map_err(error::store)
    }

    async fn find_session(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<SandboxRow, Error> {
        context.require(Scope::Read)?;
        let found = self.inner.store.session(&context.org.id, name).await;
        found.map_err(error::store)?.ok_or_else(|| {
            Error::new(Code::SessionNotFound, "there is no such session")
                .remedy("GET /sessions lists yours")
        })
    }
}

impl Inner {
    /// Syncs the journal of one sandbox before a read. A failure is logged, and the read returns what the store has.
    async fn sync_now(self: &Arc<Self>, row: &SandboxRow) {
        if row.deleted_at.is_some() {
            return;
        }
        let (inner, id, session) = (Arc::clone(self), row.id.clone(), row.session.clone());
        // In a task of its own, so that a cancelled request does not leave a partial sync.
        let carried = tokio::spawn(async move { inner.sync(&id, &session).await });
        if let Ok(Err(failure)) = carried.await {
            tracing::warn!(sandbox = %row.id, %failure, "failed to sync journal: history is incomplete");
        }
    }

    /// Copies all unsynced rows of a sandbox's journal to the store.
    async fn sync(&self, id: &SandboxId, session: &SessionId) -> Result<(), Error> {
        let Some(entry) = self.sandboxes.get(id) else {
            return Ok(());
        };
        // A concurrent call waits for the end of this one.
        let _alone = entry.history_lock.lock().await;
        loop {
            let rows = match self.runtime.unsynced_commands(id, SYNC_BATCH).await {
                // The sandbox was deleted meanwhile, which flushed its journal.
                Err(error) if error.code == Code::SandboxNotFound => return Ok(()),
                rows => rows?,
            };
            if let Err(failure) = self.store.upsert_commands(session, &rows).await {
                self.runtime.mark_unsynced(id);
                return Err(error::store(failure));
            }
            if rows.is_empty() {
                return Ok(());
            }
            self.runtime.mark_synced(id, &rows).await?;
            if rows.len() < SYNC_BATCH as usize {
                return Ok(());
            }
        }
    }
}

/// Callback by which the runtime flushes a journal to the store before it deletes the sandbox's files.
pub(crate) fn history_sink(store: &Store, session: SessionId) -> HistoryFlush {
    let store = store.clone();
    Box::new(move |rows| {
        Box::pin(async move {
            let kept = store.upsert_commands(&session, &rows).await;
            kept.map_err(error::store)
        })
    })
}

/// Background task that syncs all journals periodically.
pub(crate) async fn sync_loop(inner: Weak<Inner>) {
    let mut clock = tokio::time::interval(SYNC_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let mut failed = None;
        for id in inner.runtime.unsynced_sandboxes() {
            let Some(entry) = inner.sandboxes.get(&id) else {
                continue;
            };
            let session = entry.read(|row| row.session.clone());
            if let Err(failure) = inner.sync(&id, &session).await {
                failed.get_or_insert((id, failure));
            }
        }
        // One log line for all: the usual causes, the store or the disk, concern every journal.
        if let Some((id, failure)) = failed {
            tracing::warn!(sandbox = %id, %failure, "failed to sync journal, will retry");
        }
    }
}

/// Background task that deletes old history and orphaned files.
pub(crate) async fn retention_loop(inner: Weak<Inner>) {
    let mut clock = tokio::time::interval(RETENTION_INTERVAL);
    loop {
        clock.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.clock.is_held() {
            continue;
        }
        let now = inner.clock.now();
        if let Err(failure) = apply_retention(&inner.store, now).await {
            tracing::warn!(%failure, "failed to delete old history, will retry");
        }
        if let Err(failure) = inner.runtime.remove_orphans(now - ORPHAN_RETENTION).await {
            tracing::warn!(%failure, "failed to delete old orphaned files, will retry");
        }
    }
}

async fn apply_retention(store: &Store, now: i64) -> atoll_store::Result<()> {
    loop {
        let history = now - HISTORY_RETENTION;
        let deleted = [
            store.prune_commands(history, RETENTION_BATCH).await?,
            store.prune_deleted(history, RETENTION_BATCH).await?,
            store.prune_keys(history, RETENTION_BATCH).await?,
            store
                .prune_events(now - EVENT_RETENTION, RETENTION_BATCH)
                .await?,
            store
                .prune_idempotency_keys(now - IDEMPOTENCY_RETENTION, RETENTION_BATCH)
                .await?,
        ];
        if deleted
            .iter()
            .all(|count| *count < u64::from(RETENTION_BATCH))
        {
            return Ok(());
        }
    }
}
