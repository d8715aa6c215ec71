//! The runtime of one instance: its shared state, and lookup of sandboxes by id.

pub(crate) mod activity;
mod adopt;
mod close;
mod config;
mod connection;
mod create;
mod delete;
mod entry;
mod execs;
mod expiry;
mod files;
mod history;
mod interface;
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
use atoll_model::runtime::{DeadlineClock, HistorySink};
use atoll_model::{
    Code, Error, EventBus, Limits, Notification, SandboxId, SandboxInfo, SandboxSpec, SandboxState,
    Timer,
};

use crate::authorities::Authorities;
use crate::embryo_pool::EmbryoPool;
use crate::exec::budget::OutputRetention;
use crate::freezer::Freezer;
use crate::in_flight::InFlight;
use crate::instance::Instance;
use crate::journal::Journals;
use crate::keeper::Keeper;
use crate::keeper::previous::IncompatibleKeeper;
use crate::metrics::Metrics;
use crate::network;
use crate::reserve::Admission;
use crate::sandbox::Sandbox;
use crate::sync::lock;
use crate::syncer::Syncer;
use crate::template;
use crate::trash::Trash;
use crate::warm_pool::WarmPool;
pub use config::{Config, PlanOverride};
pub use connection::PortWatch;
pub use create::BeforeCreate;
pub(crate) use create::no_hook;
pub(crate) use entry::{EntryState, SandboxEntry};
pub use open::ForegroundGuard;

/// State that the parts of a runtime share.
pub(crate) struct RuntimeState {
    pub(crate) facts: Facts,
    pub(crate) instance: Instance,
    pub(crate) templates: template::TemplateStore,
    pub(crate) keeper: Arc<Keeper>,
    /// Keepers of other protocol versions that this server cannot talk to.
    incompatible_keepers: Mutex<Vec<IncompatibleKeeper>>,
    pub(crate) embryo_pool: EmbryoPool,
    pub(crate) warm_pool: WarmPool,
    pub(crate) network: network::Network,
    pub(crate) admission: Admission,
    /// Largest limits that one sandbox can have.
    pub(crate) max_limits: Limits,
    /// The operator's certificate authorities, added to every sandbox.
    pub(crate) authorities: Authorities,
    pub(crate) response_timeout: Duration,
    /// Limits for the stored output of execs.
    output_retention: OutputRetention,
    pub(crate) syncer: Arc<Syncer>,
    /// `None` if the runtime was opened without a journal.
    pub(crate) journals: Option<Arc<Journals>>,
    /// Destination of the journals' rows; `None` if they stay in the journals.
    history: Option<Arc<dyn HistorySink>>,
    pub(crate) plan_override: Option<PlanOverride>,
    freezer: Freezer,
    /// Requests in flight; they continue if the caller goes away.
    pub(crate) foreground: InFlight,
    /// Cleanup that continues after the response.
    pub(crate) cleanup: InFlight,
    /// Notified when cleanup has to wait for file descriptors.
    pub(crate) fd_shortage: tokio::sync::Notify,
    pub(crate) trash: Trash,
    sandboxes: Mutex<HashMap<SandboxId, Arc<SandboxEntry>>>,
    /// Destination of notifications; `None` if no part of the process needs them.
    events: Option<Arc<dyn EventBus>>,
    /// Clock of the deadlines; `None` if nothing expires.
    clock: Option<Arc<dyn DeadlineClock>>,
    /// Notified when a deadline may be earlier than before.
    deadlines_changed: Arc<tokio::sync::Notify>,
    pub(crate) metrics: Metrics,
    /// Tasks that refill the pools.
    background_tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
}

impl fmt::Debug for RuntimeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeState")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl RuntimeState {
    /// Schedules a sync of a sandbox's changed record, if the instance is persistent.
    pub(crate) fn note_record(&self, id: &SandboxId) {
        if self.instance.data_lock.is_some() {
            self.syncer.note_record(id);
        }
    }

    /// Announces that the state of a sandbox has changed without a request.
    fn publish_change(&self, id: &SandboxId) {
        if let Some(events) = &self.events {
            events.publish(Notification::SandboxChanged(id.clone()));
        }
    }

    /// All sandboxes in the table, in no order.
    pub(crate) fn entries(&self) -> Vec<(SandboxId, Arc<SandboxEntry>)> {
        let all = lock(&self.sandboxes);
        let both = |(id, entry): (&SandboxId, &Arc<SandboxEntry>)| (id.clone(), Arc::clone(entry));
        all.iter().map(both).collect()
    }
}

