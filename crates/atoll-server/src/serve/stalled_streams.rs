//! Answers in HTTP/2 that nobody takes. Their connection goes on, with other answers on it: whoever opens no window for
//! one of them loses that one. What is sent over a connection of its own is watched there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use hyper::rt::Executor;
use tokio::time::{Instant, sleep_until};

/// The most that is given to HTTP/2 at a time: it keeps what it was given for as long as its connection lives.
const CHUNK_BYTES: usize = 16 << 10;

tokio::task_local! {
    /// The answer that this task sends.
    static PROGRESS: SendProgress;
}

/// Since when somebody could take the last piece of an answer, and has not.
#[derive(Debug, Clone, Default)]
pub(super) struct SendProgress(Arc<Mutex<Option<Instant>>>);

impl SendProgress {
    /// Of the answer to the request that this task serves, in HTTP/2.
    pub(super) fn of_current_stream() -> Option<Self> {
        PROGRESS.try_with(Self::clone).ok()
    }

    fn offered_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece is there to be taken.
    pub(super) fn offered(&self) {
        *self.offered_at() = Some(Instant::now());
    }

    /// All is taken.
    pub(super) fn accepted(&self) {
        *self.offered_at() = None;
    }

    /// Waits until a piece is not taken for so long.
    async fn stalled(&self, stall_timeout: Duration) {
        let mut check_at = Instant::now() + stall_timeout;
        loop {
            sleep_until(check_at).await;
            let now = Instant::now();
            // One that is offered meanwhile is not late before the next look.
            let stalled_at = self.offered_at().unwrap_or(now) + stall_timeout;
            if stalled_at <= now {
                return;
            }
            check_at = stalled_at;
        }
    }
}

/// Cuts a piece off what is to be sent.
pub(super) fn take_chunk(bytes: &mut Bytes) -> Bytes {
    bytes.split_to(bytes.len().min(CHUNK_BYTES))
}

/// Runs the streams of a connection, each in a task of its own, until nobody takes its answer for too long.
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
                // Without the task that sends it the stream is reset.
                () = progress.stalled(stall_timeout) => tracing::debug!("nobody takes an answer"),
            }
        });
    }
}
