//! Joins what should be with what is: at the start, and when a sandbox's processes end by themselves.
//!
//! It destroys only what was never told to anybody and what a row says is deleted. What has no row at all
//! is set aside by the runtime, not removed, unless the operator asked for it to be adopted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use atoll_model::{
    Code, Error, Lifetime, PortAccess, SandboxId, SandboxInfo, SandboxSpec, SandboxState, SessionId,
};
use atoll_store::{SandboxRow, Store};
use atoll_worker::{LocalRuntime, Recovered};

use crate::clock::Clock;
use crate::expiry::deletion_time;
use crate::live_sandboxes::{LiveSandbox, LiveSandboxes, change_event};
use crate::sandboxes::end_at_after_restart;
use crate::{Config, Inner, error, history, orgs};

/// Sandboxes whose rows say deleted, and which are still there.
pub(crate) type PendingDeletes = HashMap<SandboxId, SessionId>;

/// How often is asked whether processes are gone, whatever was told.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// All living sandboxes, and those that could not be taken away although their rows say so.
pub(crate) async fn reconcile_all(
    store: &Store,
    runtime: &LocalRuntime,
    config: &Config,
    clock: &Arc<Clock>,
) -> Result<(LiveSandboxes, PendingDeletes), Error> {
    let (ledger, mut pending_deletes) = (LiveSandboxes::new(clock), PendingDeletes::new());
    let is: HashMap<SandboxId, SandboxInfo> = runtime
        .list()
        .into_iter()
        .map(|info| (info.id.clone(), info))
        .collect();
    let mut known = HashSet::new();
    for row in store.active_sandboxes().await.map_err(error::store)? {
        known.insert(row.id.clone());
        let found = is.get(&row.id);
        if row.state == SandboxState::Creating && row.started_at.is_none() {
            // Nobody was told of it.
            let gone = match found {
                Some(_) => runtime.delete(&row.id).await,
                None => Ok(()),
            };
            match gone {
                Ok(()) => store
                    .discard_create(&row, clock.now())
                    .await
                    .map_err(error::store)?,
                Err(error) => {
                    tracing::warn!(sandbox = %row.id, %error, "it was never made, and stays until it can go");
                    record_failed_create(store, &row, &error, clock.now()).await?;
                    pending_deletes.insert(row.id.clone(), row.session);
                }
            }
            continue;
        }
        let recovered = match found {
            Some(_) => None,
            None => recover(runtime, &row).await?,
        };
        let joined = match found.or(recovered.as_ref()) {
            Some(info) => apply_runtime_state(row.clone(), info, clock.now()),
            None if row.state == SandboxState::Failed => row.clone(),
            None => SandboxRow {
                state: SandboxState::Failed,
                error: Some("its files are gone".into()),
                end_at: None,
                ..row.clone()
            },
        };
        // As it is set now, not as it was when it stopped.
        let joined = match joined.state {
            SandboxState::Stopped => SandboxRow {
                end_at: deletion_time(config, joined.stopped_at.unwrap_or_else(|| clock.now())),
                ..joined
            },
            _ => joined,
        };
        if joined != row {
            let written = store.update_sandbox(&joined, change_event(&row, &joined), clock.now());
            written.await.map_err(error::store)?;
        }
        // When it was last used is not written down: it is not idle before it could be used again.
        ledger.add(joined).record_activity();
    }
    for id in is.keys().filter(|id| !known.contains(*id)) {
        let deleted = store.deleted_session(id).await.map_err(error::store)?;
        if let Some(session) = deleted {
            let sink = history::history_sink(store, session.clone());
            if runtime.delete_after_flush(id, sink).await.is_err() {
                pending_deletes.insert(id.clone(), session);
            }
        } else if config.adopt_orphans {
            let row = adopt(store, runtime, config, &is[id], clock.now()).await?;
            tracing::warn!(sandbox = %id, org = %row.org, "a sandbox without a row was adopted");
            ledger.add(row);
        } else {
            tracing::warn!(sandbox = %id, "it has no row: set aside");
            if let Err(error) = runtime.move_to_orphaned(id).await {
                tracing::warn!(sandbox = %id, %error, "it stays where it is");
            }
        }
    }
    Ok((ledger, pending_deletes))
}

/// Inserts the row of a sandbox of which only the runtime verify. It belongs to the first org from now on, has no end of
/// its own, and its ports are private: the rest of what its row said is lost.
async fn adopt(
    store: &Store,
    runtime: &LocalRuntime,
    config: &Config,
    info: &SandboxInfo,
    now: i64,
) -> Result<SandboxRow, Error> {
    let lives = matches!(info.state, SandboxState::Running | SandboxState::Paused);
    let spec = runtime.spec(&info.id)?;
    let row = SandboxRow {
        id: info.id.clone(),
        session: SessionId::random(),
        org: orgs::first(store, now).await?.id,
        alias: None,
        template: info.template.clone(),
        state: info.state,
        reason: info.reason,
        error: None,
        metadata: BTreeMap::default(),
        limits: info.limits,
        network: info.network,
        policy: spec.policy,
        port_access: PortAccess::Private,
        durable: spec.durable,
        lifetime: Lifetime {
            timeout: None,
            ..Lifetime::default()
        },
        created_at: info.created_at,
        started_at: Some(if lives { now } else { info.created_at }),
        end_at: if lives {
            None
        } else {
            deletion_time(config, now)
        },
        time_left: None,
        stopped_at: (info.state != SandboxState::Running).then_some(now),
        deleted_at: None,
    };
    let adopted = store.adopt_sandbox(&row, now).await;
    adopted.map_err(error::store)?;
    Ok(row)
}

