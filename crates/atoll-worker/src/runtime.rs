//! Sandboxes on this machine.

mod adopt;
mod apart;
mod connection;
mod files;
mod history;
mod templates;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use atoll_jail::facts::Facts;
use atoll_jail::plan::Plan;
use atoll_model::{
    Bytes, Code, DiskUsage, Error, ExecId, ExecInfo, ExecSpec, Limits, Reason, SandboxId,
    SandboxInfo, SandboxSpec, SandboxState, Stopwatch, Transition, Usage,
};
use atoll_store::CommandRow;
use std::os::fd::{AsFd, BorrowedFd};
use tokio::sync::watch;

use crate::busy::Busy;
use crate::error::{host_file, internal};
use crate::exec::budget::{self, Kept};
use crate::exec::table::Table;
use crate::exec::{self, Control, Exec};
use crate::freezer::{Freezer, Step};
use crate::instance::Instance;
use crate::journal::Journals;
use crate::keeper::Keeper;
use crate::keeper::left::{self, Foreign, Inventory};
use crate::meters::Meters;
use crate::network;
use crate::nursery::Nursery;
use crate::pool::Pool;
use crate::reserve::{Admission, Reserve};
use crate::samples::{self, Samples};
use crate::sandbox::{Record, Sandbox, blocking, lock, size};
use crate::template;
use crate::trash::{Item, Trash};
use apart::Apart;
pub use connection::PortWatch;

/// Changes a plan before it is carried out. Attack tests take one defence away with it, to show
/// that the same attack would then succeed; nothing else has a use for it.
pub type Amend = Arc<dyn Fn(&mut Plan) + Send + Sync>;

/// Hears the id of a sandbox that is about to be made, and may still say no.
pub type Announce = Box<
    dyn FnOnce(SandboxId) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>
        + Send,
>;

/// Hears what was run in a sandbox that is about to be gone, as far as nobody has taken it yet. Its files go only if
/// that was kept.
pub type Farewell = Box<
    dyn FnOnce(Vec<CommandRow>) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>
        + Send,
>;

/// Nobody has to know.
pub(crate) fn nobody() -> Announce {
    Box::new(|_| Box::pin(async { Ok(()) }))
}

/// How a runtime is set up.
#[derive(Clone)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// Where templates are: by default `templates/` below the data directory.
    pub templates: PathBuf,
    /// The binary keepers are started from; its `main` calls `atoll_jail::keeper::run_if_asked`.
    pub binary: PathBuf,
    /// Sandboxes outlive this process: the next one that opens the same data directory goes on with them.
    /// Otherwise they are part of a small instance that ends with it.
    pub lasting: bool,
    /// How many sandboxes are made in advance: of `base`, and of what was asked for lately.
    pub warm: usize,
    /// How many more are prepared, but for what they are made from.
    pub embryos: usize,
    /// How the network `internet` is set up.
    pub network: network::Config,
    /// What sandboxes' files are on.
    pub storage: crate::Storage,
    /// What is left to the host.
    pub reserve: Reserve,
    /// How long a sandbox may leave a call without a sign of life, and a reader of a command's output take
    /// nothing while the command waits for it.
    pub patience: Duration,
    /// How much of what a command writes is kept: at least 1 MiB, and 16 times as much of all commands of a sandbox.
    pub window: Bytes,
    /// What is run in sandboxes is written to a journal beside their files.
    pub journal: bool,
    /// See [`Amend`].
    pub amend: Option<Amend>,
}

impl Config {
    /// What a server has: sandboxes outlive it, and some are ready before they are asked for.
    pub fn serving(data: impl Into<PathBuf>) -> Self {
        Self {
            lasting: true,
            warm: 16,
            embryos: 96,
            journal: true,
            ..Self::new(data)
        }
    }

