//! One sandbox that has processes: what is known of it, how it is paused and how it ends. How it is made
//! is in `slot`, how it is taken over from another server in `adopt`.

mod adopt;
mod connection;
mod record;
pub(crate) mod size;
mod slot;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_jail::cgroup::{End, Group, Leaf};
use atoll_jail::plan::IdRange;
use atoll_jail::wire::ToInit;
use atoll_model::{
    Code, Error, Network, SandboxInfo, SandboxSpec, SandboxState, Timings, Transition,
};
use tokio::sync::{Semaphore, watch};

use crate::error::{internal, jail};
use crate::exec::table::Table;
use crate::freezer::Step;
use crate::init::Init;
use crate::keeper::Keeper;
use crate::meters::Meters;
use crate::network::Link;
use crate::runtime::Shared;
use crate::template::Template;
pub(crate) use connection::Linked;
pub(crate) use record::{Record, Unread, boot};
pub(crate) use slot::Embryo;

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
    pub(crate) execs: Arc<Table>,
    /// Places for watches of its files.
    pub(crate) watches: Arc<Semaphore>,
    /// Variables of every command: the template's, then the sandbox's own.
    environment: Mutex<Arc<Variables>>,
    pub(crate) ids: IdRange,
    record: Mutex<Record>,
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

#[derive(Debug, Default)]
struct Over {
    forgotten: Vec<u32>,
    released: Vec<u32>,
}

impl Sandbox {
    /// Where its files are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it is now.
    pub(crate) fn info(&self) -> SandboxInfo {
        let state = *self.state.borrow();
        SandboxInfo {
            state,
            ..lock(&self.record).info.clone()
        }
    }

    /// It is alive, and made from this template as that is now.
    pub(crate) fn is_made_from(&self, template: &str) -> bool {
        self.died.borrow().is_none()
            && lock(&self.record).spec.template == template
            && !self.template.is_replaced()
    }

    /// It is as it was made, and so could be anybody's.
    fn suits(&self, spec: &SandboxSpec) -> bool {
        spec.limits == lock(&self.record).info.limits && spec.network == Network::None
    }

    /// Gets the size and the network that somebody asks for: until now it was only warm. What is asked for is
    /// checked; if it cannot be given after all, nothing is left of it.
    pub(crate) async fn fit(
        self: Arc<Self>,
        shared: &Arc<Shared>,
        spec: &SandboxSpec,
    ) -> Result<Arc<Self>, Error> {
        let fitted = async {
            *lock(&self.environment) = variables(&self.template, spec)?;
            if self.suits(spec) {
                return Ok(());
            }
            // A server that is killed from here on leaves one that is neither warm nor somebody's: without
            // a record the next one ends it.
            Record::remove(&self.directory)?;
            let usual = lock(&self.record).info.limits;
            self.resize_in_memory(usual.memory, spec.limits.memory)?;
            let resized = self.resize(shared, usual, spec.limits);
            let (resized, linked) = tokio::join!(resized, self.link_with(shared, spec));
            resized.and(linked)
        };
        match fitted.await {
            Ok(()) => Ok(self),
            Err(error) => {
                self.undo(shared).await;
                Err(error)
            }
        }
    }

    /// Nobody wants it after all.
    pub(crate) async fn put_back(self: Arc<Self>, shared: &Arc<Shared>, spec: &SandboxSpec) {
        let late = if self.suits(spec) {
            shared.pool.add(self).err()
        } else {
            Some(self)
        };
        if let Some(late) = late {
            late.undo(shared).await;
        }
    }

    /// Becomes somebody's.
    pub(crate) async fn belong(
        self: Arc<Self>,
        shared: &Arc<Shared>,
        spec: SandboxSpec,
        begin: Instant,
    ) -> Result<Arc<Self>, Error> {
        let written = {
            let mut record = lock(&self.record);
            record.pooled = false;
            record.info.limits = spec.limits;
            record.info.network = spec.network;
            record.spec = spec;
            record.info.created_at = crate::exec::now();
            record.info.timings = Timings {
                slot: begin.elapsed(),
                ..Timings::default()
            };
            record.write(&self.directory)
        };
        let told = match written {
            Ok(()) => self.tell_names().await,
            Err(error) => Err(error),
        };
        match told {
            Ok(()) => Ok(self),
            Err(error) => {
                self.undo(shared).await;
                Err(error)
            }
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
    pub(crate) async fn undo(&self, shared: &Arc<Shared>) {
        if self.stop(shared).await.is_err() {
            return;
        }
        let id = lock(&self.record).info.id.clone();
        let (directory, shared) = (self.directory.clone(), Arc::clone(shared));
        let _ = blocking(move || {
            shared.instance.disk.remove(&id)?;
            crate::instance::remove_directory(&directory)
        })
        .await;
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

    /// Has the keeper hold descriptors of an exec.
    pub(crate) async fn hold(
        &self,
        request: u32,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let released = std::mem::take(&mut lock(&self.over).released);
        let keeper = &self.keeper;
        keeper
            .hold(self.token, request, released, descriptors)
            .await
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

    /// The end of an exec is written down.
    pub(crate) fn forget(&self, request: u32) {
        lock(&self.over).forgotten.push(request);
    }

    /// Execs that PID 1 may forget.
    pub(crate) fn forgotten(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.over).forgotten)
    }

    /// The streams of an exec are at their end.
    pub(crate) fn release(&self, request: u32) {
        lock(&self.over).released.push(request);
    }

    /// Has the keeper give something up at once.
    pub(crate) async fn release_now(&self, request: u32) {
        self.release(request);
        // A keeper that is gone holds nothing.
        let _ = self.hold(request, &[]).await;
    }

    /// The kernel killed for want of memory since it had done so often, and no command that ended by that was told yet. It
    /// counts for the sandbox, not for each command: one kill is told of one.
    pub(crate) fn claim_oom_kill(&self, before: u64) -> bool {
        let kills = self.group.oom_kills();
        let claim = |told: u64| {
            let known = told.max(before);
            (kills > known).then_some(known + 1)
        };
        let claimed = self
            .oom_kills
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        claimed.is_ok()
    }

    /// A directory of cgroup2 for an exec: one that an ended exec gave up, or a new one.
    pub(crate) fn leaf(&self, request: u32) -> Result<Leaf, Error> {
        if let Some(leaf) = lock(&self.leaves).spare.pop() {
            return Ok(leaf);
        }
        let made = self.group.leaf(&format!("x{request}"));
        made.map_err(|error| jail(&error))
    }

    /// Takes the directory of an ended exec back. Children that live on keep theirs until they are
    /// found gone when a later exec ends.
    pub(crate) fn leave(&self, leaf: Arc<Leaf>) {
        let mut leaves = lock(&self.leaves);
        leaves.lingering.push(leaf);
        let Leaves { lingering, spare } = &mut *leaves;
        lingering.retain(|leaf| match leaf.end() {
            End::Lingers => true,
            End::Gone => false,
            End::Spare(leaf) => {
                spare.push(leaf);
                false
            }
        });
    }
}

/// Directories of execs, all removed with the sandbox.
#[derive(Debug, Default)]
struct Leaves {
    /// Of ended execs whose children live on.
    lingering: Vec<Arc<Leaf>>,
    /// Empty ones.
    spare: Vec<Leaf>,
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

/// A sandbox's variables, checked.
fn variables(template: &Template, spec: &SandboxSpec) -> Result<Arc<Variables>, Error> {
    check_variables(spec)?;
    let all = template.meta.env.iter().chain(&spec.environment);
    let bytes = all.map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    Ok(Arc::new(bytes.collect()))
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