/// Recovers a sandbox whose files were set aside: by an earlier start whose database did not have its row, or by this one,
/// because a power cut left its record empty, torn or older than its create. The row has everything but the variables.
async fn recover(runtime: &LocalRuntime, row: &SandboxRow) -> Result<Option<SandboxInfo>, Error> {
    if row.state == SandboxState::Failed {
        return Ok(None);
    }
    let spec = SandboxSpec {
        template: row.template.clone(),
        limits: row.limits,
        network: row.network,
        policy: row.policy.clone(),
        durable: row.durable,
        ..SandboxSpec::default()
    };
    match runtime.recover(&row.id, spec, row.created_at).await? {
        None => return Ok(None),
        Some(Recovered::Intact) => {
            tracing::warn!(sandbox = %row.id, "recovered from the files that were set aside");
        }
        Some(Recovered::WithoutRecord) => {
            tracing::warn!(sandbox = %row.id, "its record was lost: it is recovered without its variables");
        }
    }
    runtime.get(&row.id).map(Some)
}

/// Makes a row history whose sandbox could neither be made nor taken away.
async fn record_failed_create(
    store: &Store,
    row: &SandboxRow,
    why: &Error,
    now: i64,
) -> Result<(), Error> {
    let after = SandboxRow {
        state: SandboxState::Failed,
        error: Some(why.message.clone()),
        deleted_at: Some(now),
        ..row.clone()
    };
    let written = store.update_sandbox(&after, change_event(row, &after), now);
    written.await.map_err(error::store)?;
    store
        .delete_idempotency_key(&row.id)
        .await
        .map_err(error::store)
}

/// The row of a sandbox that the runtime verify.
fn apply_runtime_state(mut row: SandboxRow, info: &SandboxInfo, now: i64) -> SandboxRow {
    match (row.state, info.state) {
        // A pause or a resume that was not answered.
        (SandboxState::Running, SandboxState::Paused) => {
            row.time_left = row.end_at.take().map(|end| (end - now).max(0));
        }
        (SandboxState::Paused, SandboxState::Running) => {
            row.end_at = row.time_left.take().map(|left| now + left);
        }
        // A start that was not answered: its place in the org was taken, and then it ran.
        (SandboxState::Stopped | SandboxState::Creating, SandboxState::Running) => {
            row.end_at = end_at_after_restart(&row.lifetime, now);
            row.started_at = Some(now);
            (row.stopped_at, row.time_left) = (None, None);
        }
        // One that did not come so far.
        (SandboxState::Creating, SandboxState::Stopped) => {}
        (before, SandboxState::Stopped) if before != SandboxState::Stopped => {
            row.stopped_at = Some(now);
            (row.end_at, row.time_left) = (None, None);
        }
        _ => {}
    }
    row.state = info.state;
    row.reason = info.reason;
    row
}

/// Takes sandboxes away that could not be when somebody asked for it.
async fn retry_deletes(inner: &Inner) {
    let pending_deletes = inner.pending_deletes.lock();
    let pending_deletes = pending_deletes
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for (id, session) in pending_deletes {
        if inner.remove_from_runtime(&id, session).await.is_ok() {
            tracing::info!(sandbox = %id, "it is gone after all");
        }
    }
}

/// Writes down which sandboxes' processes have ended by themselves: told by the runtime, and looked for now and
/// then, in case it could not be written down at once.
pub(crate) async fn reconcile_loop(inner: Weak<Inner>) {
    let Some(mut endings) = inner.upgrade().map(|inner| inner.runtime.subscribe_exits()) else {
        return;
    };
    loop {
        let _ = tokio::time::timeout(RECHECK_INTERVAL, endings.changed()).await;
        let Some(inner) = inner.upgrade() else { return };
        retry_deletes(&inner).await;
        inner.retry_discards().await;
        for info in inner.runtime.list() {
            if info.state == SandboxState::Stopped
                && let Some(entry) = inner.sandboxes.get(&info.id)
                && entry.read(has_processes)
            {
                // Each by itself: one may be in somebody's hands for a while.
                tokio::spawn(record_exit(Arc::clone(&inner), entry));
            }
        }
    }
}

fn has_processes(row: &SandboxRow) -> bool {
    matches!(row.state, SandboxState::Running | SandboxState::Paused)
}

/// Writes down that a sandbox has ended, unless somebody has done that or started it again.
async fn record_exit(inner: Arc<Inner>, entry: Arc<LiveSandbox>) {
    let Ok(held) = inner.sandboxes.lock(entry).await else {
        return;
    };
    let entry = &held.entry;
    let id = entry.read(|row| row.id.clone());
    let Ok(info) = inner.runtime.get(&id) else {
        return;
    };
    if info.state != SandboxState::Stopped || !entry.read(has_processes) {
        return;
    }
    let written = entry.update(&inner.store, |row| {
        let now = inner.clock.now();
        *row = apply_runtime_state(row.clone(), &info, now);
        row.end_at = deletion_time(&inner.config, row.stopped_at.unwrap_or(now));
    });
    match written.await {
        Ok(_) => tracing::info!(sandbox = %id, reason = ?info.reason, "it has ended"),
        // Its cause is logged already.
        Err(error) if error.code == Code::Internal => {}
        Err(error) => tracing::warn!(sandbox = %id, %error, "it has ended"),
    }
}