    /// The usual for a single run: this very program, below a data directory.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        Self {
            templates: data.join("templates"),
            data,
            binary: "/proc/self/exe".into(),
            lasting: false,
            warm: 0,
            embryos: 0,
            network: network::Config::default(),
            storage: crate::Storage::default(),
            reserve: Reserve::default(),
            patience: Duration::from_secs(30),
            window: budget::WINDOW,
            journal: false,
            amend: None,
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
    pub(crate) patience: Duration,
    /// How much of what commands write is kept.
    kept: Kept,
    /// Nothing if nobody keeps them.
    pub(crate) journals: Option<Arc<Journals>>,
    pub(crate) amend: Option<Amend>,
    freezer: Freezer,
    /// Creates under way, whose callers may have gone.
    pub(crate) busy: Busy,
    /// What is still cleared away when its caller has been answered.
    pub(crate) aftermath: Busy,
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
    /// All sandboxes.
    pub(crate) fn entries(&self) -> Vec<(SandboxId, Arc<Entry>)> {
        let all = lock(&self.sandboxes);
        let both = |(id, entry): (&SandboxId, &Arc<Entry>)| (id.clone(), Arc::clone(entry));
        all.iter().map(both).collect()
    }
}

/// A sandbox, whether or not it has processes.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Held while it gets from one state to another: one at a time.
    gate: Arc<tokio::sync::Mutex<()>>,
    place: Mutex<Place>,
    pub(crate) samples: Mutex<Samples>,
}

#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// It has processes.
    Live(Arc<Sandbox>),
    /// It has only files.
    Stopped(Box<Record>, Arc<Table>),
    /// It has processes, and we cannot speak with it.
    Apart(Arc<Apart>),
    /// It is being deleted, or was.
    Gone,
}

impl Entry {
    fn new(place: Place) -> Arc<Self> {
        Arc::new(Self {
            gate: Arc::default(),
            place: Mutex::new(place),
            samples: Mutex::default(),
        })
    }

    pub(crate) fn place(&self) -> Place {
        lock(&self.place).clone()
    }

    fn set(&self, place: Place) {
        *lock(&self.place) = place;
    }

    fn info(&self) -> Option<SandboxInfo> {
        match self.place() {
            Place::Live(sandbox) => Some(sandbox.info()),
            Place::Stopped(record, _) => Some(record.info),
            Place::Apart(apart) => Some(apart.record.info.clone()),
            Place::Gone => None,
        }
    }

    fn execs(&self, id: &SandboxId) -> Result<(Arc<Table>, Option<Arc<Sandbox>>), Error> {
        match self.place() {
            Place::Live(sandbox) => Ok((Arc::clone(&sandbox.execs), Some(sandbox))),
            Place::Stopped(_, execs) => Ok((execs, None)),
            Place::Apart(apart) => Err(apart.refusal()),
            Place::Gone => Err(unknown(id)),
        }
    }
}

/// The sandboxes of one instance on this machine.
#[derive(Debug, Clone)]
pub struct LocalRuntime {
    shared: Arc<Shared>,
}

