//! Counts operations in flight, so that background work can wait until the runtime is idle.
//!
//! Quiescent means that nothing is in flight and that the last activity is at least [`QUIESCENCE`]
//! ago.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::sync::lock;

/// Time without activity after which background work may begin.
const QUIESCENCE: Duration = Duration::from_millis(10);

/// Counter of operations in flight; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight {
    count: Arc<watch::Sender<usize>>,
    last_activity: Arc<Mutex<Option<Instant>>>,
}

/// Counts one operation until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(InFlight);

impl InFlight {
    /// Restarts the quiescence period without counting an operation.
    pub(crate) fn record_activity(&self) {
        *lock(&self.last_activity) = Some(Instant::now());
    }

    /// Waits until nothing is in flight and [`QUIESCENCE`] has passed since the last activity.
    pub(crate) async fn wait_quiescent(&self) {
        loop {
            self.wait_idle().await;
            let since = lock(&self.last_activity).map_or(QUIESCENCE, |last| last.elapsed());
            if since >= QUIESCENCE {
                return;
            }
            tokio::time::sleep(QUIESCENCE.saturating_sub(since)).await;
        }
    }

    /// Counts one more operation, until the returned guard is dropped.
    pub(crate) fn begin(&self) -> InFlightGuard {
        self.record_activity();
        self.count.send_modify(|count| *count += 1);
        InFlightGuard(self.clone())
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn wait_idle(&self) {
        let mut count = self.count.subscribe();
        // Fails only without a sender, and `self` holds it.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.record_activity();
        self.0.count.send_modify(|count| *count -= 1);
    }
}
