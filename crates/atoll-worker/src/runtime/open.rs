//! Opens a runtime: instance, keeper, adoption of running sandboxes, background tasks.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use atoll_jail::facts::Facts;
use atoll_model::Error;

use super::{Config, EntryState, LocalRuntime, RuntimeState, SandboxEntry, expiry};
use crate::authorities::Authorities;
use crate::embryo_pool::EmbryoPool;
use crate::error::{host_file_error, internal};
use crate::exec::budget::{self, OutputRetention};
use crate::freezer::Freezer;
use crate::in_flight::{InFlight, InFlightGuard};
use crate::instance::{DataLock, Instance};
use crate::keeper::Keeper;
use crate::keeper::previous::{self, Inventory};
use crate::metrics::Metrics;
use crate::network;
use crate::reserve::Admission;
use crate::samples;
use crate::sandbox::run_blocking;
use crate::sync::lock;
use crate::syncer::Syncer;
use crate::template;
use crate::trash::Trash;
use crate::warm_pool::WarmPool;

/// Delays background work (pool refill, removal of files) until it is dropped.
#[derive(Debug)]
pub struct ForegroundGuard {
    _guard: InFlightGuard,
}

impl LocalRuntime {
    /// Opens the persistent instance of the data directory, or creates an ephemeral one (see
    /// [`Config::persistent`]). End it with [`LocalRuntime::close`]: the directory of an ephemeral
    /// instance that is dropped instead stays until `atoll gc`.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let data = config.data.clone();
        let own = if config.persistent {
            Some(run_blocking(move || DataLock::acquire(&data)).await?)
        } else {
            None
        };
        Self::open_with(config, own).await
    }

    /// Opens the persistent instance of a data directory that the caller has locked.
    pub async fn open_locked(config: Config, own: DataLock) -> Result<Self, Error> {
        Self::open_with(config, Some(own)).await
    }

    async fn open_with(config: Config, own: Option<DataLock>) -> Result<Self, Error> {
        // A sandbox takes about ten descriptors of the server, and some of the keeper, which
        // inherits the limit.
        raise_nofile_limit();
        if config.persistent {
            // The server has to respond although sandboxes use all the CPU time they can get.
            atoll_jail::raise_thread_priority();
            atoll_jail::raise_autogroup_priority();
        }
        let (parts, keeper, inventory) = match own {
            Some(own) => RuntimeParts::open_persistent(&config, own).await?,
            None => RuntimeParts::create_ephemeral(&config).await?,
        };
        let (trash, queue) = Trash::new();
        let shared = Arc::new(RuntimeState::new(&config, parts, keeper, trash)?);
        tokio::spawn(Trash::run(Arc::downgrade(&shared), queue));
        let runtime = Self { shared };
        let defer_background_work = runtime.defer_background_work();
        if let Some(inventory) = inventory {
            let begin = std::time::Instant::now();
            runtime.adopt_all(inventory, config.acknowledged).await?;
            let is_live = |entry: &&Arc<SandboxEntry>| matches!(entry.state(), EntryState::Live(_));
            let adopted = runtime.sandboxes().values().filter(is_live).count();
            runtime
                .shared
                .metrics
                .record_adoption(adopted, begin.elapsed());
        }
        runtime.spawn_background_tasks(config.persistent);
        drop(defer_background_work);
        Ok(runtime)
    }

    /// Background work waits until the returned guard is dropped.
    pub fn defer_background_work(&self) -> ForegroundGuard {
        ForegroundGuard {
            _guard: self.shared.foreground.begin(),
        }
    }

    /// Starts the tasks that refill the pools, sample usage, sync records and write journals.
    fn spawn_background_tasks(&self, is_persistent: bool) {
        let embryo_pool = tokio::spawn(EmbryoPool::run(Arc::clone(&self.shared)));
        let warm_pool = tokio::spawn(WarmPool::run(Arc::clone(&self.shared)));
        lock(&self.shared.background_tasks).extend([embryo_pool, warm_pool]);
        if is_persistent {
            tokio::spawn(samples::run(Arc::downgrade(&self.shared)));
            tokio::spawn(Syncer::run(Arc::downgrade(&self.shared)));
        }
        self.start_journals();
        if let Some(clock) = &self.shared.clock {
            let shared = Arc::downgrade(&self.shared);
            tokio::spawn(expiry::run(shared, Arc::clone(clock)));
        }
    }
}

