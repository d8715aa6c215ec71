//! What is left of sandboxes that nobody has. It is taken away when nobody waits for anything, or soon, or at the end: a file
//! system can take long for it, and keeps others waiting meanwhile.

use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

use atoll_jail::cgroup::Group;
use atoll_jail::ids::Ranges;
use atoll_jail::plan::IdRange;
use atoll_model::SandboxId;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::busy::Work;
use crate::runtime::Shared;

const SOON: Duration = Duration::from_millis(100);

/// Where a runtime throws them.
#[derive(Debug)]
pub(crate) struct Trash {
    thrown: mpsc::UnboundedSender<Item>,
    hurry: watch::Sender<bool>,
}

/// The directory of a sandbox, under way until it is removed.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: SandboxId,
    pub(crate) directory: PathBuf,
    /// What of it still lives is ended first.
    pub(crate) living: Option<Living>,
    pub(crate) _work: Work,
}

/// The processes of a sandbox that nobody was ever told of.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) group: Group,
    /// They are nobody else's before the processes are gone.
    pub(crate) ids: IdRange,
}

impl Living {
    /// Those that cannot be ended now are found by the next server.
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
        // What is not removed now is removed with the instance, or at the next start.
        let _ = self.thrown.send(item);
    }

    /// Nobody waits for anything else any more.
    pub(crate) fn hurry(&self) {
        self.hurry.send_replace(true);
    }

    /// Empties it again and again. Where no calm came, none is waited for as long as there is always more.
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
            // Those that come meanwhile need not wait for these.
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
