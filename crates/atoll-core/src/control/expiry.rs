//! Background task that follows the system clock and deletes stopped sandboxes at the end of their retention.
//!
//! Timeouts and idle timeouts of sandboxes with processes are enforced by the runtime. Nothing expires while deadlines
//! are held (see `clock`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::SandboxState;
use atoll_store::SandboxRow;

use crate::control::timekeeping::{self, Recorder};
use crate::live_sandboxes::LiveSandbox;
use crate::{Config, Core, Inner};

/// Upper bound between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn expiry_loop(inner: Weak<Inner>) {
    let mut recorder = Recorder::default();
    loop {
        let Some(core) = inner.upgrade().map(|inner| Core { inner }) else {
            return;
        };
        follow_clock(&core, &mut recorder).await;
        for entry in core.inner.sandboxes.all() {
            if entry.read(|row| is_over(&core, row)) && entry.transition_lock.try_lock().is_ok() {
                tokio::spawn(delete(core.clone(), entry));
            }
        }
        let inner = Arc::clone(&core.inner);
        drop(core);
        let _ = tokio::time::timeout(CHECK_INTERVAL, inner.expiry_changed.notified()).await;
    }
}

/// Compares the clocks before anything expires. Failures are retried in the next round.
async fn follow_clock(core: &Core, recorder: &mut Recorder) {
    let inner = &core.inner;
    // Failures are logged by the callee.
    let _ = timekeeping::check(&inner.store, &inner.sandboxes, &inner.clock).await;
    let _ = recorder.record(&inner.store, &inner.clock).await;
}

/// Whether the retention of a stopped sandbox has ended.
fn is_over(core: &Core, row: &SandboxRow) -> bool {
    row.state == SandboxState::Stopped
        && !core.inner.clock.is_held()
        && row.end_at.is_some_and(|at| at <= core.now())
}

/// Time at which a sandbox that stopped at `stopped_at` is deleted. `None`: never.
pub(crate) fn deletion_time(config: &Config, stopped_at: i64) -> Option<i64> {
    let kept = i64::try_from(config.stopped_retention?.as_micros()).unwrap_or(i64::MAX);
    Some(stopped_at.saturating_add(kept))
}

/// Deletes a stopped sandbox, unless it was started meanwhile.
async fn delete(core: Core, entry: Arc<LiveSandbox>) {
    let id = entry.read(|row| row.id.clone());
    let still_over = {
        let core = core.clone();
        move |row: &SandboxRow| is_over(&core, row)
    };
    match core.delete_if(entry, still_over, None).await {
        Ok(()) => tracing::info!(sandbox = %id, "retention of a stopped sandbox has ended"),
        Err(error) => {
            tracing::warn!(sandbox = %id, %error, "failed to delete stopped sandbox");
        }
    }
}
