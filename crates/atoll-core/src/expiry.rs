//! Ends sandboxes whose time is up: their lifetime, that of their idleness, or that of their files when they have
//! stopped. Takes no input: it looks at
//! what should be and makes it so, woken by a change and by the clock.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{Error, ExpiryAction, SandboxId, SandboxState, StopReason};
use atoll_store::SandboxRow;

use crate::live_sandboxes::LiveSandbox;
use crate::sandboxes::{Precondition, microseconds};
use crate::timekeeping::{self, Recorder};
use crate::{Config, Core, Inner};

/// Idleness begins and ends without a word: looked at at least so often.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How far the system clock may be ahead of server time when a command's end is recorded, in microseconds.
const MAX_CLOCK_LEAD: i64 = 60_000_000;

pub(crate) async fn expiry_loop(inner: Weak<Inner>) {
    let mut recorder = Recorder::default();
    loop {
        let Some(core) = inner.upgrade().map(|inner| Core { inner }) else {
            return;
        };
        follow_clock(&core, &mut recorder).await;
        let mut next = core.now() + i64::try_from(CHECK_INTERVAL.as_micros()).unwrap_or(i64::MAX);
        for entry in core.inner.sandboxes.all() {
            match next_expiry(&core, &entry, &entry.row()) {
                Some(due) if due.at <= core.now() => expire(&core, entry, due),
                Some(due) => next = next.min(due.at),
                None => {}
            }
        }
        let wait = Duration::from_micros(u64::try_from(next - core.now()).unwrap_or(0));
        let inner = Arc::clone(&core.inner);
        drop(core);
        let _ = tokio::time::timeout(wait, inner.expiry_changed.notified()).await;
    }
}

/// Follows the system clock before anything is ended. What cannot be recorded is tried again.
async fn follow_clock(core: &Core, recorder: &mut Recorder) {
    let inner = &core.inner;
    // Failures are logged where they are found.
    let _ = timekeeping::check(&inner.store, &inner.sandboxes, &inner.clock).await;
    let _ = recorder.record(&inner.store, &inner.clock).await;
}

/// The next thing that happens to a sandbox by itself.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    /// In microseconds of server time.
    at: i64,
    action: ExpiryAction,
    /// `None` for files whose retention ends: the reason of the stop stays.
    reason: Option<StopReason>,
}

/// When something happens to a sandbox by itself, and what. Nothing while deadlines are held.
fn next_expiry(core: &Core, entry: &LiveSandbox, row: &SandboxRow) -> Option<Expiry> {
    if core.inner.clock.is_held() {
        return None;
    }
    let lifetime = row.lifetime;
    match row.state {
        SandboxState::Running => {}
        SandboxState::Stopped => {
            return row.end_at.map(|at| Expiry {
                at,
                action: ExpiryAction::Destroy,
                reason: None,
            });
        }
        _ => return None,
    }
    let lifetime_over = row.end_at.map(|at| Expiry {
        at,
        action: lifetime.on_timeout,
        reason: Some(StopReason::Timeout),
    });
    let idle_over = lifetime.idle_timeout.and_then(|seconds| {
        let over = |since: i64| since + microseconds(seconds);
        let since = entry.idle_since()?;
        if over(since) <= core.now() {
            // A command that runs holds it, and its end is a use, whichever server began it.
            entry.record_activity_at(last_exec_activity(core, &row.id));
        }
        Some(Expiry {
            at: over(entry.idle_since()?),
            action: lifetime.on_idle,
            reason: Some(StopReason::Idle),
        })
    });
    match (lifetime_over, idle_over) {
        (Some(one), Some(two)) => Some(if two.at < one.at { two } else { one }),
        (one, two) => one.or(two),
    }
}

/// When the files of a sandbox that stopped at a time are deleted.
pub(crate) fn deletion_time(config: &Config, stopped_at: i64) -> Option<i64> {
    let kept = i64::try_from(config.stopped_retention?.as_micros()).unwrap_or(i64::MAX);
    Some(stopped_at.saturating_add(kept))
}

/// Until when some command of it ran: now, if one does. A terminal that nobody looks at is none. Ends are recorded by the
/// system clock: one that is far in the future was recorded before the clock was set back, and says nothing.
fn last_exec_activity(core: &Core, id: &SandboxId) -> i64 {
    let now = core.now();
    let all = core.inner.runtime.execs(id).unwrap_or_default();
    let commands = all.iter().filter(|exec| exec.spec.terminal.is_none());
    commands
        .map(|exec| {
            exec.ended_at
                .filter(|_| exec.status.is_some())
                .unwrap_or(now)
        })
        .filter(|until| *until <= now + MAX_CLOCK_LEAD)
        .map(|until| until.min(now))
        .max()
        .unwrap_or_default()
}

/// One that is being changed by somebody is looked at again when that is done.
fn expire(core: &Core, entry: Arc<LiveSandbox>, due_now: Expiry) {
    let Expiry { action, reason, .. } = due_now;
    if entry.transition_lock.try_lock().is_err() {
        return;
    }
    let core = core.clone();
    tokio::spawn(async move {
        let id = entry.read(|row| row.id.clone());
        // Not if somebody starts or uses it, or gives it more time, just now.
        let still = {
            let core = core.clone();
            Box::new(move |row: &SandboxRow, entry: &LiveSandbox| {
                next_expiry(&core, entry, row).is_some_and(|due| {
                    due.at <= core.now() && (due.action, due.reason) == (action, reason)
                })
            })
        };
        let done = match action {
            ExpiryAction::Destroy => core.delete_when(entry, still, reason).await,
            ExpiryAction::Stop => core.stop_when(entry, still, reason).await.map(drop),
            ExpiryAction::Pause => pause(&core, entry, still).await,
        };
        match done {
            Ok(()) => tracing::info!(sandbox = %id, ?action, "its time was up"),
            Err(error) => tracing::warn!(sandbox = %id, ?action, %error, "its time is up"),
        }
    });
}

/// Pauses it. Who began to use it at that very moment would wait for ever: it goes on then, if it may.
async fn pause(core: &Core, entry: Arc<LiveSandbox>, still: Precondition) -> Result<(), Error> {
    core.pause_when(Arc::clone(&entry), still).await?;
    // One whose lifetime is over stands still, whoever uses it.
    let idle = |row: &SandboxRow| row.state == SandboxState::Paused && row.time_left != Some(0);
    let wakes = entry.read(|row| idle(row) && row.lifetime.auto_resume);
    if wakes && entry.idle_since().is_none() {
        core.resume_live(&entry, None).await?;
    }
    Ok(())
}
