//! Shutdown of a runtime.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId};

use super::{Entry, LocalRuntime, Place};
use crate::embryo_pool::Nursery;
use crate::error::internal;
use crate::keeper::Keeper;
use crate::sandbox::{blocking, lock};
use crate::warm_pool::Pool;

impl LocalRuntime {
    /// Closes the runtime. A persistent instance leaves its sandboxes running; if none has
    /// processes, only files remain. An ephemeral instance deletes its sandboxes and removes
    /// itself.
    pub async fn close(self) -> Result<(), Error> {
        let lasting = self.shared.instance.lasting.is_some();
        self.finish(lasting).await
    }

    /// Deletes all sandboxes and removes the instance, including the data directory of a persistent
    /// one.
    pub async fn destroy(self) -> Result<(), Error> {
        self.finish(false).await
    }

    async fn finish(self, lasting: bool) -> Result<(), Error> {
        self.shared.busy.quiet().await;
        let keepers = self.keepers();
        self.shared.pool.shut();
        self.shared.nursery.shut();
        // A create that is in progress is undone by its own task.
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
            // If the sync fails, the kernel writes the data back later.
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
            // Unlocked here: a process that inherited the descriptor may still hold it.
            return own
                .release()
                .map_err(|error| internal("unlock the data directory", &error));
        }
        let shared = self.shared;
        shared.network.tear_down().await?;
        blocking(move || shared.instance.dismantle()).await
    }

    /// Whether a sandbox has processes, which need their keeper. Warm sandboxes have ended before.
    fn has_processes(&self) -> bool {
        let has = |entry: &Arc<Entry>| matches!(entry.place(), Place::Live(_) | Place::Apart(_));
        !lock(&self.shared.foreign).is_empty() || self.sandboxes().values().any(has)
    }

    /// Whether a sandbox that keeps running has a network link.
    fn has_links(&self) -> bool {
        self.sandboxes().values().any(|entry| match entry.place() {
            Place::Live(sandbox) => sandbox.linked().is_some(),
            Place::Apart(apart) => apart.linked().is_some(),
            Place::Stopped(..) | Place::Gone => false,
        })
    }

    /// Our own keeper, and keepers of other versions that still have sandboxes.
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
