//! Ends sandboxes whose time is up: their lifetime, that of their idleness, or that of their files when they have
//! stopped. Takes no input: it looks at
//! what should be and makes it so, woken by a change and by the clock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{Ending, SandboxState};
use atoll_store::SandboxRow;

use crate::ledger::Entry;
use crate::{Config, Core, Inner, now};

/// Idleness begins and ends without a word: looked at at least so often.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn watch(inner: Weak<Inner>) {
    loop {
        let Some(core) = inner.upgrade().map(|inner| Core { inner }) else {
            return;
        };
        let mut next = now() + i64::try_from(EVERY.as_micros()).unwrap_or(i64::MAX);
        for entry in core.inner.ledger.all() {
            match due(&core, &entry) {
                Some((at, ending)) if at <= now() => end(&core, entry, ending),
                Some((at, _)) => next = next.min(at),
                None => {}
            }
        }
        let wait = Duration::from_micros(u64::try_from(next - now()).unwrap_or(0));
        let inner = Arc::clone(&core.inner);
        drop(core);
        let _ = tokio::time::timeout(wait, inner.times.notified()).await;
    }
}

/// When something happens to a sandbox by itself, and what.
fn due(core: &Core, entry: &Entry) -> Option<(i64, Ending)> {
    let (state, end, lifetime) = entry.with(|row| (row.state, row.end_at, row.lifetime));
    match state {
        SandboxState::Running => {}
        SandboxState::Stopped => return end.map(|end| (end, Ending::Destroy)),
        _ => return None,
    }
    let lifetime_over = end.map(|end| (end, lifetime.on_timeout));
    let idle_over = lifetime.idle_timeout.and_then(|seconds| {
        let over = |since: i64| since + i64::from(seconds) * 1_000_000;
        let mut since = entry.idle_since()?;
        // A command that runs holds it, whichever server began it; a terminal that nobody looks at does not.
        if over(since) <= now() && works(core, entry) {
            entry.touch();
            since = now();
        }
        Some((over(since), lifetime.on_idle))
    });
    match (lifetime_over, idle_over) {
        (Some(one), Some(two)) => Some(if two.0 < one.0 { two } else { one }),
        (one, two) => one.or(two),
    }
}

/// When the files of a sandbox that stopped at a time are deleted.
pub(crate) fn kept_until(config: &Config, stopped_at: i64) -> Option<i64> {
    let kept = i64::try_from(config.stopped_retention?.as_micros()).unwrap_or(i64::MAX);
    Some(stopped_at.saturating_add(kept))
}

/// Some command of it runs.
fn works(core: &Core, entry: &Entry) -> bool {
    let id = entry.with(|row| row.id.clone());
    let all = core.inner.runtime.execs(&id).unwrap_or_default();
    all.iter()
        .any(|exec| exec.status.is_none() && exec.spec.terminal.is_none())
}

/// One that is being changed by somebody is looked at again when that is done.
fn end(core: &Core, entry: Arc<Entry>, ending: Ending) {
    if entry.gate.try_lock().is_err() {
        return;
    }
    let core = core.clone();
    tokio::spawn(async move {
        let (id, state, end) = entry.with(|row| (row.id.clone(), row.state, row.end_at));
        let done = match ending {
            // Not if somebody starts it, or gives it more time, just now.
            Ending::Destroy => {
                let still = move |row: &SandboxRow| (row.state, row.end_at) == (state, end);
                core.delete_if(entry, still).await
            }
            Ending::Stop => core.stop_entry(entry).await.map(drop),
            Ending::Pause => core.pause_entry(entry).await.map(drop),
        };
        match done {
            Ok(()) => tracing::info!(sandbox = %id, ?ending, "its time was up"),
            Err(error) => tracing::warn!(sandbox = %id, ?ending, %error, "its time is up"),
        }
    });
}