impl LocalRuntime {
    /// Opens the instance of the data directory, or a small one of its own (see [`Config::lasting`]). End
    /// it with [`LocalRuntime::close`]: a small one that is merely dropped leaves its directory to
    /// `atoll gc`.
    pub async fn open(config: Config) -> Result<Self, Error> {
        // A sandbox takes some ten descriptors of ours, and some of the keeper's, which inherits this.
        allow_many_files();
        if config.lasting {
            // A server answers although its sandboxes take all processor time they can get.
            atoll_jail::go_before_others();
            atoll_jail::put_session_first();
        }
        let (binary, patience, lasting) = (config.binary.clone(), config.patience, config.lasting);
        let (journals, reserve) = (config.journal.then(Arc::default), config.reserve);
        let kept = Kept {
            window: config.window.max(budget::SMALLEST),
            reserve: reserve.disk,
        };
        let (nursery, pool) = (Nursery::new(config.embryos), Pool::new(config.warm));
        let opened = if config.lasting {
            Self::open_lasting(config, binary).await?
        } else {
            Self::open_ephemeral(config, binary).await?
        };
        let (facts, templates, instance, network, keeper, amend, inventory) = opened;
        if lasting {
            crate::metronome::start(&facts.processors);
        }
        let (trash, thrown) = Trash::new();
        let shared = Arc::new(Shared {
            admission: Admission::new(reserve, facts.memory),
            facts,
            instance,
            templates,
            keeper,
            foreign: Mutex::default(),
            nursery,
            pool,
            network,
            patience,
            kept,
            journals,
            amend,
            freezer: Freezer::start()?,
            busy: Busy::default(),
            aftermath: Busy::default(),
            trash,
            sandboxes: Mutex::default(),
            ended: watch::Sender::default(),
            meters: Meters::default(),
            tending: Mutex::default(),
        });
        tokio::spawn(Trash::tend(Arc::downgrade(&shared), thrown));
        let runtime = Self { shared };
        if let Some(inventory) = inventory {
            let begin = std::time::Instant::now();
            runtime.take_over(inventory).await?;
            let lives = |entry: &Arc<Entry>| matches!(entry.place(), Place::Live(_));
            let adopted = runtime
                .sandboxes()
                .values()
                .filter(|entry| lives(entry))
                .count();
            runtime.shared.meters.adopted(adopted, begin.elapsed());
        }
        let nursery = tokio::spawn(Nursery::tend(Arc::clone(&runtime.shared)));
        let pool = tokio::spawn(Pool::tend(Arc::clone(&runtime.shared)));
        lock(&runtime.shared.tending).extend([nursery, pool]);
        if lasting {
            tokio::spawn(samples::watch(Arc::downgrade(&runtime.shared)));
            tokio::spawn(crate::orphans::tend(Arc::downgrade(&runtime.shared)));
        }
        runtime.keep_journals();
        Ok(runtime)
    }

    async fn open_ephemeral(config: Config, binary: PathBuf) -> Result<Opened, Error> {
        let opened = blocking(move || {
            let facts = Facts::read();
            crate::instance::data_directory(&config.data)?;
            let templates = open_templates(config.templates)?;
            let instance = Instance::ephemeral(&config.data, config.storage, &facts)?;
            let network = network::Network::new(&instance.tag, config.network, None)?;
            Ok((facts, templates, instance, network, config.amend))
        });
        let (facts, templates, instance, network, amend) = opened.await?;
        let held = holdings(&instance, &network);
        let keeper = Keeper::start(&binary, &instance.tag, None, &held)?;
        settle(&keeper, &instance);
        let keeper = Arc::new(keeper);
        Ok((facts, templates, instance, network, keeper, amend, None))
    }

