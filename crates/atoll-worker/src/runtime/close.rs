//! Shutdown of a runtime.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId};

use super::{EntryState, LocalRuntime, SandboxEntry};
use crate::embryo_pool::EmbryoPool;
use crate::error::internal;
use crate::keeper::Keeper;
use crate::sandbox::run_blocking;
use crate::sync::lock;
use crate::warm_pool::WarmPool;

impl LocalRuntime {
    /// Closes the runtime. A persistent instance leaves its sandboxes running; if none has
    /// processes, only files remain. An ephemeral instance deletes its sandboxes and removes
    /// itself.
    pub async fn close(self) -> Result<(), Error> {
        let is_persistent = self.shared.instance.data_lock.is_some();
        self.finish(is_persistent).await
    }

    /// Deletes all sandboxes and removes the instance, including the data directory of a persistent
    /// one.
    pub async fn destroy(self) -> Result<(), Error> {
        self.finish(false).await
    }

    async fn finish(self, is_persistent: bool) -> Result<(), Error> {
        self.shared.foreground.wait_idle().await;
        let keepers = self.keepers();
        self.shared.warm_pool.stop_refill();
        self.shared.embryo_pool.stop_refill();
        // A create that is in progress is undone by its own task.
        let tasks = std::mem::take(&mut *lock(&self.shared.background_tasks));
        for task in tasks {
            let _ = task.await;
        }
        WarmPool::drain(&self.shared).await;
        EmbryoPool::drain(&self.shared).await;
        if !is_persistent {
            let ids: Vec<SandboxId> = self.sandboxes().keys().cloned().collect();
            for id in ids {
                match self.delete(&id).await {
                    Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                    _ => {}
                }
            }
        }
        if is_persistent {
            for entry in self.sandboxes().values() {
                if let EntryState::Live(sandbox) = entry.state() {
                    sandbox.detach();
                }
            }
        }
        if let Some(journals) = &self.shared.journals {
            journals.close().await;
        }
        self.shared.trash.flush_now();
        self.shared.cleanup.wait_idle().await;
        let needed = is_persistent && self.has_processes();
        for keeper in keepers {
            keeper.stop(is_persistent).await;
        }
        if is_persistent {
            // If the sync fails, the kernel writes the data back later.
            let _ = self
                .shared
                .syncer
                .sync(self.shared.instance.sandboxes())
                .await;
        }
        if is_persistent && let Some(own) = &self.shared.instance.data_lock {
            if self.has_links() {
                self.shared.network.detach().await?;
            } else {
                self.shared.network.tear_down().await?;
            }
            if !needed {
                let shared = Arc::clone(&self.shared);
                // What cannot be released now is released by the next server or by `atoll gc`.
                let _ = run_blocking(move || shared.instance.release_kernel_objects()).await;
            }
            // Unlocked here: a process that inherited the descriptor may still hold it.
            return own
                .release()
                .map_err(|error| internal("unlock the data directory", &error));
        }
        let shared = self.shared;
        shared.network.tear_down().await?;
        run_blocking(move || shared.instance.dismantle()).await
    }

    /// Whether a sandbox has processes, which need their keeper. Warm sandboxes have ended before.
    fn has_processes(&self) -> bool {
        let has_processes = |entry: &Arc<SandboxEntry>| {
            matches!(
                entry.state(),
                EntryState::Live(_) | EntryState::Unadoptable(_)
            )
        };
        !lock(&self.shared.incompatible_keepers).is_empty()
            || self.sandboxes().values().any(has_processes)
    }

    /// Whether a sandbox that keeps running has a network link.
    fn has_links(&self) -> bool {
        self.sandboxes().values().any(|entry| match entry.state() {
            EntryState::Live(sandbox) => sandbox.link_record().is_some(),
            EntryState::Unadoptable(sandbox) => sandbox.link_record().is_some(),
            EntryState::Stopped(..) | EntryState::Gone => false,
        })
    }

    /// Our own keeper, and keepers of other versions that still have sandboxes.
    fn keepers(&self) -> Vec<Arc<Keeper>> {
        let mut all = vec![Arc::clone(&self.shared.keeper)];
        for entry in self.sandboxes().values() {
            if let EntryState::Live(sandbox) = entry.state() {
                let keeper = sandbox.keeper();
                if !all.iter().any(|known| Arc::ptr_eq(known, &keeper)) {
                    all.push(keeper);
                }
            }
        }
        all
    }
}
