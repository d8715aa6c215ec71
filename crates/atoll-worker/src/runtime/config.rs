//! Settings of a runtime.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::plan::Plan;
use atoll_model::runtime::{DeadlineClock, HistorySink};
use atoll_model::{Bytes, EventBus, Limits, SandboxId};

use crate::exec::budget;
use crate::network;
use crate::reserve::Reserve;

/// Changes a plan before it is carried out. Only attack tests use it: they remove one defence and
/// show that the attack then succeeds.
pub type PlanOverride = Arc<dyn Fn(&mut Plan) + Send + Sync>;

/// Settings of a runtime.
#[derive(Clone)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// Directory of the templates; by default `templates/` in the data directory.
    pub templates: PathBuf,
    /// Binary that keepers are started from; its `main` calls `atoll_jail::keeper::run_if_asked`.
    pub binary: PathBuf,
    /// Whether sandboxes outlive this process: the next process that opens the data directory
    /// adopts them. If false, the instance is ephemeral and ends with the process.
    pub persistent: bool,
    /// Number of warm sandboxes, of `base` and of recently used templates.
    pub warm_count: usize,
    /// Number of embryos, in addition to the warm sandboxes.
    pub embryo_count: usize,
    /// Settings of the network `internet`.
    pub network: network::Config,
    /// Storage backend of the sandboxes' files.
    pub storage: crate::Storage,
    /// Disk and memory that sandboxes leave to the host.
    pub reserve: Reserve,
    /// Largest limits that one sandbox can have.
    pub max_limits: Limits,
    /// PEM certificates that every sandbox trusts besides those of its template.
    pub authorities: Vec<String>,
    /// How long a sandbox may not respond during a call, and how long a reader of an exec's output
    /// may read nothing while the exec waits for it.
    pub response_timeout: Duration,
    /// Stored output per exec, at least 1 MiB. All execs of a sandbox together have 16 times as
    /// much.
    pub output_window: Bytes,
    /// Whether commands are written to a journal beside the sandbox's files.
    pub journal: bool,
    /// Destination of the journals' rows. `None`: they stay in the journals.
    pub history: Option<Arc<dyn HistorySink>>,
    /// Destination of notifications about sandboxes. `None`: there are none.
    pub events: Option<Arc<dyn EventBus>>,
    /// Clock of the deadlines of sandboxes. `None`: they do not expire.
    pub clock: Option<Arc<dyn DeadlineClock>>,
    /// Sandboxes whose create the control plane has acknowledged. They keep their files even if a
    /// power failure left no record, or that of a warm sandbox: see
    /// [`LocalRuntime::recover`](crate::LocalRuntime::recover).
    pub acknowledged: HashSet<SandboxId>,
    /// See [`PlanOverride`].
    pub plan_override: Option<PlanOverride>,
}

impl Config {
    /// Settings of a server: persistent, with warm sandboxes, embryos and a journal.
    pub fn serving(data: impl Into<PathBuf>) -> Self {
        Self {
            persistent: true,
            warm_count: 16,
            embryo_count: 96,
            journal: true,
            ..Self::new(data)
        }
    }

    /// Settings of a single run: ephemeral, with this program as the keeper's binary and empty
    /// pools.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        Self {
            templates: data.join("templates"),
            data,
            binary: "/proc/self/exe".into(),
            persistent: false,
            warm_count: 0,
            embryo_count: 0,
            network: network::Config::default(),
            storage: crate::Storage::default(),
            reserve: Reserve::default(),
            max_limits: Limits::MAX,
            authorities: Vec::new(),
            response_timeout: Duration::from_secs(30),
            output_window: budget::DEFAULT_WINDOW,
            journal: false,
            history: None,
            events: None,
            clock: None,
            acknowledged: HashSet::new(),
            plan_override: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}