    async fn open_lasting(config: Config, binary: PathBuf) -> Result<Opened, Error> {
        let data = config.data.clone();
        let own = blocking(move || crate::instance::lock_data(&data)).await?;
        let run = config.data.join("run");
        crate::instance::private_directory(&run)?;
        let place = run.clone();
        let run = std::fs::File::open(&run).map_err(|error| host_file("open", &run, &error))?;
        let (found, mut inventory) = left::take_over(&place, run.as_fd())?;
        let mut held = std::mem::take(&mut inventory.held);
        let addresses = (held.len() > 2).then(|| held.remove(2));
        let opened = blocking(move || {
            let facts = Facts::read();
            let templates = open_templates(config.templates)?;
            templates.lend_to(&config.data)?;
            let instance = Instance::lasting(&config.data, own, held, config.storage, &facts)?;
            let network = network::Network::new(&instance.tag, config.network, addresses)?;
            Ok((facts, templates, instance, network, config.amend))
        });
        let (facts, templates, instance, network, amend) = opened.await?;
        let keeper = if let Some(keeper) = found {
            keeper
        } else {
            let listener = atoll_jail::keeper::listen(run.as_fd(), left::SOCKET);
            let listener = listener.map_err(|error| crate::error::jail(&error))?;
            let held = holdings(&instance, &network);
            let keeper = Keeper::start(&binary, &instance.tag, Some(listener), &held)?;
            settle(&keeper, &instance);
            Arc::new(keeper)
        };
        let inventory = Some(inventory);
        Ok((
            facts, templates, instance, network, keeper, amend, inventory,
        ))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Measures one operation until what comes back is dropped.
    fn time(&self, operation: &'static str) -> Stopwatch {
        self.shared.meters.operations.time(operation)
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

    /// Makes a sandbox; an exec works when this returns. A caller that goes away does not leave
    /// half of one.
    pub async fn create(&self, spec: SandboxSpec) -> Result<SandboxInfo, Error> {
        self.create_announced(spec, nobody()).await
    }

    /// The same, for a caller who has to know the sandbox's id before there is anything of it: whoever
    /// keeps books writes it down first. If that fails nothing is made.
    pub async fn create_announced(
        &self,
        spec: SandboxSpec,
        announce: Announce,
    ) -> Result<SandboxInfo, Error> {
        let runtime = self.clone();
        let work = tokio::spawn(async move {
            let _busy = runtime.shared.busy.begin();
            let _time = runtime.time("create");
            let shared = &runtime.shared;
            // Before a warm one is taken: not every one can be put back.
            crate::sandbox::check(shared, &spec)?;
            let begin = std::time::Instant::now();
            let fitted = match shared.pool.take(&spec) {
                Some(warm) => warm.fit(shared, &spec).await.map(Some),
                None => Ok(None),
            };
            let sandbox = match fitted {
                Ok(Some(warm)) => {
                    if let Err(error) = announce(warm.info().id).await {
                        warm.put_back(shared, &spec).await;
                        return Err(error);
                    }
                    warm.belong(shared, spec, begin).await?
                }
                Ok(None) => Sandbox::create(shared, spec, false, announce).await?,
                // It holds some memory already: a fresh one may be smaller.
                Err(error) if error.code == Code::Conflict => {
                    Sandbox::create(shared, spec, false, announce).await?
                }
                Err(error) => return Err(error),
            };
            let info = runtime.add(&sandbox);
            shared.pool.asked(&info.template);
            Ok(info)
        });
        work.await
            .map_err(|error| internal("a create failed", &error))?
    }

    /// Takes a sandbox with processes among ours.
    fn add(&self, sandbox: &Arc<Sandbox>) -> SandboxInfo {
        let info = sandbox.info();
        let entry = Entry::new(Place::Live(Arc::clone(sandbox)));
        self.watch_over(&entry, sandbox);
        self.sandboxes().insert(info.id.clone(), entry);
        info
    }

    /// Notices when a sandbox's processes end although nobody asked for that.
    fn watch_over(&self, entry: &Arc<Entry>, sandbox: &Arc<Sandbox>) {
        let (shared, entry) = (Arc::downgrade(&self.shared), Arc::downgrade(entry));
        let mut died = sandbox.died.clone();
        let sandbox = Arc::downgrade(sandbox);
        tokio::spawn(async move {
            let Ok(status) = died.wait_for(Option::is_some).await.map(|status| *status) else {
                return;
            };
            let Some(entry) = entry.upgrade() else { return };
            let _gate = entry.gate.lock().await;
            let (Some(shared), Some(sandbox)) = (shared.upgrade(), sandbox.upgrade()) else {
                return;
            };
            // Not if it was stopped or deleted meanwhile.
            if matches!(entry.place(), Place::Live(live) if Arc::ptr_eq(&live, &sandbox)) {
                let reason = reason(&sandbox, status.unwrap_or(9));
                let _ = stopped(&shared, &entry, &sandbox, Some(reason)).await;
                shared.ended.send_replace(());
            }
        });
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

    /// Gets a sandbox from one state to another, one at a time, and to the end whether or not the caller
    /// waits for it.
    async fn change<F, W>(&self, id: &SandboxId, change: F) -> Result<SandboxInfo, Error>
    where
        F: FnOnce(Self, Arc<Entry>, Place) -> W + Send + 'static,
        W: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (runtime, id) = (self.clone(), id.clone());
        let entry = self.entry(&id)?;
        let work = tokio::spawn(async move {
            let _gate = entry.gate.lock().await;
            let place = entry.place();
            let Some(info) = entry.info() else {
                return Err(unknown(&id));
            };
            change(runtime, Arc::clone(&entry), place).await?;
            Ok(entry.info().unwrap_or(info))
        });
        work.await
            .map_err(|error| internal("a change of state failed", &error))?
    }

    /// Lets all processes of a sandbox stand still.
    pub async fn pause(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("pause");
        self.freeze(id, Transition::Pause).await
    }

    /// Lets them go on.
    pub async fn resume(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("resume");
        self.freeze(id, Transition::Resume).await
    }

    async fn freeze(&self, id: &SandboxId, transition: Transition) -> Result<SandboxInfo, Error> {
        let _busy = self.shared.busy.begin();
        let entry = self.entry(id)?;
        let gate = Arc::clone(&entry.gate).lock_owned().await;
        let id = id.clone();
        let work = move || {
            let step = match entry.place() {
                Place::Live(sandbox) => sandbox.freeze(transition)?,
                Place::Gone => Step::Done(()),
                Place::Apart(apart) => return Err(apart.refusal()),
                place @ Place::Stopped(..) => {
                    state_of(&place).next(transition)?;
                    Step::Done(())
                }
            };
            let info = move || {
                let _gate = gate;
                entry.info().ok_or_else(|| unknown(&id))
            };
            Ok(match step {
                Step::Done(()) => Step::Done(info()?),
                Step::Later(rest) => Step::Later(Box::new(move || rest().and_then(|()| info()))),
            })
        };
        self.shared.freezer.run(work).await
    }

    /// Changes what a sandbox may use. It holds when this returns: the kernel keeps it, and commands that begin
    /// later are told; programs that run keep their processors. For a paused one programs are told when it
    /// goes on, for a stopped one when it starts. Memory that is in use cannot be taken away.
    pub async fn set_limits(&self, id: &SandboxId, limits: Limits) -> Result<SandboxInfo, Error> {
        let _time = self.time("set_limits");
        size::check(&self.shared, &limits)?;
        self.change(id, move |runtime, entry, place| async move {
            let shared = &runtime.shared;
            match place {
                Place::Live(sandbox) => sandbox.set_limits(shared, limits).await,
                Place::Stopped(mut record, execs) => {
                    let name = record.info.id.clone();
                    if record.info.limits.disk != limits.disk {
                        // Its files are there although it does not run.
                        let shared = Arc::clone(shared);
                        let limit = move || shared.instance.disk.limit(&name, limits.disk);
                        blocking(limit).await?;
                    }
                    record.set_limits(limits);
                    runtime.rewrite(&entry, record, execs)
                }
                Place::Apart(apart) => Err(apart.refusal()),
                Place::Gone => Ok(()),
            }
        })
        .await
    }

    /// Has a sandbox without processes be something else.
    fn rewrite(&self, entry: &Entry, record: Box<Record>, execs: Arc<Table>) -> Result<(), Error> {
        let sandboxes = self.shared.instance.sandboxes();
        record.write(&sandboxes.join(record.info.id.as_str()))?;
        entry.set(Place::Stopped(record, execs));
        Ok(())
    }

    /// Ends a sandbox's processes; its files stay.
    pub async fn stop(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("stop");
        self.change(id, |runtime, entry, place| async move {
            state_of(&place).next(Transition::Stop)?;
            let shared = &runtime.shared;
            if let Place::Apart(apart) = &place {
                apart.end(shared).await?;
                entry.set(apart.stopped(shared, None)?);
                runtime.dismiss_keepers(None).await;
            }
            let Place::Live(sandbox) = place else {
                return Ok(());
            };
            sandbox.state.send_replace(SandboxState::Stopping);
            sandbox.stop(shared).await?;
            stopped(shared, &entry, &sandbox, None).await
        })
        .await
    }

    /// Makes a stopped sandbox run again, with its files.
    pub async fn start(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _busy = self.shared.busy.begin();
        let _time = self.time("start");
        self.change(id, |runtime, entry, place| async move {
            state_of(&place).next(Transition::Start)?;
            let Place::Stopped(record, execs) = place else {
                return Ok(());
            };
            let sandbox = Sandbox::start(&runtime.shared, *record).await?;
            entry.set(Place::Live(Arc::clone(&sandbox)));
            execs.close();
            runtime.watch_over(&entry, &sandbox);
            Ok(())
        })
        .await
    }

    /// Deletes a sandbox: its processes, its limits and its files are gone when this returns (the
    /// disk space a little later).
    pub async fn delete(&self, id: &SandboxId) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None, None).await
    }

