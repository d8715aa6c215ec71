//! How a runtime ends.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId};

use super::{Entry, LocalRuntime, Place};
use crate::error::internal;
use crate::keeper::Keeper;
use crate::nursery::Nursery;
use crate::pool::Pool;
use crate::sandbox::{blocking, lock};

impl LocalRuntime {
    /// Ends the runtime. A lasting one leaves its sandboxes running, and without one that has processes it leaves
    /// files only; a small one deletes them and takes everything of its instance away.
    pub async fn close(self) -> Result<(), Error> {
        let lasting = self.shared.instance.lasting.is_some();
        self.finish(lasting).await
    }

    /// Ends the runtime for good: deletes its sandboxes and takes everything of its instance away, the data
    /// directory of a lasting one included.
    pub async fn take_away(self) -> Result<(), Error> {
        self.finish(false).await
    }

    async fn finish(self, lasting: bool) -> Result<(), Error> {
        self.shared.busy.quiet().await;
        let keepers = self.keepers();
        self.shared.pool.shut();
        self.shared.nursery.shut();
        // What is just being made is taken back by who makes it.
        let tending = std::mem::take(&mut *lock(&self.shared.tending));
        for task in tending {
            let _ = task.await;
        }
        Pool::close(&self.shared).await;
        Nursery::close(&self.shared).await;
        if !lasting {
            let ids: Vec<SandboxId> = self.sandboxes().keys().cloned().collect();
            for id in ids {
                match self.delete(&id).await {
                    Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                    _ => {}
                }
            }
        }
        if lasting {
            for entry in self.sandboxes().values() {
                if let Place::Live(sandbox) = entry.place() {
                    sandbox.abandon();
                }
            }
        }
        if let Some(journals) = &self.shared.journals {
            journals.close().await;
        }
        self.shared.trash.hurry();
        self.shared.aftermath.quiet().await;
        let needed = lasting && self.has_processes();
        for keeper in keepers {
            keeper.stop(lasting).await;
        }
        if lasting {
            // What cannot be synced now the kernel writes in its own time.
            let _ = self
                .shared
                .syncer
                .sync(self.shared.instance.sandboxes())
                .await;
        }
        if lasting && let Some(own) = &self.shared.instance.lasting {
            if self.has_links() {
                self.shared.network.detach().await?;
            } else {
                self.shared.network.tear_down().await?;
            }
            if !needed {
                let shared = Arc::clone(&self.shared);
                // What cannot be released now is released by the next server or by `atoll gc`.
                let _ = blocking(move || shared.instance.rest()).await;
            }
            // The next server may come, whoever still holds something of ours.
            return own
                .release()
                .map_err(|error| internal("unlock the data directory", &error));
        }
        let shared = self.shared;
        shared.network.tear_down().await?;
        blocking(move || shared.instance.dismantle()).await
    }

    /// Whether a sandbox has processes, which need their keeper. Those of the pool have ended before.
    fn has_processes(&self) -> bool {
        let has = |entry: &Arc<Entry>| matches!(entry.place(), Place::Live(_) | Place::Apart(_));
        !lock(&self.shared.foreign).is_empty() || self.sandboxes().values().any(has)
    }

    /// Whether a sandbox that goes on has a link with the world.
    fn has_links(&self) -> bool {
        self.sandboxes().values().any(|entry| match entry.place() {
            Place::Live(sandbox) => sandbox.linked().is_some(),
            Place::Apart(apart) => apart.linked().is_some(),
            Place::Stopped(..) | Place::Gone => false,
        })
    }

    /// Our own keeper, and those of other versions that still have sandboxes.
    fn keepers(&self) -> Vec<Arc<Keeper>> {
        let mut all = vec![Arc::clone(&self.shared.keeper)];
        for entry in self.sandboxes().values() {
            if let Place::Live(sandbox) = entry.place() {
                let keeper = sandbox.keeper();
                if !all.iter().any(|known| Arc::ptr_eq(known, &keeper)) {
                    all.push(keeper);
                }
            }
        }
        all
    }
}
