//! Sessions: the history of sandboxes and its retention.
//!
//! The runtime records commands in the journal of each sandbox and passes them to [`StoreHistory`]. In the store they
//! outlive the sandbox. Old history is deleted in batches.

use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;
use atoll_model::runtime::HistorySink;
use atoll_model::{
    Code, CommandKind, CommandRow, Error, Event, Page, PageRequest, SandboxId, Scope,
};
use atoll_store::{SandboxRow, Store};

use crate::{Core, Inner, RequestContext, error};

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
    async fn sync_now(&self, row: &SandboxRow) {
        if row.deleted_at.is_some() {
            return;
        }
        match self.runtime.sync_history(&row.id).await {
            // A concurrent delete flushes the journal.
            Err(failure) if failure.code != Code::SandboxNotFound => {
                tracing::warn!(sandbox = %row.id, %failure, "failed to sync journal: history is incomplete");
            }
            _ => {}
        }
    }
}

/// Writes commands to the store, into the sessions of their sandboxes.
#[derive(Debug, Clone)]
pub struct StoreHistory(pub Store);

#[async_trait]
impl HistorySink for StoreHistory {
    async fn append(&self, sandbox: &SandboxId, rows: &[CommandRow]) -> Result<(), Error> {
        let session = self.0.session_of(sandbox).await.map_err(error::store)?;
        // Without a row there is no session that could show the commands.
        let Some(session) = session else {
            return Ok(());
        };
        let written = self.0.upsert_commands(&session, rows).await;
        written.map_err(error::store)
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
        if let Err(failure) = inner.runtime.remove_old_orphans(now).await {
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