    /// The same, for a caller who keeps what was run in it.
    pub async fn delete_after(&self, id: &SandboxId, farewell: Farewell) -> Result<(), Error> {
        let _time = self.time("delete");
        self.end(id, None, Some(farewell)).await
    }

    /// Ends a sandbox's processes and moves its files to a directory of the caller's choice on the
    /// same file system.
    pub async fn keep(&self, id: &SandboxId, directory: PathBuf) -> Result<(), Error> {
        if !self.shared.instance.disk.can_keep() {
            return Err(cannot_keep());
        }
        self.end(id, Some(directory), None).await
    }

    /// Ends the processes of a sandbox that nobody knows of, and puts its files where they are found and not
    /// in the way.
    pub async fn set_aside(&self, id: &SandboxId) -> Result<(), Error> {
        let instance = &self.shared.instance;
        crate::orphans::mark(&instance.sandboxes().join(id.as_str()));
        let aside = crate::orphans::place(&instance.directory).join(id.as_str());
        // What is in an image stays where it is.
        self.end(id, Some(aside), None).await
    }

    async fn end(
        &self,
        id: &SandboxId,
        keep: Option<PathBuf>,
        farewell: Option<Farewell>,
    ) -> Result<(), Error> {
        self.shared.busy.touch();
        let name = id.clone();
        let ended = self.change(id, |runtime, entry, place| async move {
            let shared = &runtime.shared;
            let from = match &place {
                Place::Live(sandbox) => {
                    sandbox.state.send_replace(SandboxState::Stopping);
                    sandbox.stop(shared).await?;
                    if keep.is_some() {
                        sandbox.write_down(|info| info.state = SandboxState::Stopped)?;
                    }
                    sandbox.directory().to_owned()
                }
                Place::Apart(apart) => {
                    apart.end(shared).await?;
                    apart.stopped(shared, None)?;
                    runtime.dismiss_keepers(Some(&name)).await;
                    shared.instance.sandboxes().join(name.as_str())
                }
                _ => shared.instance.sandboxes().join(name.as_str()),
            };
            if let Some(farewell) = farewell {
                runtime.part(&name, &entry, &place, farewell).await?;
            }
            let kept = keep.is_some();
            let trash = shared.instance.directory.join("trash");
            let target = keep.unwrap_or_else(|| trash.join(name.as_str()));
            let to = target.clone();
            blocking(move || {
                std::fs::rename(&from, &to).map_err(|error| host_file("move to", &to, &error))
            })
            .await?;
            if let Ok((execs, _)) = entry.execs(&name) {
                execs.close();
            }
            entry.set(Place::Gone);
            runtime.sandboxes().remove(&name);
            if !kept {
                shared.trash.throw(Item {
                    id: name,
                    directory: target,
                    _work: shared.aftermath.begin(),
                });
            }
            Ok(())
        });
        ended.await.map(|_| ())
    }

