//! Reconciles rows with the runtime: at the start of the server, and when processes of a sandbox exit.
//!
//! Only two kinds of sandboxes are destroyed: those whose create was never acknowledged, and those whose row is marked
//! as deleted. A sandbox without a row is moved to `orphaned/`, or adopted if the operator configured that.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::runtime::{Recovery, Runtime};
use atoll_model::{
    Code, Error, Lifetime, Notification, PortAccess, SandboxId, SandboxInfo, SandboxSpec,
    SandboxState, SessionId, StopReason, Topic, lock,
};
use atoll_store::{SandboxRow, Store};
use tokio::time::MissedTickBehavior;

use crate::clock::Clock;
use crate::control::expiry::deletion_time;
use crate::control::orgs;
use crate::control::sandboxes::{copy_deadlines, end_at_after_restart, push_deadlines};
use crate::live_sandboxes::{LiveSandbox, LiveSandboxes, change_event};
use crate::{Config, Core, Inner, error};

/// Upper bound between two checks for exited sandboxes, and retry interval of failed deletes.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Compares all rows with the runtime and corrects both. Returns the sandboxes that are not deleted, and those that
/// could not be removed from the runtime.
pub(crate) async fn reconcile_all(
    store: &Store,
    runtime: &dyn Runtime,
    config: &Config,
    clock: &Arc<Clock>,
) -> Result<(LiveSandboxes, HashSet<SandboxId>), Error> {
    let (sandboxes, mut pending_deletes) = (LiveSandboxes::new(clock), HashSet::new());
    let is: HashMap<SandboxId, SandboxInfo> = runtime
        .list()
        .await?
        .into_iter()
        .map(|info| (info.id.clone(), info))
        .collect();
    let mut known = HashSet::new();
    for row in store.active_sandboxes().await.map_err(error::store)? {
        known.insert(row.id.clone());
        let found = is.get(&row.id);
        if row.state == SandboxState::Creating && row.started_at.is_none() {
            // The create was never acknowledged.
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
                    tracing::warn!(sandbox = %row.id, %error, "cannot remove sandbox of an unacknowledged create, will retry");
                    record_failed_create(store, &row, &error, clock.now()).await?;
                    pending_deletes.insert(row.id.clone());
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
        // Apply the current retention setting, not that of the time of the stop.
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
        if joined.state.has_processes() {
            // The runtime may lack the last change of the row, or everything if an earlier version created the sandbox.
            // The runtime enforces them even if it cannot store them, for example on a full disk.
            if let Err(error) = push_deadlines(runtime, &joined).await {
                tracing::warn!(sandbox = %joined.id, %error, "failed to store deadlines");
            }
        }
        sandboxes.add(joined);
    }
    for id in is.keys().filter(|id| !known.contains(*id)) {
        if store.is_deleted(id).await.map_err(error::store)? {
            if runtime.delete(id).await.is_err() {
                pending_deletes.insert(id.clone());
            }
        } else if config.adopt_orphans {
            let row = adopt(store, runtime, config, &is[id], clock.now()).await?;
            tracing::warn!(sandbox = %id, org = %row.org, "a sandbox without a row was adopted");
            sandboxes.add(row);
        } else {
            tracing::warn!(sandbox = %id, "sandbox without a row moved to orphaned/");
            if let Err(error) = runtime.move_to_orphaned(id).await {
                tracing::warn!(sandbox = %id, %error, "failed to move sandbox to orphaned/");
            }
        }
    }
    Ok((sandboxes, pending_deletes))
}

/// Inserts a row for a sandbox that only the runtime has. It gets the first org as owner, no timeout and private ports,
/// because the original values are lost.
async fn adopt(
    store: &Store,
    runtime: &dyn Runtime,
    config: &Config,
    info: &SandboxInfo,
    now: i64,
) -> Result<SandboxRow, Error> {
    let has_processes = info.state.has_processes();
    let spec = runtime.spec(&info.id).await?;
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
        started_at: Some(if has_processes { now } else { info.created_at }),
        end_at: if has_processes {
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

/// Recovers a sandbox whose files are in `orphaned/`: an earlier start, whose database did not have its row, moved
/// them, or this one, because a power failure left its record empty, torn or outdated. The row has everything except
/// the environment variables.
async fn recover(runtime: &dyn Runtime, row: &SandboxRow) -> Result<Option<SandboxInfo>, Error> {
    if row.state == SandboxState::Failed {
        return Ok(None);
    }
    let spec = SandboxSpec {
        template: row.template.clone(),
        limits: row.limits,
        network: row.network,
        policy: row.policy.clone(),
        durable: row.durable,
        lifetime: Some(row.lifetime),
        ..SandboxSpec::default()
    };
    match runtime.recover(&row.id, spec, row.created_at).await? {
        None => return Ok(None),
        Some(Recovery::Intact) => {
            tracing::warn!(sandbox = %row.id, "sandbox recovered from orphaned/");
        }
        Some(Recovery::WithoutRecord) => {
            tracing::warn!(sandbox = %row.id, "record was lost: sandbox recovered without its environment variables");
        }
    }
    runtime.get(&row.id).await.map(Some)
}

/// Marks the row of an unacknowledged create as failed and deleted when its sandbox cannot be removed.
async fn record_failed_create(
    store: &Store,
    row: &SandboxRow,
    reason: &Error,
    now: i64,
) -> Result<(), Error> {
    let after = SandboxRow {
        state: SandboxState::Failed,
        error: Some(reason.message.clone()),
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

/// Updates a row to the state that the runtime reports.
fn apply_runtime_state(mut row: SandboxRow, info: &SandboxInfo, now: i64) -> SandboxRow {
    match (row.state, info.state) {
        // A pause or resume whose result was not recorded.
        (SandboxState::Running, SandboxState::Paused) => {
            row.time_left = row.end_at.take().map(|end| (end - now).max(0));
            row.stopped_at = Some(now);
            copy_deadlines(&mut row, info);
        }
        (SandboxState::Paused, SandboxState::Running) => {
            row.end_at = row.time_left.take().map(|left| now + left);
            row.stopped_at = None;
            copy_deadlines(&mut row, info);
        }
        // A start whose result was not recorded: it had claimed quota, and then succeeded.
        (SandboxState::Stopped | SandboxState::Creating, SandboxState::Running) => {
            row.end_at = end_at_after_restart(&row.lifetime, now);
            row.started_at = Some(now);
            (row.stopped_at, row.time_left) = (None, None);
            copy_deadlines(&mut row, info);
        }
        // A start that did not succeed.
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

/// Retries the deletes that failed in the runtime.
async fn retry_deletes(inner: &Inner) {
    let pending_deletes = lock(&inner.pending_deletes).clone();
    for id in pending_deletes {
        if inner.remove_from_runtime(&id).await.is_ok() {
            tracing::info!(sandbox = %id, "sandbox removed on retry");
        }
    }
}

/// Background task that lets rows follow the runtime and retries failed deletes and creates. The runtime notifies it of
/// changes; it also checks periodically, because a row may not have been writable at the time of a change.
pub(crate) async fn reconcile_loop(inner: Weak<Inner>) {
    let subscribed = inner.upgrade();
    let Some(mut changes) = subscribed.map(|inner| inner.events.subscribe(Topic::SandboxChanged))
    else {
        return;
    };
    let mut recheck = tokio::time::interval(RECHECK_INTERVAL);
    recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            _ = recheck.tick() => None,
        };
        let Some(core) = inner.upgrade().map(|inner| Core { inner }) else {
            return;
        };
        if let Some(Notification::SandboxChanged(id)) = change {
            if let Some(entry) = core.inner.sandboxes.get(&id) {
                // In a task of its own, because a transition may hold the lock for a while.
                tokio::spawn(async move { core.follow_runtime(&entry).await });
            }
            continue;
        }
        retry_deletes(&core.inner).await;
        core.inner.retry_discards().await;
        let Ok(all) = core.inner.runtime.list().await else {
            continue;
        };
        for info in all {
            if let Some(entry) = core.inner.sandboxes.get(&info.id)
                && entry.read(|row| differs(row, &info))
            {
                let core = core.clone();
                tokio::spawn(async move { core.follow_runtime(&entry).await });
            }
        }
    }
}

/// How long a request for a sandbox waits until its row has followed a change of the runtime.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a row must follow the runtime.
fn differs(row: &SandboxRow, info: &SandboxInfo) -> bool {
    use SandboxState::{Paused, Running, Stopped};
    let is_settled = |state| matches!(state, Running | Paused | Stopped);
    info.awaits_deletion
        || (is_settled(row.state) && is_settled(info.state) && row.state != info.state)
}

impl Core {
    /// Waits until the row of a sandbox has followed a change that the runtime is making by itself, so that a client which
    /// sees a command die with its sandbox also sees why.
    /// Returns false if the row was current.
    pub(crate) async fn catch_up(&self, entry: &Arc<LiveSandbox>) -> bool {
        let runtime = &self.inner.runtime;
        let is_current = |row: &SandboxRow| {
            let is_same = |known| known == row.state;
            !row.state.has_processes() || runtime.known_state(&row.id).is_none_or(is_same)
        };
        if entry.read(is_current) {
            return false;
        }
        let id = entry.read(|row| row.id.clone());
        let (core, entry) = (self.clone(), Arc::clone(entry));
        // In a task of its own, so that it is completed.
        let following = tokio::spawn(async move {
            let _ = core.inner.runtime.get_settled(&id).await;
            core.follow_runtime(&entry).await;
        });
        let _ = tokio::time::timeout(CATCH_UP_TIMEOUT, following).await;
        true
    }

    /// Records a change that the runtime made by itself: an exit, an expiry, or a resume by a use. Does nothing if the row
    /// has followed already.
    pub(crate) async fn follow_runtime(&self, entry: &Arc<LiveSandbox>) {
        let Ok(locked) = self.inner.sandboxes.lock(Arc::clone(entry)).await else {
            return;
        };
        let id = entry.read(|row| row.id.clone());
        let Ok(info) = self.inner.runtime.get(&id).await else {
            return;
        };
        if !entry.read(|row| differs(row, &info)) {
            return;
        }
        let written = if info.awaits_deletion {
            self.delete_locked(&locked, info.reason).await
        } else {
            self.copy_runtime_state(entry, &info).await
        };
        match (written, info.reason) {
            // The runtime has logged it.
            (Ok(()), None | Some(StopReason::Timeout | StopReason::Idle)) => {}
            (Ok(()), reason) => tracing::info!(sandbox = %id, ?reason, "sandbox has exited"),
            // The cause is logged already.
            (Err(error), _) if error.code == Code::Internal => {}
            (Err(error), _) => {
                let state = info.state.name();
                tracing::warn!(sandbox = %id, state, %error, "failed to record a change of state, will retry");
            }
        }
    }

    async fn copy_runtime_state(
        &self,
        entry: &LiveSandbox,
        info: &SandboxInfo,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let written = entry.update(&inner.store, |row| {
            let now = inner.clock.now();
            *row = apply_runtime_state(row.clone(), info, now);
            if row.state == SandboxState::Stopped {
                row.end_at = deletion_time(&inner.config, row.stopped_at.unwrap_or(now));
            }
        });
        written.await.map(drop)
    }
}
