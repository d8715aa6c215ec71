//! Removal of deleted sandboxes in the background.
//!
//! It starts when the server is quiescent, after [`MAX_DELAY`] at the latest, or at shutdown:
//! removing many files can slow down all other work on the file system.

use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

use atoll_jail::cgroup::SandboxCgroup;
use atoll_jail::ids::Ranges;
use atoll_jail::plan::IdRange;
use atoll_model::SandboxId;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::in_flight::InFlightGuard;
use crate::runtime::RuntimeState;

const MAX_DELAY: Duration = Duration::from_millis(100);

/// Queue of sandboxes to remove.
#[derive(Debug)]
pub(crate) struct Trash {
    queue: mpsc::UnboundedSender<Item>,
    flush: watch::Sender<bool>,
}

/// The directory of a deleted sandbox.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: SandboxId,
    pub(crate) directory: PathBuf,
    /// Processes to kill first.
    pub(crate) processes: Option<LeftoverProcesses>,
    pub(crate) _guard: InFlightGuard,
}

/// Processes of a sandbox that was never acknowledged to a caller.
#[derive(Debug)]
pub(crate) struct LeftoverProcesses {
    pub(crate) group: SandboxCgroup,
    /// Claimed until the processes are gone.
    pub(crate) ids: IdRange,
}

impl LeftoverProcesses {
    /// Kills the processes. If that fails, the next server finds them.
    fn kill(&self, ranges: &Ranges) {
        let killed = self.group.kill().and_then(|()| self.group.remove());
        if killed.is_ok() {
            ranges.release(self.ids);
        }
    }
}

impl Trash {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Item>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let flush = watch::Sender::new(false);
        (Self { queue, flush }, waiting)
    }

    pub(crate) fn push(&self, item: Item) {
        // If the task has ended, the directory is removed with the instance or at the next start.
        let _ = self.queue.send(item);
    }

    /// Removes everything without waiting for quiescence.
    pub(crate) fn flush_now(&self) {
        self.flush.send_replace(true);
    }

    /// Removes what is queued until the runtime is dropped. After a wait that timed out, it does
    /// not wait again until the queue was empty for a while.
    pub(crate) async fn run(
        shared: Weak<RuntimeState>,
        mut waiting: mpsc::UnboundedReceiver<Item>,
    ) {
        let mut timed_out = false;
        loop {
            let next = if let Ok(next) = timeout(MAX_DELAY, waiting.recv()).await {
                next
            } else {
                timed_out = false;
                waiting.recv().await
            };
            let (Some(first), Some(shared)) = (next, shared.upgrade()) else {
                return;
            };
            if !timed_out {
                let mut flush = shared.trash.flush.subscribe();
                timed_out = tokio::select! {
                    quiescent = timeout(MAX_DELAY, shared.foreground.wait_quiescent()) => quiescent.is_err(),
                    _ = flush.wait_for(|flush| *flush) => true,
                };
            }
            let mut items = vec![first];
            while let Ok(next) = waiting.try_recv() {
                items.push(next);
            }
            // In the background, so that later items need not wait for these.
            tokio::task::spawn_blocking(move || {
                for item in items {
                    if let Some(processes) = &item.processes {
                        processes.kill(&shared.instance.ranges);
                    }
                    let _ = shared.instance.storage.remove(&item.id);
                    let _ = crate::instance::remove_directory(&item.directory);
                }
            });
        }
    }
}