    /// What a sandbox uses now. Its PID 1 counts as a process, what only waits for a command does not.
    pub fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let place = self.entry(id)?.place();
        let sandbox = match &place {
            Place::Live(sandbox) if sandbox.died.borrow().is_none() => sandbox,
            Place::Apart(apart) => return Err(apart.refusal()),
            _ => return Err(SandboxState::Stopped.refusal("measured")),
        };
        let usage = sandbox.group.usage();
        Ok(Usage {
            cpu: usage.cpu,
            memory: Bytes(usage.memory),
            pids: usage.pids,
        })
    }

    /// The variables that every command of a running sandbox has: the template's and its own.
    pub fn variables(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, Error> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = self.find(id)?.environment();
        Ok(all
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect())
    }

    /// What a sandbox's files take now, running or not.
    pub async fn disk_usage(&self, id: &SandboxId) -> Result<DiskUsage, Error> {
        let limit = self.get(id)?.limits.disk;
        let (shared, id) = (Arc::clone(&self.shared), id.clone());
        blocking(move || shared.instance.disk.usage(&id, limit)).await
    }

    /// The commands of a sandbox, newest first.
    pub fn execs(&self, id: &SandboxId) -> Result<Vec<ExecInfo>, Error> {
        Ok(self.execs_of(id)?.list())
    }

    pub(crate) fn execs_of(&self, id: &SandboxId) -> Result<Arc<Table>, Error> {
        let (table, _) = self.entry(id)?.execs(id)?;
        Ok(table)
    }

    /// A command of a sandbox, running or ended, by its id.
    pub fn find_exec(&self, id: &SandboxId, exec: &ExecId) -> Result<Control, Error> {
        self.exec_by(id, |table| table.find(exec))
    }

    /// A command by its pid inside.
    pub fn find_exec_by_pid(&self, id: &SandboxId, pid: i32) -> Result<Control, Error> {
        self.exec_by(id, |table| table.find_pid(pid))
    }

    /// The newest command with a tag.
    pub fn find_exec_by_tag(&self, id: &SandboxId, tag: &str) -> Result<Control, Error> {
        self.exec_by(id, |table| table.find_tag(tag))
    }

    fn exec_by(
        &self,
        id: &SandboxId,
        find: impl FnOnce(&Table) -> Result<Arc<exec::Shared>, Error>,
    ) -> Result<Control, Error> {
        let (table, sandbox) = self.entry(id)?.execs(id)?;
        Ok(Control::new(find(&table)?, sandbox))
    }

    /// The pid of a sandbox's PID 1, as the host sees it.
    pub fn host_pid(&self, id: &SandboxId) -> Result<i32, Error> {
        match self.entry(id)?.place() {
            Place::Live(sandbox) => Ok(sandbox.pid),
            Place::Apart(apart) => Err(apart.refusal()),
            place => Err(state_of(&place).refusal("found among processes")),
        }
    }

    /// Starts a command.
    pub async fn exec(&self, id: &SandboxId, spec: ExecSpec) -> Result<Exec, Error> {
        self.shared.busy.touch();
        let _time = self.time("exec");
        exec::start::start(self.find(id)?, spec).await
    }

    /// Ends the runtime. A lasting one leaves its sandboxes running; a small one deletes them and takes
    /// everything of its instance away.
    pub async fn close(self) -> Result<(), Error> {
        let lasting = self.shared.instance.lasting.is_some();
        self.finish(lasting).await
    }

    /// Ends the runtime for good: deletes its sandboxes and takes everything of its instance away, the data
    /// directory of a lasting one included.
    pub async fn take_away(self) -> Result<(), Error> {
        self.finish(false).await
    }

    async fn finish(self, lasting: bool) -> Result<(), Error> {
        self.shared.busy.quiet().await;
        let keepers = self.keepers();
        self.shared.pool.shut();
        self.shared.nursery.shut();
        // What is just being made is taken back by who makes it.
        let tending = std::mem::take(&mut *lock(&self.shared.tending));
        for task in tending {
            let _ = task.await;
        }
        Pool::close(&self.shared).await;
        Nursery::close(&self.shared).await;
        if !lasting {
            let ids: Vec<SandboxId> = self.sandboxes().keys().cloned().collect();
            for id in ids {
                match self.delete(&id).await {
                    Err(error) if error.code != Code::SandboxNotFound => return Err(error),
                    _ => {}
                }
            }
        }
        if lasting {
            for entry in self.sandboxes().values() {
                if let Place::Live(sandbox) = entry.place() {
                    sandbox.abandon();
                }
            }
        }
        if let Some(journals) = &self.shared.journals {
            journals.close().await;
        }
        self.shared.trash.hurry();
        self.shared.aftermath.quiet().await;
        for keeper in keepers {
            keeper.stop(lasting).await;
        }
        if lasting && let Some(own) = &self.shared.instance.lasting {
            self.shared.network.leave().await?;
            // The next server may come, whoever still holds something of ours.
            return own
                .unlock()
                .map_err(|error| internal("unlock the data directory", &error));
        }
        let shared = self.shared;
        shared.network.dismantle().await?;
        blocking(move || shared.instance.dismantle()).await
    }
}

