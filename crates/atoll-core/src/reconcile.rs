//! Joins what should be with what is: at the start, and when a sandbox's processes end by themselves.
//!
//! It destroys only what was never told to anybody and what a row says is deleted. What has no row at all
//! is set aside by the runtime, not removed.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;
use std::time::Duration;

use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxState};
use atoll_store::{SandboxRow, Store};
use atoll_worker::LocalRuntime;

use crate::ledger::{Ledger, kind};
use crate::lifetimes::kept_until;
use crate::sandboxes::end_of;
use crate::{Config, Inner, error, now};

/// How often is asked whether processes are gone.
const EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn join(
    store: &Store,
    runtime: &LocalRuntime,
    config: &Config,
) -> Result<Ledger, Error> {
    let ledger = Ledger::default();
    let is: HashMap<SandboxId, SandboxInfo> = runtime
        .list()
        .into_iter()
        .map(|info| (info.id.clone(), info))
        .collect();
    let mut known = HashSet::new();
    for row in store.living().await.map_err(error::store)? {
        known.insert(row.id.clone());
        let found = is.get(&row.id);
        if row.state == SandboxState::Creating && row.started_at.is_none() {
            // Nobody was told of it.
            if found.is_some() {
                runtime.delete(&row.id).await?;
            }
            let gone = SandboxRow {
                state: SandboxState::Failed,
                error: Some("the server ended while it was made".into()),
                deleted_at: Some(now()),
                ..row
            };
            let written = store.update_sandbox(&gone, "deleted", now()).await;
            written.map_err(error::store)?;
            store.forget_said(&gone.id).await.map_err(error::store)?;
            continue;
        }
        let joined = match found {
            Some(info) => as_it_is(row.clone(), info),
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
                end_at: kept_until(config, joined.stopped_at.unwrap_or_else(now)),
                ..joined
            },
            _ => joined,
        };
        if joined != row {
            let written = store.update_sandbox(&joined, kind(&row, &joined), now());
            written.await.map_err(error::store)?;
        }
        ledger.add(joined);
    }
    for id in is.keys().filter(|id| !known.contains(*id)) {
        if store.was_deleted(id).await.map_err(error::store)? {
            runtime.delete(id).await?;
        } else {
            tracing::warn!(sandbox = %id, "it has no row: set aside");
            runtime.set_aside(id).await?;
        }
    }
    Ok(ledger)
}

/// The row of a sandbox that the runtime knows.
fn as_it_is(mut row: SandboxRow, info: &SandboxInfo) -> SandboxRow {
    match (row.state, info.state) {
        // A pause or a resume that was not answered.
        (SandboxState::Running, SandboxState::Paused) => {
            row.time_left = row.end_at.take().map(|end| (end - now()).max(0));
        }
        (SandboxState::Paused, SandboxState::Running) => {
            row.end_at = row.time_left.take().map(|left| now() + left);
        }
        (SandboxState::Stopped, SandboxState::Running) => row.end_at = end_of(&row.lifetime),
        (before, SandboxState::Stopped) if before != SandboxState::Stopped => {
            row.stopped_at = Some(now());
            (row.end_at, row.time_left) = (None, None);
        }
        _ => {}
    }
    row.state = info.state;
    row.reason = info.reason;
    row
}

/// Writes down which sandboxes' processes have ended by themselves.
pub(crate) async fn follow(inner: Weak<Inner>) {
    let mut clock = tokio::time::interval(EVERY);
    loop {
        clock.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        for info in inner.runtime.list() {
            let Some(entry) = inner.ledger.get(&info.id) else {
                continue;
            };
            let live =
                entry.with(|row| matches!(row.state, SandboxState::Running | SandboxState::Paused));
            if !live || info.state != SandboxState::Stopped {
                continue;
            }
            // One that is being changed by somebody is looked at again.
            let Ok(_gate) = entry.gate.try_lock() else {
                continue;
            };
            let written = entry.write(&inner.store, |row| {
                *row = as_it_is(row.clone(), &info);
                row.end_at = kept_until(&inner.config, row.stopped_at.unwrap_or_else(now));
            });
            match written.await {
                Ok(_) => tracing::info!(sandbox = %info.id, reason = ?info.reason, "it has ended"),
                Err(error) if error.code == Code::Internal => {}
                Err(error) => tracing::warn!(sandbox = %info.id, %error, "it has ended"),
            }
        }
    }
}
