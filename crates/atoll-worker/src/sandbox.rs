//! One sandbox that has processes: what is known of it, how it is paused and how it ends. How it is made
//! is in `make`, how it is taken over from another server in `adopt`.

mod adopt;
mod connection;
mod embryo;
mod held;
mod leaves;
mod make;
mod process;
mod record;
pub(crate) mod size;
mod slot;
mod warm;
mod wish;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_jail::cgroup::Group;
use atoll_jail::plan::IdRange;
use atoll_jail::wire::ToInit;
use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Transition};
use tokio::sync::{Semaphore, watch};

use crate::authorities::Mounted;
use crate::error::{internal, jail};
use crate::exec::table::ExecTable;
use crate::freezer::Step;
use crate::init::Init;
use crate::keeper::{Keeper, Parent};
use crate::meters::Meters;
use crate::network::Link;
use crate::runtime::Shared;
use crate::template::Template;
pub(crate) use connection::Linked;
pub(crate) use embryo::Embryo;
use held::Over;
use leaves::Leaves;
pub(crate) use record::{Record, Unread, boot};

/// A sandbox with processes.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Running or paused.
    pub(crate) state: watch::Sender<SandboxState>,
    pub(crate) init: Init,
    pub(crate) group: Group,
    /// Set once PID 1 and everything it started are gone.
    pub(crate) died: watch::Receiver<Option<i32>>,
    /// PID 1 as the host sees it.
    pub(crate) pid: i32,
    /// Its commands.
    pub(crate) execs: Arc<ExecTable>,
    /// Places for watches of its files.
    pub(crate) watches: Arc<Semaphore>,
    /// Variables of every command: the template's, then the sandbox's own.
    environment: Mutex<Arc<Variables>>,
    pub(crate) ids: IdRange,
    pub(crate) record: Mutex<Record>,
    /// Its link with the world, if it has one.
    link: Mutex<Option<Arc<Link>>>,
    /// The number of its network namespace.
    namespace: Option<u64>,
    /// What the keeper calls it.
    token: u32,
    keeper: Arc<Keeper>,
    pub(crate) meters: Meters,
    /// How long it may be silent when it is asked for something.
    pub(crate) patience: Duration,
    /// How many of the kernel's kills for want of memory are told of some command.
    oom_kills: AtomicU64,
    /// Directories of ended execs.
    leaves: Mutex<Leaves>,
    /// We have nothing to do with it any more: somebody else will.
    abandoned: watch::Sender<bool>,
    /// Execs that PID 1 and the keeper need not remember any more; told with the next word to them.
    over: Mutex<Over>,
    directory: PathBuf,
    /// Its devpts.
    terminals: Option<OwnedFd>,
    /// Keeps the template's layer from being removed.
    template: Template,
}

/// Names and values.
pub(crate) type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// What the keeper calls a sandbox's devpts, among its execs.
const TERMINALS: u32 = 0;

/// How long is waited before another try where there are no descriptors.
const AGAIN: Duration = Duration::from_millis(100);

/// What differs between one that was made and one that was taken over.
struct Parts {
    record: Record,
    environment: Arc<Variables>,
    init: Init,
    group: Group,
    parent: Parent,
    keeper: Arc<Keeper>,
    execs: ExecTable,
    link: Option<Arc<Link>>,
    directory: PathBuf,
    terminals: Option<OwnedFd>,
    template: Template,
}

impl Sandbox {
    fn new(shared: &Shared, parts: Parts) -> Self {
        Self {
            state: watch::Sender::new(parts.record.info.state),
            init: parts.init,
            group: parts.group,
            died: parts.parent.died,
            pid: parts.parent.pid,
            execs: Arc::new(parts.execs),
            watches: crate::watch::places(),
            environment: Mutex::new(parts.environment),
            ids: parts.record.ids(),
            record: Mutex::new(parts.record),
            link: Mutex::new(parts.link),
            namespace: connection::number(parts.parent.pid),
            token: parts.parent.token,
            keeper: parts.keeper,
            meters: shared.meters.clone(),
            patience: shared.patience,
            oom_kills: AtomicU64::default(),
            leaves: Mutex::default(),
            abandoned: watch::Sender::new(false),
            over: Mutex::default(),
            directory: parts.directory,
            terminals: parts.terminals,
            template: parts.template,
        }
    }

