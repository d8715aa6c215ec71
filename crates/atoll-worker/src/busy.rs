//! Counts what is under way, so that others can wait until nothing is, and has not been for a moment.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::sandbox::lock;

/// What nobody waits for begins when nobody has asked for anything for so long.
const CALM: Duration = Duration::from_millis(10);

/// How much is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    count: Arc<watch::Sender<usize>>,
    last: Arc<Mutex<Option<Instant>>>,
}

/// Something under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Work(Busy);

impl Busy {
    /// Somebody has asked for something.
    pub(crate) fn touch(&self) {
        *lock(&self.last) = Some(Instant::now());
    }

    /// Waits until nothing is under way, nor has been for a moment.
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

    /// Begins something.
    pub(crate) fn begin(&self) -> Work {
        self.touch();
        self.count.send_modify(|count| *count += 1);
        Work(self.clone())
    }

    /// Waits until nothing is under way.
    pub(crate) async fn quiet(&self) {
        let mut count = self.count.subscribe();
        // We hold the sender ourselves.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.touch();
        self.0.count.send_modify(|count| *count -= 1);
    }
}