impl RuntimeState {
    fn new(
        config: &Config,
        parts: RuntimeParts,
        keeper: Arc<Keeper>,
        trash: Trash,
    ) -> Result<Self, Error> {
        Ok(Self {
            admission: Admission::new(config.reserve, parts.facts.memory),
            max_limits: config.max_limits,
            authorities: Authorities::new(&parts.instance.directory, &config.authorities)?,
            facts: parts.facts,
            instance: parts.instance,
            templates: parts.templates,
            keeper,
            incompatible_keepers: Mutex::default(),
            embryo_pool: EmbryoPool::new(config.embryo_count),
            warm_pool: WarmPool::new(config.warm_count),
            network: parts.network,
            response_timeout: config.response_timeout,
            output_retention: OutputRetention {
                window: config.output_window.max(budget::MIN_WINDOW),
                reserve: config.reserve.disk,
            },
            syncer: Arc::default(),
            journals: config.journal.then(Arc::default),
            history: config.history.clone(),
            plan_override: config.plan_override.clone(),
            freezer: Freezer::start()?,
            foreground: InFlight::default(),
            cleanup: InFlight::default(),
            fd_shortage: tokio::sync::Notify::new(),
            trash,
            sandboxes: Mutex::default(),
            events: config.events.clone(),
            clock: config.clock.clone(),
            deadlines_changed: Arc::default(),
            metrics: Metrics::default(),
            background_tasks: Mutex::default(),
        })
    }
}

/// What has to exist before the runtime.
struct RuntimeParts {
    facts: Facts,
    templates: template::TemplateStore,
    instance: Instance,
    network: network::Network,
}

/// Parts, the keeper for new sandboxes, and what earlier keepers hold.
type Opened = (RuntimeParts, Arc<Keeper>, Option<Inventory>);

impl RuntimeParts {
    async fn create_ephemeral(config: &Config) -> Result<Opened, Error> {
        let settings = config.clone();
        let parts = run_blocking(move || {
            let facts = Facts::read();
            crate::instance::data_directory(&settings.data)?;
            let templates = open_templates(settings.templates)?;
            let instance = Instance::create_ephemeral(&settings.data, settings.storage, &facts)?;
            let network = network::Network::new(&instance.tag, settings.network, None)?;
            Ok(Self {
                facts,
                templates,
                instance,
                network,
            })
        });
        let parts = parts.await?;
        let keeper = parts.start_keeper(&config.binary, None)?;
        Ok((parts, keeper, None))
    }

    async fn open_persistent(config: &Config, own: DataLock) -> Result<Opened, Error> {
        let settings = config.clone();
        let run = config.data.join("run");
        crate::instance::private_directory(&run)?;
        let run_path = run.clone();
        let run =
            std::fs::File::open(&run).map_err(|error| host_file_error("open", &run, &error))?;
        let (found, mut inventory) = previous::adopt(&run_path, run.as_fd())?;
        let mut held = std::mem::take(&mut inventory.held);
        let addresses = (held.len() > 2).then(|| held.remove(2));
        let parts = run_blocking(move || {
            let facts = Facts::read();
            let templates = open_templates(settings.templates)?;
            templates.register_data_dir(&settings.data)?;
            let instance =
                Instance::open_persistent(&settings.data, own, held, settings.storage, &facts)?;
            let network = network::Network::new(&instance.tag, settings.network, addresses)?;
            Ok(Self {
                facts,
                templates,
                instance,
                network,
            })
        });
        let parts = parts.await?;
        let keeper = if let Some(keeper) = found {
            keeper
        } else {
            let listener = atoll_jail::keeper::listen(run.as_fd(), previous::SOCKET);
            let listener = listener.map_err(|error| crate::error::jail(&error))?;
            parts.start_keeper(&config.binary, Some(listener))?
        };
        Ok((parts, keeper, Some(inventory)))
    }

    /// Starts a keeper. It holds the instance's locks for as long as it lives, for this server and
    /// the next ones.
    fn start_keeper(&self, binary: &Path, listener: Option<OwnedFd>) -> Result<Arc<Keeper>, Error> {
        let instance = &self.instance;
        let held = [
            instance.lock.as_fd(),
            instance.ranges.as_fd(),
            self.network.claims(),
        ];
        let keeper = Keeper::start(binary, &instance.tag, listener, &held)?;
        // The keeper is moved to its control group in the background, because that may take as long
        // as everything else here. A keeper that stays where it was started works as well.
        if let Some(pid) = keeper.pid() {
            let cgroups = instance.cgroups.clone();
            keeper.run_setup(move || drop(cgroups.adopt(pid)));
        }
        Ok(Arc::new(keeper))
    }
}

/// Raises `RLIMIT_NOFILE` to its hard limit.
fn raise_nofile_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // With a lower limit there can be fewer sandboxes; creates then fail with `NoCapacity`.
    let _ = setrlimit(Resource::Nofile, all);
}

fn open_templates(path: PathBuf) -> Result<template::TemplateStore, Error> {
    template::TemplateStore::open(path).map_err(|error| internal("open the templates", &error))
}
