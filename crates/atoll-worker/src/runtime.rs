//! Sandboxes on this machine: what the parts of a runtime share, and who is in it.

mod adopt;
mod apart;
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
use crate::busy::Busy;
use crate::exec::budget::OutputRetention;
use crate::freezer::Freezer;
use crate::instance::Instance;
use crate::journal::Journals;
use crate::keeper::Keeper;
use crate::keeper::left::Foreign;
use crate::meters::Meters;
use crate::network;
use crate::nursery::Nursery;
use crate::pool::Pool;
use crate::reserve::Admission;
use crate::sandbox::{Sandbox, lock};
use crate::syncer::Syncer;
use crate::template;
use crate::trash::Trash;
pub use config::{Amend, Config};
pub use connection::PortWatch;
pub use create::Announce;
pub(crate) use create::nobody;
pub use delete::Farewell;
pub(crate) use entry::{Entry, Place};
pub use open::Attention;

/// What the parts of a runtime share.
pub(crate) struct Shared {
    pub(crate) facts: Facts,
    pub(crate) instance: Instance,
    pub(crate) templates: template::Store,
    pub(crate) keeper: Arc<Keeper>,
    /// Keepers that we do not speak with.
    foreign: Mutex<Vec<Foreign>>,
    pub(crate) nursery: Nursery,
    pub(crate) pool: Pool,
    pub(crate) network: network::Network,
    pub(crate) admission: Admission,
    /// The most one sandbox may have.
    pub(crate) ceilings: Limits,
    /// Certificate authorities of the operator, for every sandbox.
    pub(crate) authorities: Authorities,
    pub(crate) patience: Duration,
    /// How much of what commands write is kept.
    kept: OutputRetention,
    pub(crate) syncer: Arc<Syncer>,
    /// Nothing if nobody keeps them.
    pub(crate) journals: Option<Arc<Journals>>,
    pub(crate) amend: Option<Amend>,
    freezer: Freezer,
    /// Creates under way, whose callers may have gone.
    pub(crate) busy: Busy,
    /// What is still cleared away when its caller has been answered.
    pub(crate) aftermath: Busy,
    /// Told when some of that has to wait for descriptors.
    pub(crate) lack: tokio::sync::Notify,
    pub(crate) trash: Trash,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Entry>>>,
    /// Told whenever a sandbox has ended by itself.
    ended: watch::Sender<()>,
    pub(crate) meters: Meters,
    /// Those who make sandboxes in advance.
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
    /// A sandbox's record has changed: it is to be on the disk soon, where anything outlasts this process.
    pub(crate) fn note_record(&self, id: &SandboxId) {
        if self.instance.lasting.is_some() {
            self.syncer.note_record(id);
        }
    }

    /// All sandboxes.
    pub(crate) fn entries(&self) -> Vec<(SandboxId, Arc<Entry>)> {
        let all = lock(&self.sandboxes);
        let both = |(id, entry): (&SandboxId, &Arc<Entry>)| (id.clone(), Arc::clone(entry));
        all.iter().map(both).collect()
    }
}

/// The sandboxes of one instance on this machine.
#[derive(Debug, Clone)]
pub struct LocalRuntime {
    shared: Arc<Shared>,
}

impl LocalRuntime {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Measures one operation until what comes back is dropped.
    fn time(&self, operation: &'static str) -> Stopwatch {
        self.shared.meters.operations.time(operation)
    }

    /// The age of the oldest acknowledged change of a sandbox that a power cut could still undo. What programs write in
    /// sandboxes that run does not count.
    pub fn oldest_unsynced(&self) -> Duration {
        self.shared.syncer.oldest()
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Entry>>> {
        lock(&self.shared.sandboxes)
    }

    /// What this host can do.
    pub fn facts(&self) -> &Facts {
        &self.shared.facts
    }

    /// The instance's tag.
    pub fn tag(&self) -> &str {
        &self.shared.instance.tag
    }

    /// Wakes when a sandbox's processes have ended although nobody asked for that.
    pub fn endings(&self) -> watch::Receiver<()> {
        self.shared.ended.subscribe()
    }

    /// How many sandboxes are ready before they are asked for: complete ones, and prepared ones.
    pub fn ready(&self) -> (usize, usize) {
        (self.shared.pool.len(), self.shared.nursery.len())
    }

    /// All sandboxes, newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let entries: Vec<Arc<Entry>> = self.sandboxes().values().cloned().collect();
        let mut all: Vec<SandboxInfo> = entries.iter().filter_map(|entry| entry.info()).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.created_at));
        all
    }

    /// One sandbox as it is.
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

    /// A sandbox that can be used.
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

    /// The pid of a sandbox's PID 1, as the host sees it.
    pub fn host_pid(&self, id: &SandboxId) -> Result<i32, Error> {
        match self.entry(id)?.place() {
            Place::Live(sandbox) => Ok(sandbox.pid),
            Place::Apart(apart) => Err(apart.refusal()),
            place => Err(place.state().refusal("found among processes")),
        }
    }
}

/// Refuses a host on which no sandbox can be made, and says what would help.
pub fn check_host() -> Result<(), Error> {
    atoll_jail::plan::require(&Facts::read()).map_err(|error| crate::error::jail(&error))
}

pub(crate) fn unknown(id: &SandboxId) -> Error {
    Error::new(Code::SandboxNotFound, format!("there is no sandbox {id}"))
        .detail("sandboxID", id.as_str())
}
