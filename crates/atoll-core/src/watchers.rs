//! Watches that outlive the request that began them: what happened is asked for later, again and again. They are kept
//! in memory, as long as their sandbox runs; a server that starts anew knows none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{Code, Error, RunAs, WatchEvent, WatchOptions};
use atoll_worker::Watch;

use crate::Use;
use crate::keys::random_digits;
use crate::ledger::Entry;

/// What is watched, and for whom.
#[derive(Debug, Clone)]
pub struct Watched {
    /// As whom.
    pub who: RunAs,
    /// The directory.
    pub path: Vec<u8>,
    /// How.
    pub options: WatchOptions,
    /// Whoever asks wants to know more of what changed than its name.
    pub with_entries: bool,
}

#[derive(Debug)]
struct Watcher {
    watched: Watched,
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

impl Entry {
    /// Ends all watches that are kept: the sandbox runs no more.
    pub(crate) fn end_watchers(&self) {
        self.watchers.all().clear();
    }
}

fn unknown(id: &str) -> Error {
    let message = format!("watcher with id {id} not found");
    Error::new(Code::NotFound, message).remedy("begin another")
}

impl Use {
    /// Begins a watch that is kept; its name.
    pub async fn keep_watch(&self, watched: Watched) -> Result<String, Error> {
        let (runtime, path) = (self.runtime(), &watched.path);
        let watch = runtime.watch(self.id(), &watched.who, path, watched.options);
        let watch = tokio::sync::Mutex::new(watch.await?);
        let (id, watcher) = (random_digits(), Arc::new(Watcher { watched, watch }));
        self.entry().watchers.all().insert(id.clone(), watcher);
        Ok(id)
    }

    /// What happened since it was last asked; all that happened before this call is in it.
    pub async fn drain_watch(&self, id: &str) -> Result<(Watched, Vec<WatchEvent>), Error> {
        let found = self.entry().watchers.all().get(id).cloned();
        let watcher = found.ok_or_else(|| unknown(id))?;
        let drained = watcher.watch.lock().await.drain().await;
        match drained {
            Ok(events) => Ok((watcher.watched.clone(), events)),
            Err(error) => {
                // It will not get better.
                let _ = self.end_watch(id);
                Err(error)
            }
        }
    }

    /// Ends a watch that is kept.
    pub fn end_watch(&self, id: &str) -> Result<(), Error> {
        let ended = self.entry().watchers.all().remove(id);
        ended.map(drop).ok_or_else(|| unknown(id))
    }
}
