//! Counts operations in flight, so that background work can wait until the runtime is idle.
//!
//! Quiescent means that nothing is in flight and that the last activity is at least [`QUIESCENCE`]
//! ago.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::sandbox::lock;

/// Time without activity after which background work may begin.
const CALM: Duration = Duration::from_millis(10);

/// Counter of operations in flight; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    count: Arc<watch::Sender<usize>>,
    last: Arc<Mutex<Option<Instant>>>,
}

/// Counts one operation until it is dropped.
#[derive(Debug)]
pub(crate) struct Work(Busy);

impl Busy {
    /// Restarts the quiescence period without counting an operation.
    pub(crate) fn touch(&self) {
        *lock(&self.last) = Some(Instant::now());
    }

    /// Waits until nothing is in flight and [`QUIESCENCE`] has passed since the last activity.
    pub(crate) async fn calm(&self) {
        loop {
            self.quiet().await;
            let since = lock(&self.last).map_or(CALM, |last| last.elapsed());
            if since >= CALM {
                return;
            }
            tokio::time::sleep(CALM.saturating_sub(since)).await;
        }
    }

    /// Counts one more operation, until the returned guard is dropped.
    pub(crate) fn begin(&self) -> Work {
        self.touch();
        self.count.send_modify(|count| *count += 1);
        Work(self.clone())
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn quiet(&self) {
        let mut count = self.count.subscribe();
        // Fails only without a sender, and `self` holds it.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.touch();
        self.0.count.send_modify(|count| *count -= 1);
    }
}
