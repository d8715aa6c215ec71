//! Opens a runtime: instance, keeper, adoption of running sandboxes, background tasks.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use atoll_jail::facts::Facts;
use atoll_model::Error;
use tokio::sync::watch;

use super::{Config, Entry, LocalRuntime, Place, Shared};
use crate::authorities::Authorities;
use crate::embryo_pool::Nursery;
use crate::error::{host_file, internal};
use crate::exec::budget::{self, OutputRetention};
use crate::freezer::Freezer;
use crate::in_flight::{Busy, Work};
use crate::instance::{DataLock, Instance};
use crate::keeper::Keeper;
use crate::keeper::previous::{self, Inventory};
use crate::metrics::Meters;
use crate::network;
use crate::reserve::Admission;
use crate::samples;
use crate::sandbox::{blocking, lock};
use crate::syncer::Syncer;
use crate::template;
use crate::trash::Trash;
use crate::warm_pool::Pool;

/// Delays background work (pool refill, removal of files) until it is dropped.
#[derive(Debug)]
pub struct ForegroundGuard {
    _work: Work,
}

impl LocalRuntime {
    /// Opens the persistent instance of the data directory, or creates an ephemeral one (see
    /// [`Config::persistent`]). End it with [`LocalRuntime::close`]: the directory of an ephemeral
    /// instance that is dropped instead stays until `atoll gc`.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let data = config.data.clone();
        let own = if config.persistent {
            Some(blocking(move || DataLock::acquire(&data)).await?)
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
        allow_many_files();
        if config.persistent {
            // The server has to respond although sandboxes use all the CPU time they can get.
            atoll_jail::go_before_others();
            atoll_jail::put_session_first();
        }
        let (ground, keeper, inventory) = match own {
            Some(own) => Ground::lasting(&config, own).await?,
            None => Ground::ephemeral(&config).await?,
        };
        let (trash, thrown) = Trash::new();
        let shared = Arc::new(Shared::new(&config, ground, keeper, trash)?);
        tokio::spawn(Trash::tend(Arc::downgrade(&shared), thrown));
        let runtime = Self { shared };
        let defer_background_work = runtime.defer_background_work();
        if let Some(inventory) = inventory {
            let begin = std::time::Instant::now();
            runtime.take_over(inventory).await?;
            let lives = |entry: &&Arc<Entry>| matches!(entry.place(), Place::Live(_));
            let adopted = runtime.sandboxes().values().filter(lives).count();
            runtime.shared.meters.adopted(adopted, begin.elapsed());
        }
        runtime.tend(config.persistent);
        drop(defer_background_work);
        Ok(runtime)
    }

    /// Background work waits until the returned guard is dropped.
    pub fn defer_background_work(&self) -> ForegroundGuard {
        ForegroundGuard {
            _work: self.shared.busy.begin(),
        }
    }

    /// Starts the tasks that refill the pools, sample usage, sync records and write journals.
    fn tend(&self, lasting: bool) {
        let nursery = tokio::spawn(Nursery::tend(Arc::clone(&self.shared)));
        let pool = tokio::spawn(Pool::tend(Arc::clone(&self.shared)));
        lock(&self.shared.tending).extend([nursery, pool]);
        if lasting {
            tokio::spawn(samples::watch(Arc::downgrade(&self.shared)));
            tokio::spawn(Syncer::tend(Arc::downgrade(&self.shared)));
        }
        self.keep_journals();
    }
}

impl Shared {
    fn new(
        config: &Config,
        ground: Ground,
        keeper: Arc<Keeper>,
        trash: Trash,
    ) -> Result<Self, Error> {
        Ok(Self {
            admission: Admission::new(config.reserve, ground.facts.memory),
            ceilings: config.ceilings,
            authorities: Authorities::new(&ground.instance.directory, &config.authorities)?,
            facts: ground.facts,
            instance: ground.instance,
            templates: ground.templates,
            keeper,
            foreign: Mutex::default(),
            nursery: Nursery::new(config.embryo_count),
            pool: Pool::new(config.warm_count),
            network: ground.network,
            patience: config.response_timeout,
            kept: OutputRetention {
                window: config.output_window.max(budget::MIN_WINDOW),
                reserve: config.reserve.disk,
            },
            syncer: Arc::default(),
            journals: config.journal.then(Arc::default),
            amend: config.plan_override.clone(),
            freezer: Freezer::start()?,
            busy: Busy::default(),
            aftermath: Busy::default(),
            lack: tokio::sync::Notify::new(),
            trash,
            sandboxes: Mutex::default(),
            ended: watch::Sender::default(),
            meters: Meters::default(),
            tending: Mutex::default(),
        })
    }
}

/// What has to exist before the runtime.
struct Ground {
    facts: Facts,
    templates: template::TemplateStore,
    instance: Instance,
    network: network::Network,
}

/// Parts, the keeper for new sandboxes, and what earlier keepers hold.
type Opened = (Ground, Arc<Keeper>, Option<Inventory>);

impl Ground {
    async fn ephemeral(config: &Config) -> Result<Opened, Error> {
        let asked = config.clone();
        let ground = blocking(move || {
            let facts = Facts::read();
            crate::instance::data_directory(&asked.data)?;
            let templates = open_templates(asked.templates)?;
            let instance = Instance::ephemeral(&asked.data, asked.storage, &facts)?;
            let network = network::Network::new(&instance.tag, asked.network, None)?;
            Ok(Self {
                facts,
                templates,
                instance,
                network,
            })
        });
        let ground = ground.await?;
        let keeper = ground.start_keeper(&config.binary, None)?;
        Ok((ground, keeper, None))
    }

    async fn lasting(config: &Config, own: DataLock) -> Result<Opened, Error> {
        let asked = config.clone();
        let run = config.data.join("run");
        crate::instance::private_directory(&run)?;
        let place = run.clone();
        let run = std::fs::File::open(&run).map_err(|error| host_file("open", &run, &error))?;
        let (found, mut inventory) = previous::take_over(&place, run.as_fd())?;
        let mut held = std::mem::take(&mut inventory.held);
        let addresses = (held.len() > 2).then(|| held.remove(2));
        let ground = blocking(move || {
            let facts = Facts::read();
            let templates = open_templates(asked.templates)?;
            templates.register_data_dir(&asked.data)?;
            let instance = Instance::lasting(&asked.data, own, held, asked.storage, &facts)?;
            let network = network::Network::new(&instance.tag, asked.network, addresses)?;
            Ok(Self {
                facts,
                templates,
                instance,
                network,
            })
        });
        let ground = ground.await?;
        let keeper = if let Some(keeper) = found {
            keeper
        } else {
            let listener = atoll_jail::keeper::listen(run.as_fd(), previous::SOCKET);
            let listener = listener.map_err(|error| crate::error::jail(&error))?;
            ground.start_keeper(&config.binary, Some(listener))?
        };
        Ok((ground, keeper, Some(inventory)))
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
            keeper.settle(move || drop(cgroups.adopt(pid)));
        }
        Ok(Arc::new(keeper))
    }
}

/// Raises RLIMIT_NOFILE to its hard limit.
fn allow_many_files() {
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