/// The sandboxes of one instance on this machine. Clones share it.
#[derive(Debug, Clone)]
pub struct LocalRuntime {
    shared: Arc<RuntimeState>,
}

impl LocalRuntime {
    pub(crate) fn shared(&self) -> &Arc<RuntimeState> {
        &self.shared
    }

    /// Measures one operation until the returned timer is dropped.
    fn time(&self, operation: &'static str) -> Timer {
        self.shared.metrics.operations.time(operation)
    }

    /// Age of the oldest acknowledged change of a sandbox that a power failure could still undo.
    /// Writes by programs in running sandboxes do not count.
    pub fn oldest_unsynced(&self) -> Duration {
        self.shared.syncer.oldest_age()
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<SandboxEntry>>> {
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

    /// Number of warm sandboxes and of embryos.
    pub fn pool_sizes(&self) -> (usize, usize) {
        (self.shared.warm_pool.len(), self.shared.embryo_pool.len())
    }

    /// All sandboxes, newest first.
    pub fn list(&self) -> Vec<SandboxInfo> {
        let entries: Vec<Arc<SandboxEntry>> = self.sandboxes().values().cloned().collect();
        let mut all: Vec<SandboxInfo> = entries.iter().filter_map(|entry| entry.info()).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.created_at));
        all
    }

    /// State and limits of one sandbox.
    pub fn get(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        self.entry(id)?.info().ok_or_else(|| not_found(id))
    }

    /// The specification in the sandbox's record.
    pub fn spec(&self, id: &SandboxId) -> Result<SandboxSpec, Error> {
        match self.entry(id)?.state() {
            EntryState::Live(sandbox) => Ok(lock(&sandbox.record).spec.clone()),
            EntryState::Stopped(record, _) => Ok(record.spec),
            EntryState::Unadoptable(sandbox) => Ok(sandbox.record.spec.clone()),
            EntryState::Gone => Err(not_found(id)),
        }
    }

    /// Adds the deadlines in server time.
    fn with_deadlines(&self, info: SandboxInfo) -> SandboxInfo {
        let (Some(clock), Ok(entry)) = (&self.shared.clock, self.entry(&info.id)) else {
            return info;
        };
        let deadlines = entry.activity.deadlines();
        SandboxInfo {
            deadlines: deadlines.map(|deadlines| deadlines.to_server_time(&**clock)),
            ..info
        }
    }

    pub(crate) fn entry(&self, id: &SandboxId) -> Result<Arc<SandboxEntry>, Error> {
        self.sandboxes()
            .get(id)
            .cloned()
            .ok_or_else(|| not_found(id))
    }

    /// A running sandbox; an error in every other state.
    fn find(&self, id: &SandboxId) -> Result<Arc<Sandbox>, Error> {
        match self.entry(id)?.state() {
            EntryState::Live(sandbox) if sandbox.exit_status.borrow().is_some() => {
                Err(SandboxState::Stopped.state_error("used"))
            }
            EntryState::Live(sandbox) => match *sandbox.state.borrow() {
                SandboxState::Running => Ok(Arc::clone(&sandbox)),
                state => Err(state.state_error("used")),
            },
            EntryState::Stopped(record, _) => Err(record.info.state.state_error("used")),
            EntryState::Unadoptable(sandbox) => Err(sandbox.error()),
            EntryState::Gone => Err(not_found(id)),
        }
    }

    /// Host pid of a sandbox's PID 1.
    pub fn host_pid(&self, id: &SandboxId) -> Result<i32, Error> {
        match self.entry(id)?.state() {
            EntryState::Live(sandbox) => Ok(sandbox.pid),
            EntryState::Unadoptable(sandbox) => Err(sandbox.error()),
            state => Err(state.sandbox_state().state_error("looked up by pid")),
        }
    }
}

/// Fails if no sandbox can be created on this host; the error has the remedy.
pub fn check_host() -> Result<(), Error> {
    atoll_jail::plan::require(&Facts::read()).map_err(|error| crate::error::jail(&error))
}

pub(crate) fn not_found(id: &SandboxId) -> Error {
    Error::new(Code::SandboxNotFound, format!("there is no sandbox {id}"))
        .detail("sandboxID", id.as_str())
}
