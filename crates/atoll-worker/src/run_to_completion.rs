//! Future that runs to completion even if its caller drops it.
//!
//! It is polled in the caller's task and moves to a task of its own only when it is dropped: a task
//! for each request would cost a hand-over to another thread and back.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A future that is spawned as a task when it is dropped before its end.
#[derive(Debug)]
pub(crate) struct RunToCompletion<F>(Option<Pin<Box<F>>>)
where
    F: Future + Send + 'static;

/// Makes `work` complete even if the returned future is dropped.
pub(crate) fn run_to_completion<F>(work: F) -> RunToCompletion<F>
where
    F: Future + Send + 'static,
{
    RunToCompletion(Some(Box::pin(work)))
}

impl<F> Future for RunToCompletion<F>
where
    F: Future + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = ready!(work.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(done)
    }
}

impl<F> Drop for RunToCompletion<F>
where
    F: Future + Send + 'static,
{
    fn drop(&mut self) {
        // Not after a panic of the work itself, and not without a tokio runtime.
        if let Some(work) = self.0.take()
            && !std::thread::panicking()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn work_is_polled_in_the_callers_task() {
        let task = tokio::spawn(async {
            let there = run_to_completion(async { tokio::task::id() }).await;
            (tokio::task::id(), there)
        });
        let (here, there) = task.await.expect("a task");
        assert_eq!(here, there);
    }

    #[tokio::test]
    async fn dropped_work_runs_to_completion() {
        for polled in [true, false] {
            let (go, gate) = oneshot::channel::<()>();
            let (done, completed) = oneshot::channel();
            let mut work = run_to_completion(async move {
                let _ = gate.await;
                done.send(()).expect("the receiver lives");
            });
            if polled {
                let early = tokio::time::timeout(Duration::ZERO, &mut work).await;
                early.expect_err("it waits");
            }
            drop(work);
            go.send(()).expect("the work lives");
            let result = tokio::time::timeout(TIMEOUT, completed).await;
            result.expect("in time").expect("it completed");
        }
    }
}