    /// What it is now.
    pub(crate) fn info(&self) -> SandboxInfo {
        let state = *self.state.borrow();
        SandboxInfo {
            state,
            ..lock(&self.record).info.clone()
        }
    }

    /// Variables of every command.
    pub(crate) fn environment(&self) -> Arc<Variables> {
        Arc::clone(&lock(&self.environment))
    }

    /// Writes down what it is now.
    pub(crate) fn write_down(
        &self,
        change: impl FnOnce(&mut SandboxInfo),
    ) -> Result<Record, Error> {
        let mut record = lock(&self.record);
        change(&mut record.info);
        record.write(&self.directory)?;
        Ok(record.clone())
    }

    /// Lets all its processes stand still, or go on. Those that take longer than a moment are waited for later.
    pub(crate) fn freeze(self: &Arc<Self>, transition: Transition) -> Result<Step<()>, Error> {
        let now = *self.state.borrow();
        let next = now.next(transition)?;
        if next == now {
            return Ok(Step::Done(()));
        }
        let done = if next == SandboxState::Paused {
            self.group.begin_to_freeze()
        } else {
            self.group.thaw().map(|()| true)
        };
        if done.map_err(|error| jail(&error))? {
            return self.became(next).map(Step::Done);
        }
        let sandbox = Arc::clone(self);
        Ok(Step::Later(Box::new(move || {
            let halted = sandbox.group.come_to_a_halt();
            halted.map_err(|error| jail(&error))?;
            sandbox.became(next)
        })))
    }

    fn became(&self, state: SandboxState) -> Result<(), Error> {
        self.state.send_replace(state);
        self.write_down(|info| info.state = state).map(drop)
    }

    /// Ends all its processes and takes its control groups away; its files stay.
    pub(crate) async fn stop(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let kill = self.group.clone();
        blocking(move || kill.kill().map_err(|error| jail(&error))).await?;
        self.clear(shared).await
    }

    /// Takes one away that nobody was told of, with its files.
    pub(crate) async fn undo(self: &Arc<Self>, shared: &Arc<Shared>) {
        let (sandbox, all) = (Arc::clone(self), Arc::clone(shared));
        let undone = async move {
            if insist(&all, || sandbox.stop(&all)).await.is_err() {
                return;
            }
            let id = lock(&sandbox.record).info.id.clone();
            remove_files(&all, &id, &sandbox.directory).await;
        };
        give_back(shared, undone).await;
    }

    /// Takes away what is left once its processes are gone, which is waited for.
    pub(crate) async fn clear(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let mut died = self.died.clone();
        // The keeper tells when the last of its processes is gone.
        let _ = died.wait_for(Option::is_some).await;
        self.unlink();
        let group = self.group.clone();
        blocking(move || group.remove().map_err(|error| jail(&error))).await?;
        shared.instance.ranges.release(self.ids);
        Ok(())
    }

    /// Says something to its PID 1, which takes it in time or not at all: one that is paused does not, once
    /// much has been said to it.
    pub(crate) async fn say(
        &self,
        message: &ToInit,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let said = tokio::time::timeout(self.patience, self.init.send(message, descriptors));
        said.await.unwrap_or_else(|_| Err(self.silent()))
    }

    /// Comes when it is paused: who waits for something inside is told so at once, and not when it goes on.
    pub(crate) fn paused(&self) -> impl Future<Output = Error> + Send + use<> {
        let mut state = self.state.subscribe();
        async move {
            // It ends with those who wait for it.
            let _ = state.wait_for(|state| *state == SandboxState::Paused).await;
            SandboxState::Paused.refusal("used")
        }
    }

    /// What a caller is told when nothing came back in time.
    pub(crate) fn silent(&self) -> Error {
        match *self.state.borrow() {
            SandboxState::Running => Error::new(
                Code::Timeout,
                format!("the sandbox did not answer within {:?}", self.patience),
            )
            .remedy(
                "something inside stops its processes; end that, or stop and start the sandbox",
            ),
            state => state.refusal("used"),
        }
    }

