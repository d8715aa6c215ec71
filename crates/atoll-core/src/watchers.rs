//! Watches that outlive the request that began them: what happened is asked for later, again and again. They are kept
//! in memory, as long as their sandbox runs; a server that starts anew verify none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{Code, Error, RunAs, WatchEvent, WatchOptions};
use atoll_worker::Watch;

use crate::SandboxAccess;
use crate::keys::random_secret_hex;
use crate::live_sandboxes::LiveSandbox;

/// What is watched, and for whom.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    /// As whom.
    pub run_as: RunAs,
    /// The directory.
    pub path: Vec<u8>,
    /// How.
    pub options: WatchOptions,
    /// Whoever asks wants to know more of what changed than its name.
    pub with_entries: bool,
}

#[derive(Debug)]
struct Watcher {
    spec: WatchSpec,
    watch: tokio::sync::Mutex<Watch>,
}

/// The watches that are kept of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    all: Mutex<HashMap<String, Arc<Watcher>>>,
}

impl Watchers {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Watcher>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveSandbox {
    /// Ends all watches that are kept: the sandbox runs no more.
    pub(crate) fn remove_watchers(&self) {
        self.watchers.all().clear();
    }
}

fn unknown(id: &str) -> Error {
    let message = format!("watcher with id {id} not found");
    Error::new(Code::NotFound, message).remedy("begin another")
}

impl SandboxAccess {
    /// Begins a watch that is kept; its name.
    pub async fn create_watcher(&self, spec: WatchSpec) -> Result<String, Error> {
        let (runtime, path) = (self.runtime(), &spec.path);
        let watch = runtime.watch(self.id(), &spec.run_as, path, spec.options);
        let watch = tokio::sync::Mutex::new(watch.await?);
        let (id, watcher) = (random_secret_hex(), Arc::new(Watcher { spec, watch }));
        self.entry().watchers.all().insert(id.clone(), watcher);
        Ok(id)
    }

    /// What happened since it was last asked; all that happened before this call is in it.
    pub async fn poll_watcher(&self, id: &str) -> Result<(WatchSpec, Vec<WatchEvent>), Error> {
        let found = self.entry().watchers.all().get(id).cloned();
        let watcher = found.ok_or_else(|| unknown(id))?;
        let drained = watcher.watch.lock().await.drain().await;
        match drained {
            Ok(events) => Ok((watcher.spec.clone(), events)),
            Err(error) => {
                // It will not get better.
                let _ = self.remove_watcher(id);
                Err(error)
            }
        }
    }

    /// Ends a watch that is kept.
    pub fn remove_watcher(&self, id: &str) -> Result<(), Error> {
        let ended = self.entry().watchers.all().remove(id);
        ended.map(drop).ok_or_else(|| unknown(id))
    }
}
