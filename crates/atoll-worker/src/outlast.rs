//! Work that goes on whether or not its caller waits for it.
//!
//! It is done where it is waited for, as all else is: a task of its own would cost every request a hand-over to
//! another thread and back, for the sake of the few whose caller goes away.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Work that is given a task of its own when nobody waits for it any more.
#[derive(Debug)]
pub struct Outlast<F>(Option<Pin<Box<F>>>)
where
    F: Future + Send + 'static;

/// Has work outlast whoever waits for it.
pub fn outlast<F>(work: F) -> Outlast<F>
where
    F: Future + Send + 'static,
{
    Outlast(Some(Box::pin(work)))
}

impl<F> Future for Outlast<F>
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

impl<F> Drop for Outlast<F>
where
    F: Future + Send + 'static,
{
    fn drop(&mut self) {
        // Work that failed without a word is not begun again; without a runtime nothing goes on.
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

    const PATIENCE: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn it_is_done_where_it_is_waited_for() {
        let task = tokio::spawn(async {
            let there = outlast(async { tokio::task::id() }).await;
            (tokio::task::id(), there)
        });
        let (here, there) = task.await.expect("a task");
        assert_eq!(here, there);
    }

    #[tokio::test]
    async fn it_goes_on_when_nobody_waits_any_more() {
        for begun in [true, false] {
            let (go, goes) = oneshot::channel::<()>();
            let (tell, told) = oneshot::channel();
            let mut work = outlast(async move {
                let _ = goes.await;
                tell.send(()).expect("somebody hears");
            });
            if begun {
                let waited = tokio::time::timeout(Duration::ZERO, &mut work).await;
                waited.expect_err("it waits");
            }
            drop(work);
            go.send(()).expect("it goes on");
            let heard = tokio::time::timeout(PATIENCE, told).await;
            heard.expect("in time").expect("it came to its end");
        }
    }
}
