//! Removal of deleted sandboxes in the background.
//!
//! It starts when the server is quiescent, after [`MAX_DELAY`] at the latest, or at shutdown:
//! removing many files can slow down all other work on the file system.

use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

use atoll_jail::cgroup::Group;
use atoll_jail::ids::Ranges;
use atoll_jail::plan::IdRange;
use atoll_model::SandboxId;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::in_flight::Work;
use crate::runtime::Shared;

const SOON: Duration = Duration::from_millis(100);

/// Queue of sandboxes to remove.
#[derive(Debug)]
pub(crate) struct Trash {
    thrown: mpsc::UnboundedSender<Item>,
    hurry: watch::Sender<bool>,
}

/// The directory of a deleted sandbox.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: SandboxId,
    pub(crate) directory: PathBuf,
    /// Processes to kill first.
    pub(crate) living: Option<Living>,
    pub(crate) _work: Work,
}

/// Processes of a sandbox that was never acknowledged to a caller.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) group: Group,
    /// Claimed until the processes are gone.
    pub(crate) ids: IdRange,
}

impl Living {
    /// Kills the processes. If that fails, the next server finds them.
    fn end(&self, ranges: &Ranges) {
        let ended = self.group.kill().and_then(|()| self.group.remove());
        if ended.is_ok() {
            ranges.release(self.ids);
        }
    }
}

impl Trash {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Item>) {
        let (thrown, waiting) = mpsc::unbounded_channel();
        let hurry = watch::Sender::new(false);
        (Self { thrown, hurry }, waiting)
    }

    pub(crate) fn throw(&self, item: Item) {
        // If the task has ended, the directory is removed with the instance or at the next start.
        let _ = self.thrown.send(item);
    }

    /// Removes everything without waiting for quiescence.
    pub(crate) fn hurry(&self) {
        self.hurry.send_replace(true);
    }

    /// Removes what is queued until the runtime is dropped. After a wait that timed out, it does
    /// not wait again until the queue was empty for a while.
    pub(crate) async fn tend(shared: Weak<Shared>, mut waiting: mpsc::UnboundedReceiver<Item>) {
        let mut restless = false;
        loop {
            let next = if let Ok(next) = timeout(SOON, waiting.recv()).await {
                next
            } else {
                restless = false;
                waiting.recv().await
            };
            let (Some(first), Some(shared)) = (next, shared.upgrade()) else {
                return;
            };
            if !restless {
                let mut hurry = shared.trash.hurry.subscribe();
                restless = tokio::select! {
                    calm = timeout(SOON, shared.busy.calm()) => calm.is_err(),
                    _ = hurry.wait_for(|hurry| *hurry) => true,
                };
            }
            let mut items = vec![first];
            while let Ok(next) = waiting.try_recv() {
                items.push(next);
            }
            // In the background, so that later items need not wait for these.
            tokio::task::spawn_blocking(move || {
                for item in items {
                    if let Some(living) = &item.living {
                        living.end(&shared.instance.ranges);
                    }
                    let _ = shared.instance.disk.remove(&item.id);
                    let _ = crate::instance::remove_directory(&item.directory);
                }
            });
        }
    }
}
