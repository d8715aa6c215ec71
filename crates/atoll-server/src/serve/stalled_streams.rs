//! Answers in HTTP/2 that nobody takes. Their connection goes on, with other answers on it: whoever opens no window for
//! one of them loses that one. What is sent over a connection of its own is watched there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use hyper::rt::Executor;
use tokio::time::{Instant, sleep_until};

/// The most that is given to HTTP/2 at a time: it keeps what it was given for as long as its connection lives.
const PIECE: usize = 16 << 10;

tokio::task_local! {
    /// The answer that this task sends.
    static SENT: Taken;
}

/// Since when somebody could take the last piece of an answer, and has not.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken(Arc<Mutex<Option<Instant>>>);

impl Taken {
    /// Of the answer to the request that this task serves, in HTTP/2.
    pub(super) fn here() -> Option<Self> {
        SENT.try_with(Self::clone).ok()
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece is there to be taken.
    pub(super) fn offered(&self) {
        *self.since() = Some(Instant::now());
    }

    /// All is taken.
    pub(super) fn taken(&self) {
        *self.since() = None;
    }

    /// Waits until a piece is not taken for so long.
    async fn refused(&self, quiet: Duration) {
        let mut look = Instant::now() + quiet;
        loop {
            sleep_until(look).await;
            let now = Instant::now();
            // One that is offered meanwhile is not late before the next look.
            let late = self.since().unwrap_or(now) + quiet;
            if late <= now {
                return;
            }
            look = late;
        }
    }
}

/// Cuts a piece off what is to be sent.
pub(super) fn piece(bytes: &mut Bytes) -> Bytes {
    bytes.split_to(bytes.len().min(PIECE))
}

/// Runs the streams of a connection, each in a task of its own, until nobody takes its answer for too long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    pub(super) quiet: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (quiet, taken) = (self.quiet, Taken::default());
        tokio::spawn(async move {
            tokio::select! {
                () = SENT.scope(taken.clone(), stream) => {}
                // Without the task that sends it the stream is reset.
                () = taken.refused(quiet) => tracing::debug!("nobody takes an answer"),
            }
        });
    }
}