    /// Lets it go on without us.
    pub(crate) fn abandon(&self) {
        self.abandoned.send_replace(true);
        self.init.fall_silent();
    }

    /// Works for it in the background, as long as it is ours.
    pub(crate) fn spawn(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let mut abandoned = self.abandoned.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = abandoned.wait_for(|abandoned| *abandoned) => {}
            }
        })
    }

    /// Whose child its PID 1 is.
    pub(crate) fn keeper(&self) -> Arc<Keeper> {
        Arc::clone(&self.keeper)
    }

    /// The keeper has ended.
    pub(crate) fn keeper_is_lost(&self) -> bool {
        self.keeper.is_lost()
    }

    /// Opens a terminal: our end, and the program's.
    pub(crate) fn open_terminal(&self) -> Result<(OwnedFd, OwnedFd), Error> {
        let Some(terminals) = &self.terminals else {
            return Err(Error::new(Code::Internal, "the sandbox has no terminals"));
        };
        match atoll_jail::terminal::open(terminals.as_fd(), self.ids) {
            Err(atoll_jail::Error::Step { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                let message = "the sandbox has no more terminals";
                Err(Error::new(Code::QuotaExceeded, message).remedy("end programs that hold some"))
            }
            opened => opened.map_err(|error| jail(&error)),
        }
    }
}

/// Refuses what no sandbox here can be, without looking at the disk.
pub(crate) fn check(shared: &Shared, spec: &SandboxSpec) -> Result<(), Error> {
    spec.check_network()?;
    size::check(shared, &spec.limits)?;
    shared.admission.check(&shared.instance.directory)?;
    check_variables(spec)
}

fn check_variables(spec: &SandboxSpec) -> Result<(), Error> {
    spec.environment.iter().try_for_each(|(name, value)| {
        crate::exec::start::check_variable(name.as_bytes(), value.as_bytes())
    })
}

/// A sandbox's variables, checked. Of two with the same name the later one holds.
fn variables(
    template: &Template,
    authorities: Option<&Mounted>,
    spec: &SandboxSpec,
) -> Result<Arc<Variables>, Error> {
    check_variables(spec)?;
    let authorities = authorities.into_iter().flat_map(Mounted::variables);
    let authorities = authorities.map(|(name, value)| (name.into(), value.into()));
    let all = template.meta.env.iter().chain(&spec.environment);
    let bytes = all.map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    Ok(Arc::new(authorities.chain(bytes).collect()))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what may block where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(internal("a worker thread failed", &error)),
    }
}

/// Takes something back that nobody has. Who gave it up does not wait for descriptors, where there are none left.
async fn give_back(shared: &Shared, work: impl Future<Output = ()> + Send + 'static) {
    let (aftermath, lack) = (shared.aftermath.begin(), shared.lack.notified());
    let work = tokio::spawn(async move {
        work.await;
        drop(aftermath);
    });
    tokio::select! {
        _ = work => {}
        () = lack => {}
    }
}

/// Does what nobody asks for a second time: where there are no descriptors for it, as soon as there are.
async fn insist<W: Future<Output = Result<(), Error>>>(
    shared: &Shared,
    mut work: impl FnMut() -> W,
) -> Result<(), Error> {
    loop {
        match work().await {
            Err(error) if error.code == Code::NoCapacity => {
                shared.lack.notify_waiters();
                tokio::time::sleep(AGAIN).await;
            }
            done => return done,
        }
    }
}

/// Removes what a sandbox that nobody has was to keep on disk.
async fn remove_files(shared: &Arc<Shared>, id: &SandboxId, directory: &Path) {
    let removed = || {
        let (shared, id, directory) = (Arc::clone(shared), id.clone(), directory.to_owned());
        blocking(move || {
            shared.instance.disk.remove(&id)?;
            crate::instance::remove_directory(&directory)
        })
    };
    let _ = insist(shared, removed).await;
}
