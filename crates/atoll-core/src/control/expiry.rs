//! Background task that expires sandboxes: at the end of the timeout, of the idle timeout, or of the retention of a
//! stopped sandbox.
//!
//! The task computes the next expiry from the rows each time it is woken, by a change or by the clock, and keeps no
//! state of its own. Nothing expires while deadlines are held (see `clock`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{Error, ExpiryAction, SandboxId, SandboxState, StopReason};
use atoll_store::SandboxRow;

use crate::control::sandboxes::{Precondition, microseconds};
use crate::control::timekeeping::{self, Recorder};
use crate::live_sandboxes::LiveSandbox;
use crate::{Config, Core, Inner};

/// Upper bound between two checks. Idle time is polled: no event marks its start or end.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum lead of the system clock over server time in the recorded end of a command, in microseconds.
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

/// Compares the clocks before anything expires. Failures are retried in the next round.
async fn follow_clock(core: &Core, recorder: &mut Recorder) {
    let inner = &core.inner;
    // Failures are logged by the callee.
    let _ = timekeeping::check(&inner.store, &inner.sandboxes, &inner.clock).await;
    let _ = recorder.record(&inner.store, &inner.clock).await;
}

/// The next expiry of a sandbox.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    /// Server time in microseconds.
    at: i64,
    action: ExpiryAction,
    /// `None` at the end of the retention: the reason of the stop is kept.
    reason: Option<StopReason>,
}

/// Computes the next expiry of a sandbox. `None` if it does not expire or deadlines are held.
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
            // A running command prevents idling, and its end is activity, whichever server started it.
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

/// Time at which a sandbox that stopped at `stopped_at` is deleted. `None`: never.
pub(crate) fn deletion_time(config: &Config, stopped_at: i64) -> Option<i64> {
    let kept = i64::try_from(config.stopped_retention?.as_micros()).unwrap_or(i64::MAX);
    Some(stopped_at.saturating_add(kept))
}

/// Time of the last end of a command, or now if one runs. Terminals do not count. Ends are recorded by the system
/// clock: one that is far in the future was recorded before the clock was set back, and is ignored.
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

/// Starts the action of an expiry, unless a transition is in progress: then the next round checks again.
fn expire(core: &Core, entry: Arc<LiveSandbox>, expiry: Expiry) {
    let Expiry { action, reason, .. } = expiry;
    if entry.transition_lock.try_lock().is_err() {
        return;
    }
    let core = core.clone();
    tokio::spawn(async move {
        let id = entry.read(|row| row.id.clone());
        // Skip it if the sandbox was used, restarted or given more time meanwhile.
        let precondition = {
            let core = core.clone();
            Box::new(move |row: &SandboxRow, entry: &LiveSandbox| {
                next_expiry(&core, entry, row).is_some_and(|due| {
                    due.at <= core.now() && (due.action, due.reason) == (action, reason)
                })
            })
        };
        let done = match action {
            ExpiryAction::Destroy => core.delete_when(entry, precondition, reason).await,
            ExpiryAction::Stop => core.stop_when(entry, precondition, reason).await.map(drop),
            ExpiryAction::Pause => pause(&core, entry, precondition).await,
        };
        match done {
            Ok(()) => tracing::info!(sandbox = %id, ?action, "sandbox expired"),
            Err(error) => {
                tracing::warn!(sandbox = %id, ?action, %error, "failed to expire sandbox");
            }
        }
    });
}

/// Pauses an idle sandbox, and resumes it if an access began at the same moment, which would otherwise wait for ever.
async fn pause(
    core: &Core,
    entry: Arc<LiveSandbox>,
    precondition: Precondition,
) -> Result<(), Error> {
    core.pause_when(Arc::clone(&entry), precondition).await?;
    // A sandbox whose timeout has ended stays paused.
    let idle = |row: &SandboxRow| row.state == SandboxState::Paused && row.time_left != Some(0);
    let wakes = entry.read(|row| idle(row) && row.lifetime.auto_resume);
    if wakes && entry.idle_since().is_none() {
        core.resume_live(&entry, None).await?;
    }
    Ok(())
}
