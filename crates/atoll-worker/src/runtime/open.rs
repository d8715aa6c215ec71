//! How a runtime begins: its instance, its keeper, and who goes on by himself in it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use atoll_jail::facts::Facts;
use atoll_model::Error;
use tokio::sync::watch;

use super::{Config, Entry, LocalRuntime, Place, Shared};
use crate::authorities::Authorities;
use crate::busy::{Busy, Work};
use crate::error::{host_file, internal};
use crate::exec::budget::{self, OutputRetention};
use crate::freezer::Freezer;
use crate::instance::{DataLock, Instance};
use crate::keeper::Keeper;
use crate::keeper::left::{self, Inventory};
use crate::meters::Meters;
use crate::network;
use crate::nursery::Nursery;
use crate::pool::Pool;
use crate::reserve::Admission;
use crate::samples;
use crate::sandbox::{blocking, lock};
use crate::syncer::Syncer;
use crate::template;
use crate::trash::Trash;

/// Somebody who has more to do than to make things ready, or to take them away.
#[derive(Debug)]
pub struct Attention {
    _work: Work,
}

impl LocalRuntime {
    /// Opens the instance of the data directory, or a small one of its own (see [`Config::lasting`]). End
    /// it with [`LocalRuntime::close`]: a small one that is merely dropped leaves its directory to
    /// `atoll gc`.
    pub async fn open(config: Config) -> Result<Self, Error> {
        let data = config.data.clone();
        let own = if config.lasting {
            Some(blocking(move || DataLock::take(&data)).await?)
        } else {
            None
        };
        Self::open_with(config, own).await
    }

    /// Opens the lasting instance of a data directory whose lock the caller holds already.
    pub async fn open_locked(config: Config, own: DataLock) -> Result<Self, Error> {
        Self::open_with(config, Some(own)).await
    }

    async fn open_with(config: Config, own: Option<DataLock>) -> Result<Self, Error> {
        // A sandbox takes some ten descriptors of ours, and some of the keeper's, which inherits this.
        allow_many_files();
        if config.lasting {
            // A server answers although its sandboxes take all processor time they can get.
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
        let attention = runtime.attention();
        if let Some(inventory) = inventory {
            let begin = std::time::Instant::now();
            runtime.take_over(inventory).await?;
            let lives = |entry: &&Arc<Entry>| matches!(entry.place(), Place::Live(_));
            let adopted = runtime.sandboxes().values().filter(lives).count();
            runtime.shared.meters.adopted(adopted, begin.elapsed());
        }
        runtime.tend(config.lasting);
        drop(attention);
        Ok(runtime)
    }

    /// While this is kept nothing is begun that nobody waits for.
    pub fn attention(&self) -> Attention {
        Attention {
            _work: self.shared.busy.begin(),
        }
    }

    /// Begins what goes on by itself.
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
            nursery: Nursery::new(config.embryos),
            pool: Pool::new(config.warm),
            network: ground.network,
            patience: config.patience,
            kept: OutputRetention {
                window: config.window.max(budget::MIN_WINDOW),
                reserve: config.reserve.disk,
            },
            syncer: Arc::default(),
            journals: config.journal.then(Arc::default),
            amend: config.amend.clone(),
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

/// What a runtime stands on.
struct Ground {
    facts: Facts,
    templates: template::Store,
    instance: Instance,
    network: network::Network,
}

/// The same, with the keeper that sandboxes come from, and what keepers kept for us.
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
        let (found, mut inventory) = left::take_over(&place, run.as_fd())?;
        let mut held = std::mem::take(&mut inventory.held);
        let addresses = (held.len() > 2).then(|| held.remove(2));
        let ground = blocking(move || {
            let facts = Facts::read();
            let templates = open_templates(asked.templates)?;
            templates.lend_to(&asked.data)?;
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
            let listener = atoll_jail::keeper::listen(run.as_fd(), left::SOCKET);
            let listener = listener.map_err(|error| crate::error::jail(&error))?;
            ground.start_keeper(&config.binary, Some(listener))?
        };
        Ok((ground, keeper, Some(inventory)))
    }

    /// Starts a keeper. It holds the instance's locks for as long as it lives, for itself and whoever takes it over.
    fn start_keeper(&self, binary: &Path, listener: Option<OwnedFd>) -> Result<Arc<Keeper>, Error> {
        let instance = &self.instance;
        let held = [
            instance.lock.as_fd(),
            instance.ranges.as_fd(),
            self.network.claims(),
        ];
        let keeper = Keeper::start(binary, &instance.tag, listener, &held)?;
        // It moves to its control group beside the first create: that may take as long as all the rest. A keeper that
        // stays where it was started works as well.
        if let Some(pid) = keeper.pid() {
            let cgroups = instance.cgroups.clone();
            keeper.settle(move || drop(cgroups.adopt(pid)));
        }
        Ok(Arc::new(keeper))
    }
}

/// Asks for as many open files as we may have.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    // With fewer there can be fewer sandboxes, which will be told.
    let _ = setrlimit(Resource::Nofile, all);
}

fn open_templates(path: PathBuf) -> Result<template::Store, Error> {
    template::Store::open(path).map_err(|error| internal("open the templates", &error))
}
