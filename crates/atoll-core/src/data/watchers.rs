//! Watchers: directory watches that outlive the request that created them. Clients poll them for events.
//!
//! Watchers are kept in memory until their sandbox stops or the server ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_model::runtime::FileWatch;
use atoll_model::{Code, Error, RunAs, WatchEvent, WatchOptions, lock};

use crate::SandboxAccess;
use crate::control::keys::random_secret_hex;
use crate::live_sandboxes::LiveSandbox;

/// Request to watch a directory.
#[derive(Debug, Clone)]
pub struct WatchSpec {
    /// User and permissions of the watch.
    pub run_as: RunAs,
    /// The directory.
    pub path: Vec<u8>,
    /// Options of the watch.
    pub options: WatchOptions,
    /// Whether the client wants the metadata of changed files.
    pub with_entries: bool,
}

#[derive(Debug)]
struct Watcher {
    spec: WatchSpec,
    watch: tokio::sync::Mutex<Box<dyn FileWatch>>,
}

/// All watchers of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    all: Mutex<HashMap<String, Arc<Watcher>>>,
}

impl Watchers {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Watcher>>> {
        lock(&self.all)
    }
}

impl LiveSandbox {
    /// Removes all watchers when the sandbox stops.
    pub(crate) fn remove_watchers(&self) {
        self.watchers.all().clear();
    }
}

fn not_found(id: &str) -> Error {
    let message = format!("watcher with id {id} not found");
    Error::new(Code::NotFound, message).remedy("create another watcher")
}

impl SandboxAccess {
    /// Creates a watcher and returns its id.
    pub async fn create_watcher(&self, spec: WatchSpec) -> Result<String, Error> {
        let (runtime, path) = (self.runtime(), &spec.path);
        let watch = runtime.watch(self.id(), &spec.run_as, path, spec.options);
        let watch = tokio::sync::Mutex::new(watch.await?);
        let (id, watcher) = (random_secret_hex(), Arc::new(Watcher { spec, watch }));
        self.watchers.all().insert(id.clone(), watcher);
        Ok(id)
    }

    /// Returns all events since the last call.
    pub async fn poll_watcher(&self, id: &str) -> Result<(WatchSpec, Vec<WatchEvent>), Error> {
        let found = self.watchers.all().get(id).cloned();
        let watcher = found.ok_or_else(|| not_found(id))?;
        let drained = watcher.watch.lock().await.drain().await;
        match drained {
            Ok(events) => Ok((watcher.spec.clone(), events)),
            Err(error) => {
                // A failed watch does not recover.
                let _ = self.remove_watcher(id);
                Err(error)
            }
        }
    }

    /// Removes a watcher.
    pub fn remove_watcher(&self, id: &str) -> Result<(), Error> {
        let ended = self.watchers.all().remove(id);
        ended.map(drop).ok_or_else(|| not_found(id))
    }
}
