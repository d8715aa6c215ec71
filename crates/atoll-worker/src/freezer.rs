//! Pausing and resuming, on a thread of its own that goes before all others: sandboxes that spin on
//! every processor would otherwise keep the one who thaws, or freezes, them waiting.

use std::sync::mpsc;

use atoll_jail::cgroup::Group;
use atoll_model::{Code, Error};
use tokio::sync::oneshot;

use crate::error::{internal, jail};

struct Job {
    group: Group,
    freeze: bool,
    done: oneshot::Sender<Result<(), Error>>,
}

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
            for Job {
                group,
                freeze,
                done,
            } in todo
            {
                let _ = done.send(group.freeze(freeze).map_err(|error| jail(&error)));
            }
        };
        let started = std::thread::Builder::new()
            .name("freezer".into())
            .spawn(work);
        started.map_err(|error| internal("start a thread", &error))?;
        Ok(Self { jobs })
    }

    /// Lets every process of a sandbox stand still, or go on; returns when they do.
    pub(crate) async fn set(&self, group: Group, freeze: bool) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let job = Job {
            group,
            freeze,
            done,
        };
        let lost = || Error::new(Code::Internal, "the thread that pauses sandboxes has ended");
        self.jobs.send(job).map_err(|_| lost())?;
        answer.await.map_err(|_| lost())?
    }
}
