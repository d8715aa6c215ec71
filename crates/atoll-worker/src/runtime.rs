//! The runtime of one instance: its shared state, and lookup of sandboxes by id.

mod adopt;
mod close;
mod config;
mod connection;
mod create;
mod delete;
mod entry;
mod execs;
mod files;
mod history;
mod open;
mod states;
mod templates;
mod unadoptable;
mod usage;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use atoll_jail::facts::Facts;
use atoll_model::{
    Code, Error, Limits, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Stopwatch,
};
use tokio::sync::watch;

use crate::authorities::Authorities;
use crate::embryo_pool::Nursery;
use crate::exec::budget::OutputRetention;
use crate::freezer::Freezer;
use crate::in_flight::Busy;
use crate::instance::Instance;
use crate::journal::Journals;
use crate::keeper::Keeper;
use crate::keeper::previous::Foreign;
use crate::metrics::Meters;
use crate::network;
use crate::reserve::Admission;
use crate::sandbox::{Sandbox, lock};
use crate::syncer::Syncer;
use crate::template;
use crate::trash::Trash;
use crate::warm_pool::Pool;
pub use config::{Config, PlanOverride};
pub use connection::PortWatch;
pub use create::BeforeCreate;
pub(crate) use create::no_hook;
pub use delete::HistoryFlush;
pub(crate) use entry::{Entry, Place};
pub use open::ForegroundGuard;

/// State that the parts of a runtime share.
pub(crate) struct Shared {
    pub(crate) facts: Facts,
    pub(crate) instance: Instance,
    pub(crate) templates: template::TemplateStore,
    pub(crate) keeper: Arc<Keeper>,
    /// Keepers of other protocol versions that this server cannot talk to.
    foreign: Mutex<Vec<Foreign>>,
    pub(crate) nursery: Nursery,
    pub(crate) pool: Pool,
    pub(crate) network: network::Network,
    pub(crate) admission: Admission,
    /// Largest limits that one sandbox can have.
    pub(crate) ceilings: Limits,
    /// The operator's certificate authorities, added to every sandbox.
    pub(crate) authorities: Authorities,
    pub(crate) patience: Duration,
    /// Limits for the stored output of execs.
    kept: OutputRetention,
    pub(crate) syncer: Arc<Syncer>,
    /// `None` if the runtime was opened without a journal.
    pub(crate) journals: Option<Arc<Journals>>,
    pub(crate) amend: Option<PlanOverride>,
    freezer: Freezer,
    /// Requests in flight; they continue if the caller goes away.
    pub(crate) busy: Busy,
    /// Cleanup that continues after the response.
    pub(crate) aftermath: Busy,
    /// Notified when cleanup has to wait for file descriptors.
    pub(crate) lack: tokio::sync::Notify,
    pub(crate) trash: Trash,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Entry>>>,
    /// Notified whenever a sandbox has exited by itself.
    ended: watch::Sender<()>,
    pub(crate) meters: Meters,
    /// Tasks that refill the pools.
    tending: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Schedules a sync of a sandbox's changed record, if the instance is persistent.
    pub(crate) fn note_record(&self, id: &SandboxId) {
        if self.instance.lasting.is_some() {
            self.syncer.note_record(id);
        }
    }

    /// All sandboxes in the table, in no order.
    pub(crate) fn entries(&self) -> Vec<(SandboxId, Arc<Entry>)> {
        let all = lock(&self.sandboxes);
        let both = |(id, entry): (&SandboxId, &Arc<Entry>)| (id.clone(), Arc::clone(entry));
        all.iter().map(both).collect()
    }
}

/// The sandboxes of one instance on this machine. Clones share it.
#[derive(Debug, Clone)]
pub struct LocalRuntime {
    shared: Arc<Shared>,
}

impl LocalRuntime {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Measures one operation until the returned timer is dropped.
    fn time(&self, operation: &'static str) -> Stopwatch {
        self.shared.meters.operations.time(operation)
    }

    /// Age of the oldest acknowledged change of a sandbox that a power failure could still undo.
    /// Writes by programs in running sandboxes do not count.
    pub fn oldest_unsynced(&self) -> Duration {
        self.shared.syncer.oldest()
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Entry>>> {
        lock(&self.shared.sandboxes)
    }

    /// Kernel features and limits of this host.
    pub fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    /// Tag of the instance, part of the name of each of its kernel objects.
    pub fn tag(&self) -> &str {
        &self.shared.instance.tag
    }

    /// Changes whenever a sandbox has exited without a request to stop it.
    pub fn subscribe_exits(&self) -> watch::Receiver<()> {
        self.shared.ended.subscribe()
    }

    /// Number of warm sandboxes and of embryos.
    pub fn pool_sizes(&self) -> (usize, usize) {
        (self.shared.pool.len(), self.shared.nursery.len())
    }

    /// All sandboxes, newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let entries: Vec<Arc<Entry>> = self.sandboxes().values().cloned().collect();
        let mut all: Vec<SandboxInfo> = entries.iter().filter_map(|entry| entry.info()).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.created_at));
        all
    }

    /// State and limits of one sandbox.
    pub fn get(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        self.entry(id)?.info().ok_or_else(|| unknown(id))
    }

    /// The specification in the sandbox's record.
    pub fn spec(&self, id: &SandboxId) -> Result<SandboxSpec, Error> {
        match self.entry(id)?.place() {
            Place::Live(sandbox) => Ok(lock(&sandbox.record).spec.clone()),
            Place::Stopped(record, _) => Ok(record.spec),
            Place::Apart(apart) => Ok(apart.record.spec.clone()),
            Place::Gone => Err(unknown(id)),
        }
    }

    pub(crate) fn entry(&self, id: &SandboxId) -> Result<Arc<Entry>, Error> {
        self.sandboxes().get(id).cloned().ok_or_else(|| unknown(id))
    }

    /// A running sandbox; an error in every other state.
    fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, Error> {
        match self.entry(id)?.place() {
            Place::Live(sandbox) if sandbox.died.borrow().is_some() => {
                Err(SandboxState::Stopped.refusal("used"))
            }
            Place::Live(sandbox) => match *sandbox.state.borrow() {
                SandboxState::Running => Ok(Arc::clone(&sandbox)),
                state => Err(state.refusal("used")),
            },
            Place::Stopped(record, _) => Err(record.info.state.refusal("used")),
            Place::Apart(apart) => Err(apart.refusal()),
            Place::Gone => Err(unknown(id)),
        }
    }

    /// Host pid of a sandbox's PID 1.
    pub fn host_pid(&self, id: &SandboxId) -> Result<i32, Error> {
        match self.entry(id)?.place() {
            Place::Live(sandbox) => Ok(sandbox.pid),
            Place::Apart(apart) => Err(apart.refusal()),
            place => Err(place.state().refusal("found among processes")),
        }
    }
}

/// Fails if no sandbox can be created on this host; the error has the remedy.
pub fn check_host() -> Result<(), Error> {
    atoll_jail::plan::require(&Facts::read()).map_err(|error| crate::error::jail(&error))
}

pub(crate) fn unknown(id: &SandboxId) -> Error {
    Error::new(Code::SandboxNotFound, format!("there is no sandbox {id}"))
        .detail("sandboxID", id.as_str())
}
