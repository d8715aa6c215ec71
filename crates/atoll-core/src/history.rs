//! What was run in sandboxes: carried from their journals into the store, where it outlives them, and forgotten when it
//! is old.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{
    Code, CommandKind, CommandRow, Error, Event, Page, PageRequest, SandboxId, Scope, SessionId,
};
use atoll_store::{SandboxRow, Store};
use atoll_worker::HistoryFlush;

use crate::{Core, Inner, RequestContext, error};

/// How often journals are carried over. Nobody waits for it: what is asked for is carried at once, and what was run is
/// written down beside the sandbox meanwhile. Each time costs a file opened for every sandbox in which something was run.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);
/// How many rows are carried at a time.
const SYNC_BATCH: u32 = 200;
/// How often is looked for what is old.
const RETENTION_INTERVAL: Duration = Duration::from_mins(10);
/// How many rows are forgotten at a time: others want to write too.
const RETENTION_BATCH: u32 = 500;

const DAY: i64 = 24 * 3_600_000_000;
/// How long history is kept after a sandbox is gone, a command after its end, and a key when it is worth nothing.
const HISTORY_RETENTION: i64 = 30 * DAY;
/// How long events are kept.
const EVENT_RETENTION: i64 = 7 * DAY;
/// How long a create may be said again.
const IDEMPOTENCY_RETENTION: i64 = DAY;

/// How long the files of sandboxes without a row are kept.
const ORPHAN_RETENTION: i64 = atoll_worker::orphans::RETENTION.as_micros() as i64;

/// A session with what there is of it.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The sandbox it was, or is.
    pub row: SandboxRow,
    /// How many commands were run in it.
    pub commands: i64,
    /// How many terminals it had.
    pub terminals: i64,
}

impl Core {
    /// One of the caller's sessions, by its id or its sandbox's.
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

    /// What was run in one of the caller's sessions, newest first.
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

    /// What happened to the sandbox of one of the caller's sessions, oldest first.
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
    /// Carries over what a living sandbox's journal has, for somebody who asks now. Who asks is told what there is,
    /// even if not everything could be carried.
    async fn sync_now(self: &Arc<Self>, row: &SandboxRow) {
        if row.deleted_at.is_some() {
            return;
        }
        let (inner, id, session) = (Arc::clone(self), row.id.clone(), row.session.clone());
        // To its end, even if nobody listens any more: what is half carried nobody would come for.
        let carried = tokio::spawn(async move { inner.sync(&id, &session).await });
        if let Ok(Err(failure)) = carried.await {
            tracing::warn!(sandbox = %row.id, %failure, "its history is not complete");
        }
    }

    /// Carries over what a sandbox's journal has.
    async fn sync(&self, id: &SandboxId, session: &SessionId) -> Result<(), Error> {
        let Some(entry) = self.sandboxes.get(id) else {
            return Ok(());
        };
        // Whoever asks while somebody else carries waits until all of it is there.
        let _alone = entry.history_lock.lock().await;
        loop {
            let rows = match self.runtime.unsynced_commands(id, SYNC_BATCH).await {
                // It was deleted meanwhile, and everything carried over with that.
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

/// Keeps what is left of a sandbox's history before its files go.
pub(crate) fn history_sink(store: &Store, session: SessionId) -> HistoryFlush {
    let store = store.clone();
    Box::new(move |rows| {
        Box::pin(async move {
            let kept = store.upsert_commands(&session, &rows).await;
            kept.map_err(error::store)
        })
    })
}

/// Carries journals over, for as long as there is somebody who wants to know.
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
        // What is wrong with one is mostly wrong with all: the store, or the disk.
        if let Some((id, failure)) = failed {
            tracing::warn!(sandbox = %id, %failure, "its history waits beside it");
        }
    }
}

/// Forgets what is older than it is worth, some at a time.
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
            tracing::warn!(%failure, "old records stay");
        }
        if let Err(failure) = inner.runtime.remove_orphans(now - ORPHAN_RETENTION).await {
            tracing::warn!(%failure, "old orphans stay");
        }
    }
}

async fn apply_retention(store: &Store, now: i64) -> atoll_store::Result<()> {
    loop {
        let history = now - HISTORY_RETENTION;
        let most = [
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
        if most.iter().all(|gone| *gone < u64::from(RETENTION_BATCH)) {
            return Ok(());
        }
    }
}
