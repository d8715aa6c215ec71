//! Pauses and resumes sandboxes (cgroup freezer) on a thread with raised scheduling priority.
//!
//! Sandboxes that spin on every CPU would otherwise delay the thread that has to freeze or thaw
//! them. A sandbox that does not freeze at once is waited for on another thread, so that it does
//! not block the others.

use std::sync::mpsc;

use atoll_model::{Code, Error};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::internal;

type Job = Box<dyn FnOnce() + Send>;

/// Handle of the freezer thread; the thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Freezer {
    jobs: mpsc::Sender<Job>,
}

/// Progress of a job on the freezer thread.
pub(crate) enum FreezeStep<T> {
    Done(T),
    /// The rest may block and runs on a blocking thread of tokio.
    Continue(Continuation<T>),
}

pub(crate) type Continuation<T> = Box<dyn FnOnce() -> Result<T, Error> + Send>;

impl Freezer {
    pub(crate) fn start() -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let work = move || {
            // Without the privilege the thread is slower and still correct.
            atoll_jail::set_fifo_scheduling();
            for job in queue {
                job();
            }
        };
        let thread = std::thread::Builder::new()
            .name("freezer".into())
            .spawn(work);
        thread.map_err(|error| internal("start a thread", &error))?;
        Ok(Self { jobs })
    }

    /// Runs a job on the thread. The job completes even if this future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<FreezeStep<T>, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = oneshot::channel();
        let handle = Handle::current();
        let job = Box::new(move || {
            let _ = match work() {
                Ok(FreezeStep::Done(value)) => done.send(Ok(value)),
                Err(error) => done.send(Err(error)),
                Ok(FreezeStep::Continue(rest)) => {
                    handle.spawn_blocking(move || done.send(rest()));
                    return;
                }
            };
        });
        let lost = || Error::new(Code::Internal, "the thread that pauses sandboxes has ended");
        self.jobs.send(job).map_err(|_| lost())?;
        result.await.map_err(|_| lost())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slow_freeze_does_not_block_other_jobs() {
        let freezer = Freezer::start().expect("a thread");
        let (release, gate) = mpsc::channel::<()>();
        let slow = freezer.run(move || {
            Ok(FreezeStep::Continue(Box::new(move || {
                gate.recv().map_err(|error| internal("wait", &error))?;
                Ok("slow")
            })))
        });
        let mut slow = std::pin::pin!(slow);
        let fast = freezer.run(|| Ok(FreezeStep::Done("fast")));
        let first = tokio::select! {
            biased;
            first = &mut slow => first,
            first = fast => first,
        };
        assert_eq!(first.expect("it completes"), "fast");
        release.send(()).expect("the job waits");
        assert_eq!(slow.await.expect("it completes"), "slow");
    }
}