impl LocalRuntime {
    /// Our own keeper, and those of other versions that still have sandboxes.
    fn keepers(&self) -> Vec<Arc<Keeper>> {
        let mut all = vec![Arc::clone(&self.shared.keeper)];
        for entry in self.sandboxes().values() {
            if let Place::Live(sandbox) = entry.place() {
                let keeper = sandbox.keeper();
                if !all.iter().any(|known| Arc::ptr_eq(known, &keeper)) {
                    all.push(keeper);
                }
            }
        }
        all
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

type Opened = (
    Facts,
    template::Store,
    Instance,
    network::Network,
    Arc<Keeper>,
    Option<Amend>,
    Option<Inventory>,
);

fn open_templates(path: PathBuf) -> Result<template::Store, Error> {
    template::Store::open(path).map_err(|error| internal("open the templates", &error))
}

/// What a keeper holds for as long as it lives, for it and whoever takes it over.
fn holdings<'a>(instance: &'a Instance, network: &'a network::Network) -> [BorrowedFd<'a>; 3] {
    [
        instance.lock.as_fd(),
        instance.ranges.as_fd(),
        network.claims(),
    ]
}

/// Moves the keeper to its control group, beside the first create: it may take as long as all the
/// rest. A keeper that stays where it was started works as well.
fn settle(keeper: &Keeper, instance: &Instance) {
    if let Some(pid) = keeper.pid() {
        let cgroups = instance.cgroups.clone();
        keeper.settle(move || drop(cgroups.adopt(pid)));
    }
}

fn state_of(place: &Place) -> SandboxState {
    match place {
        Place::Live(sandbox) => *sandbox.state.borrow(),
        Place::Stopped(record, _) => record.info.state,
        Place::Apart(apart) => apart.record.info.state,
        Place::Gone => SandboxState::Failed,
    }
}

/// Why a sandbox ended by itself.
fn reason(sandbox: &Sandbox, raw: i32) -> Reason {
    if sandbox.keeper_is_lost() {
        Reason::KeeperLost
    } else if raw & 0x7f == 9 && sandbox.group.oom_kills() > 0 {
        Reason::Oom
    } else {
        Reason::Exited
    }
}

/// Writes down that only its files are left, once its processes are gone.
async fn stopped(
    shared: &Arc<Shared>,
    entry: &Entry,
    sandbox: &Arc<Sandbox>,
    reason: Option<Reason>,
) -> Result<(), Error> {
    sandbox.clear(shared).await?;
    let record = {
        let sandbox = Arc::clone(sandbox);
        blocking(move || {
            sandbox.write_down(|info| {
                info.state = SandboxState::Stopped;
                info.reason = reason;
            })
        })
        .await?
    };
    entry.set(Place::Stopped(Box::new(record), Arc::clone(&sandbox.execs)));
    Ok(())
}

/// Refuses a host on which no sandbox can be made, and says what would help.
pub fn check_host() -> Result<(), Error> {
    atoll_jail::plan::require(&Facts::read()).map_err(|error| crate::error::jail(&error))
}

fn cannot_keep() -> Error {
    Error::invalid(
        "keep",
        "what a sandbox wrote to an image cannot be kept beside it",
        "download what you need, or use storage = plain",
    )
}

pub(crate) fn unknown(id: &SandboxId) -> Error {
    Error::new(Code::SandboxNotFound, format!("there is no sandbox {id}"))
        .detail("sandboxID", id.as_str())
}
