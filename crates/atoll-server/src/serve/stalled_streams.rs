//! Resets HTTP/2 streams whose client opens no flow-control window for the response. The connection
//! and its other streams continue. HTTP/1 responses have a write timeout instead.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use hyper::rt::Executor;
use tokio::time::{Instant, sleep_until};

/// Largest chunk passed to hyper at once: the connection keeps a buffer of that size.
const CHUNK_BYTES: usize = 16 << 10;

tokio::task_local! {
    /// Progress of the response that the current task sends.
    static PROGRESS: SendProgress;
}

/// Time since when the current chunk of a response waits for window; `None` if none waits.
#[derive(Debug, Clone, Default)]
pub(super) struct SendProgress(Arc<Mutex<Option<Instant>>>);

impl SendProgress {
    /// Progress of the current HTTP/2 stream; `None` in HTTP/1.
    pub(super) fn of_current_stream() -> Option<Self> {
        PROGRESS.try_with(Self::clone).ok()
    }

    fn offered_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A chunk was passed to hyper.
    pub(super) fn offered(&self) {
        *self.offered_at() = Some(Instant::now());
    }

    /// The chunk was sent.
    pub(super) fn accepted(&self) {
        *self.offered_at() = None;
    }

    /// Completes when a chunk has waited for this long.
    async fn stalled(&self, stall_timeout: Duration) {
        let mut check_at = Instant::now() + stall_timeout;
        loop {
            sleep_until(check_at).await;
            let now = Instant::now();
            // A chunk offered meanwhile cannot stall before the next check.
            let stalled_at = self.offered_at().unwrap_or(now) + stall_timeout;
            if stalled_at <= now {
                return;
            }
            check_at = stalled_at;
        }
    }
}

/// Splits off the next chunk.
pub(super) fn take_chunk(bytes: &mut Bytes) -> Bytes {
    bytes.split_to(bytes.len().min(CHUNK_BYTES))
}

/// Runs each HTTP/2 stream in a task and drops streams that stall.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamExecutor {
    pub(super) stall_timeout: Duration,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (stall_timeout, progress) = (self.stall_timeout, SendProgress::default());
        tokio::spawn(async move {
            tokio::select! {
                () = PROGRESS.scope(progress.clone(), stream) => {}
                // Dropping the task resets the stream.
                () = progress.stalled(stall_timeout) => tracing::debug!("HTTP/2 stream stalled"),
            }
        });
    }
}
