//! Pausing and resuming, on a thread of its own that goes before all others: sandboxes that spin on
//! every processor would otherwise keep the one who thaws, or freezes, them waiting.

use std::sync::mpsc;

use atoll_model::{Code, Error};
use tokio::sync::oneshot;

use crate::error::internal;

type Job = Box<dyn FnOnce() + Send>;

/// The thread.
#[derive(Debug)]
pub(crate) struct Freezer {
    jobs: mpsc::Sender<Job>,
}

impl Freezer {
    pub(crate) fn start() -> Result<Self, Error> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let work = move || {
            // Where this is not allowed it is merely slower.
            atoll_jail::go_first();
            for job in todo {
                job();
            }
        };
        let started = std::thread::Builder::new()
            .name("freezer".into())
            .spawn(work);
        started.map_err(|error| internal("start a thread", &error))?;
        Ok(Self { jobs })
    }

    /// Does something there, to its end whether or not the caller waits for it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, answer) = oneshot::channel();
        let job = Box::new(move || {
            let _ = done.send(work());
        });
        let lost = || Error::new(Code::Internal, "the thread that pauses sandboxes has ended");
        self.jobs.send(job).map_err(|_| lost())?;
        answer.await.map_err(|_| lost())?
    }
}
