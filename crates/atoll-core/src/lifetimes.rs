//! Ends sandboxes whose time is up: their lifetime, that of their idleness, or that of their files when they have
//! stopped. Takes no input: it looks at
//! what should be and makes it so, woken by a change and by the clock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{Error, ExpiryAction, SandboxId, SandboxState, StopReason};
use atoll_store::SandboxRow;

use crate::ledger::Entry;
use crate::sandboxes::{Still, microseconds};
use crate::timekeeping::{self, Recorder};
use crate::{Config, Core, Inner};

/// Idleness begins and ends without a word: looked at at least so often.
const EVERY: Duration = Duration::from_secs(1);

/// How far the system clock may be ahead of server time when a command's end is recorded, in microseconds.
const FUTURE: i64 = 60_000_000;

pub(crate) async fn watch(inner: Weak<Inner>) {
    let mut recorder = Recorder::default();
    loop {
        let Some(core) = inner.upgrade().map(|inner| Core { inner }) else {
            return;
        };
        keep_time(&core, &mut recorder).await;
        let mut next = core.now() + i64::try_from(EVERY.as_micros()).unwrap_or(i64::MAX);
        for entry in core.inner.ledger.all() {
            match due(&core, &entry, &entry.row()) {
                Some(due) if due.at <= core.now() => end(&core, entry, due),
                Some(due) => next = next.min(due.at),
                None => {}
            }
        }
        let wait = Duration::from_micros(u64::try_from(next - core.now()).unwrap_or(0));
        let inner = Arc::clone(&core.inner);
        drop(core);
        let _ = tokio::time::timeout(wait, inner.times.notified()).await;
    }
}

/// Follows the system clock before anything is ended. What cannot be recorded is tried again.
async fn keep_time(core: &Core, recorder: &mut Recorder) {
    let inner = &core.inner;
    // Failures are logged where they are found.
    let _ = timekeeping::check(&inner.store, &inner.ledger, &inner.clock).await;
    let _ = recorder.record(&inner.store, &inner.clock).await;
}

/// The next thing that happens to a sandbox by itself.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// In microseconds of server time.
    at: i64,
    ending: ExpiryAction,
    /// `None` for files whose retention ends: the reason of the stop stays.
    reason: Option<StopReason>,
}

/// When something happens to a sandbox by itself, and what. Nothing while deadlines are held.
fn due(core: &Core, entry: &Entry, row: &SandboxRow) -> Option<Due> {
    if core.inner.clock.is_held() {
        return None;
    }
    let lifetime = row.lifetime;
    match row.state {
        SandboxState::Running => {}
        SandboxState::Stopped => {
            return row.end_at.map(|at| Due {
                at,
                ending: ExpiryAction::Destroy,
                reason: None,
            });
        }
        _ => return None,
    }
    let lifetime_over = row.end_at.map(|at| Due {
        at,
        ending: lifetime.on_timeout,
        reason: Some(StopReason::Timeout),
    });
    let idle_over = lifetime.idle_timeout.and_then(|seconds| {
        let over = |since: i64| since + microseconds(seconds);
        let since = entry.idle_since()?;
        if over(since) <= core.now() {
            // A command that runs holds it, and its end is a use, whichever server began it.
            entry.touch_at(worked_until(core, &row.id));
        }
        Some(Due {
            at: over(entry.idle_since()?),
            ending: lifetime.on_idle,
            reason: Some(StopReason::Idle),
        })
    });
    match (lifetime_over, idle_over) {
        (Some(one), Some(two)) => Some(if two.at < one.at { two } else { one }),
        (one, two) => one.or(two),
    }
}

/// When the files of a sandbox that stopped at a time are deleted.
pub(crate) fn kept_until(config: &Config, stopped_at: i64) -> Option<i64> {
    let kept = i64::try_from(config.stopped_retention?.as_micros()).unwrap_or(i64::MAX);
    Some(stopped_at.saturating_add(kept))
}

/// Until when some command of it ran: now, if one does. A terminal that nobody looks at is none. Ends are recorded by the
/// system clock: one that is far in the future was recorded before the clock was set back, and says nothing.
fn worked_until(core: &Core, id: &SandboxId) -> i64 {
    let now = core.now();
    let all = core.inner.runtime.execs(id).unwrap_or_default();
    let commands = all.iter().filter(|exec| exec.spec.terminal.is_none());
    commands
        .map(|exec| {
            exec.ended_at
                .filter(|_| exec.status.is_some())
                .unwrap_or(now)
        })
        .filter(|until| *until <= now + FUTURE)
        .map(|until| until.min(now))
        .max()
        .unwrap_or_default()
}

/// One that is being changed by somebody is looked at again when that is done.
fn end(core: &Core, entry: Arc<Entry>, due_now: Due) {
    let Due { ending, reason, .. } = due_now;
    if entry.gate.try_lock().is_err() {
        return;
    }
    let core = core.clone();
    tokio::spawn(async move {
        let id = entry.with(|row| row.id.clone());
        // Not if somebody starts or uses it, or gives it more time, just now.
        let still = {
            let core = core.clone();
            Box::new(move |row: &SandboxRow, entry: &Entry| {
                due(&core, entry, row).is_some_and(|due| {
                    due.at <= core.now() && (due.ending, due.reason) == (ending, reason)
                })
            })
        };
        let done = match ending {
            ExpiryAction::Destroy => core.delete_if(entry, still, reason).await,
            ExpiryAction::Stop => core.stop_if(entry, still, reason).await.map(drop),
            ExpiryAction::Pause => pause(&core, entry, still).await,
        };
        match done {
            Ok(()) => tracing::info!(sandbox = %id, ?ending, "its time was up"),
            Err(error) => tracing::warn!(sandbox = %id, ?ending, %error, "its time is up"),
        }
    });
}

/// Pauses it. Who began to use it at that very moment would wait for ever: it goes on then, if it may.
async fn pause(core: &Core, entry: Arc<Entry>, still: Still) -> Result<(), Error> {
    core.pause_if(Arc::clone(&entry), still).await?;
    // One whose lifetime is over stands still, whoever uses it.
    let idle = |row: &SandboxRow| row.state == SandboxState::Paused && row.time_left != Some(0);
    let wakes = entry.with(|row| idle(row) && row.lifetime.auto_resume);
    if wakes && entry.idle_since().is_none() {
        core.resume_entry(&entry, None).await?;
    }
    Ok(())
}
