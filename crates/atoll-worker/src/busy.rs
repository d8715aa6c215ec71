//! Counts what is under way, so that others can wait until nothing is.

use std::sync::Arc;

use tokio::sync::watch;

/// How much is under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    count: Arc<watch::Sender<usize>>,
}

/// Something under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Work {
    count: Arc<watch::Sender<usize>>,
}

impl Busy {
    /// Begins something.
    pub(crate) fn begin(&self) -> Work {
        self.count.send_modify(|count| *count += 1);
        Work {
            count: Arc::clone(&self.count),
        }
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
        self.count.send_modify(|count| *count -= 1);
    }
}
