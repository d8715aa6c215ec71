//! A sandbox with processes: its state, pausing, ending, and messages to its PID 1.
//!
//! Creation is in `create`, adoption from an earlier server in `adopt`.

mod adopt;
mod create;
mod embryo;
mod exec_resources;
mod network;
mod planned;
mod process;
mod record;
pub(crate) mod resize;
mod slot;
mod warm;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_jail::cgroup::SandboxCgroup;
use atoll_jail::plan::IdRange;
use atoll_jail::wire::ToInit;
use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Transition};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, Semaphore, watch};

use crate::authorities::LayerRecord;
use crate::error::{internal, jail};
use crate::exec::table::ExecTable;
use crate::freezer::FreezeStep;
use crate::init_channel::InitChannel;
use crate::keeper::{InitProcess, Keeper};
use crate::metrics::Metrics;
use crate::network::Link;
use crate::runtime::RuntimeState;
use crate::runtime::activity::Activity;
use crate::sync::lock;
use crate::template::Template;
pub(crate) use embryo::Embryo;
use exec_resources::{Leaves, PendingReleases};
pub(crate) use network::LinkRecord;
pub(crate) use record::{Record, RecordError, host_boot_id};

/// A sandbox with processes.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Running, paused or stopping.
    pub(crate) state: watch::Sender<SandboxState>,
    pub(crate) init: InitChannel,
    pub(crate) group: SandboxCgroup,
    /// Wait status of PID 1, set once PID 1 and all its descendants are gone.
    pub(crate) exit_status: watch::Receiver<Option<i32>>,
    /// Host pid of PID 1.
    pub(crate) pid: i32,
    /// Its execs.
    pub(crate) execs: Arc<ExecTable>,
    /// Read-locked while a command is being started, and write-locked during a pause.
    starts: Arc<RwLock<()>>,
    /// Permits for watches of its files.
    pub(crate) watches: Arc<Semaphore>,
    /// Variables of every command: the template's, then the sandbox's own.
    environment: Mutex<Arc<Variables>>,
    pub(crate) ids: IdRange,
    pub(crate) record: Mutex<Record>,
    /// Its network link; `None` if its network is `none`.
    link: Mutex<Option<Arc<Link>>>,
    /// Inode of its network namespace.
    netns_inode: Option<u64>,
    /// The keeper's id for it.
    token: u32,
    keeper: Arc<Keeper>,
    pub(crate) metrics: Metrics,
    /// How long it may take to respond to a message.
    pub(crate) response_timeout: Duration,
    /// OOM kills of the cgroup that were attributed to an exec.
    oom_kills: AtomicU64,
    /// Cgroups of ended execs.
    leaves: Mutex<Leaves>,
    /// True once this server no longer manages it; the next server adopts it.
    detached: watch::Sender<bool>,
    /// Exec ends that PID 1 and the keeper can forget; sent with the next message.
    pending_releases: Mutex<PendingReleases>,
    directory: PathBuf,
    /// Descriptor of its devpts mount.
    terminals: Option<OwnedFd>,
    /// Leases the template's layer.
    template: Template,
}

/// Names and values.
pub(crate) type Variables = Vec<(Vec<u8>, Vec<u8>)>;

/// Request id under which the keeper holds a sandbox's devpts. No exec has it.
const DEVPTS_REQUEST_ID: u32 = 0;

/// Upper bound of the time that a pause waits for starts in progress.
const START_WAIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay between two attempts while the process is out of file descriptors.
const FD_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What differs between a created and an adopted sandbox.
struct Parts {
    record: Record,
    environment: Arc<Variables>,
    init: InitChannel,
    group: SandboxCgroup,
    process: InitProcess,
    keeper: Arc<Keeper>,
    execs: ExecTable,
    link: Option<Arc<Link>>,
    directory: PathBuf,
    terminals: Option<OwnedFd>,
    template: Template,
}

impl Sandbox {
    fn new(shared: &RuntimeState, parts: Parts) -> Self {
        Self {
            state: watch::Sender::new(parts.record.info.state),
            init: parts.init,
            group: parts.group,
            exit_status: parts.process.exit_status,
            pid: parts.process.pid,
            execs: Arc::new(parts.execs),
            starts: Arc::default(),
            watches: crate::watch::watch_permits(),
            environment: Mutex::new(parts.environment),
            ids: parts.record.ids(),
            record: Mutex::new(parts.record),
            link: Mutex::new(parts.link),
            netns_inode: network::netns_inode(parts.process.pid),
            token: parts.process.token,
            keeper: parts.keeper,
            metrics: shared.metrics.clone(),
            response_timeout: shared.response_timeout,
            oom_kills: AtomicU64::default(),
            leaves: Mutex::default(),
            detached: watch::Sender::new(false),
            pending_releases: Mutex::default(),
            directory: parts.directory,
            terminals: parts.terminals,
            template: parts.template,
        }
    }

    /// Current state and limits.
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

    /// Changes the record and writes it.
    pub(crate) fn update_record(&self, change: impl FnOnce(&mut Record)) -> Result<Record, Error> {
        let mut record = lock(&self.record);
        change(&mut record);
        record.write(&self.directory)?;
        Ok(record.clone())
    }

    /// Starts to freeze or thaw all its processes. If freezing takes more than a
    /// moment, the rest is returned as a continuation.
    pub(crate) fn freeze(
        self: &Arc<Self>,
        transition: Transition,
        activity: &Arc<Activity>,
    ) -> Result<FreezeStep<()>, Error> {
        let now = *self.state.borrow();
        let next = now.next(transition)?;
        if next == now {
            return Ok(FreezeStep::Done(()));
        }
        let done = if next == SandboxState::Paused {
            self.group.request_freeze()
        } else {
            self.group.thaw().map(|()| true)
        };
        if done.map_err(|error| jail(&error))? {
            return self.set_state(next, activity).map(FreezeStep::Done);
        }
        let (sandbox, activity) = (Arc::clone(self), Arc::clone(activity));
        Ok(FreezeStep::Continue(Box::new(move || {
            let frozen = sandbox.group.wait_frozen();
            frozen.map_err(|error| jail(&error))?;
            sandbox.set_state(next, &activity)
        })))
    }

    /// Sets the state after a pause or a resume. The timeout does not pass while the sandbox is paused.
    fn set_state(&self, state: SandboxState, activity: &Activity) -> Result<(), Error> {
        let deadlines = activity.deadlines().map(|deadlines| match state {
            SandboxState::Paused => deadlines.paused(),
            _ => deadlines.resumed(),
        });
        activity.set_deadlines(deadlines);
        self.state.send_replace(state);
        self.update_record(|record| {
            record.info.state = state;
            record.deadlines = deadlines;
        })
        .map(drop)
    }

    /// Kills all its processes and removes its cgroups; its files stay.
    pub(crate) async fn stop(&self, shared: &Arc<RuntimeState>) -> Result<(), Error> {
        let kill = self.group.clone();
        run_blocking(move || kill.kill().map_err(|error| jail(&error))).await?;
        self.reap(shared).await
    }

    /// Ends a sandbox that was not acknowledged to a caller, and removes its files.
    pub(crate) async fn discard(self: &Arc<Self>, shared: &Arc<RuntimeState>) {
        let (sandbox, all) = (Arc::clone(self), Arc::clone(shared));
        let discarded = async move {
            if retry_while_out_of_fds(&all, || sandbox.stop(&all))
                .await
                .is_err()
            {
                return;
            }
            let id = lock(&sandbox.record).info.id.clone();
            remove_files(&all, &id, &sandbox.directory).await;
        };
        spawn_cleanup(shared, discarded).await;
    }

    /// Waits until its processes are gone, then removes its cgroups and releases link and ids.
    pub(crate) async fn reap(&self, shared: &Arc<RuntimeState>) -> Result<(), Error> {
        let mut exit_status = self.exit_status.clone();
        // The keeper reports it when the last process is gone.
        let _ = exit_status.wait_for(Option::is_some).await;
        self.unlink();
        let group = self.group.clone();
        run_blocking(move || group.remove().map_err(|error| jail(&error))).await?;
        shared.instance.ranges.release(self.ids);
        Ok(())
    }

    /// Sends a message to PID 1 within the response timeout. A paused PID 1 reads nothing, so the
    /// socket may be full.
    pub(crate) async fn send(
        &self,
        message: &ToInit,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let sent =
            tokio::time::timeout(self.response_timeout, self.init.send(message, descriptors));
        sent.await.unwrap_or_else(|_| Err(self.timeout_error()))
    }

    /// Marks the start of a command until the guard is dropped. Waits for a pause in progress and then fails.
    pub(crate) async fn begin_start(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let guard = self.starts.read().await;
        match *self.state.borrow() {
            SandboxState::Paused => Err(SandboxState::Paused.state_error("used")),
            _ => Ok(guard),
        }
    }

    /// Waits for the starts in progress and holds new ones back until the guard is dropped: a command that is refused
    /// because of a pause has not run. `None` if PID 1 does not start a command in time.
    pub(crate) async fn hold_starts(&self) -> Option<OwnedRwLockWriteGuard<()>> {
        let held = Arc::clone(&self.starts).write_owned();
        let within = START_WAIT_TIMEOUT.min(self.response_timeout);
        tokio::time::timeout(within, held).await.ok()
    }

    /// Completes when the sandbox is paused, so that a caller that waits for a process in it gets
    /// an error at once.
    pub(crate) fn until_paused(&self) -> impl Future<Output = Error> + Send + use<> {
        let mut state = self.state.subscribe();
        async move {
            // The sender lives as long as the sandbox.
            let _ = state.wait_for(|state| *state == SandboxState::Paused).await;
            SandboxState::Paused.state_error("used")
        }
    }

    /// Error for a call that timed out.
    pub(crate) fn timeout_error(&self) -> Error {
        match *self.state.borrow() {
            SandboxState::Running => Error::new(
                Code::Timeout,
                format!(
                    "the sandbox did not respond within {:?}",
                    self.response_timeout
                ),
            )
            .remedy(
                "a program in the sandbox may have stopped its processes: end it, or stop and start the sandbox",
            ),
            state => state.state_error("used"),
        }
    }

    /// Stops managing the sandbox; it keeps running.
    pub(crate) fn detach(&self) {
        self.detached.send_replace(true);
        self.init.stop_reading();
    }

    /// Spawns a task that ends when the sandbox is detached.
    pub(crate) fn spawn(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let mut detached = self.detached.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = work => {}
                _ = detached.wait_for(|detached| *detached) => {}
            }
        })
    }

    /// The keeper that is the parent of its PID 1.
    pub(crate) fn keeper(&self) -> Arc<Keeper> {
        Arc::clone(&self.keeper)
    }

    /// Whether the keeper has ended.
    pub(crate) fn keeper_is_lost(&self) -> bool {
        self.keeper.is_lost()
    }

    /// Opens a PTY: the server's end, and the program's.
    pub(crate) fn open_terminal(&self) -> Result<(OwnedFd, OwnedFd), Error> {
        let Some(terminals) = &self.terminals else {
            return Err(Error::new(Code::Internal, "the sandbox has no devpts"));
        };
        match atoll_jail::terminal::open(terminals.as_fd(), self.ids) {
            Err(atoll_jail::Error::Step { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                let message = "the sandbox has no free terminal";
                Err(Error::new(Code::QuotaExceeded, message)
                    .remedy("end programs that have terminals open"))
            }
            opened => opened.map_err(|error| jail(&error)),
        }
    }
}

/// Checks a spec against the limits of this host, without disk access to the template.
pub(crate) fn check(shared: &RuntimeState, spec: &SandboxSpec) -> Result<(), Error> {
    spec.check_network()?;
    resize::check(shared, &spec.limits)?;
    shared.admission.check(&shared.instance.directory)?;
    check_variables(spec)
}

fn check_variables(spec: &SandboxSpec) -> Result<(), Error> {
    spec.environment.iter().try_for_each(|(name, value)| {
        crate::exec::start::check_variable(name.as_bytes(), value.as_bytes())
    })
}

/// Checks and merges a sandbox's variables. The last of several values for a name wins.
fn variables(
    template: &Template,
    authorities: Option<&LayerRecord>,
    spec: &SandboxSpec,
) -> Result<Arc<Variables>, Error> {
    check_variables(spec)?;
    let authorities = authorities.into_iter().flat_map(LayerRecord::variables);
    let authorities = authorities.map(|(name, value)| (name.into(), value.into()));
    let all = template.meta.env.iter().chain(&spec.environment);
    let bytes = all.map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()));
    Ok(Arc::new(authorities.chain(bytes).collect()))
}

/// Runs blocking work on a blocking thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(internal("a blocking thread panicked", &error)),
    }
}

/// Runs cleanup in the background and waits for it. The caller stops waiting when the cleanup has
/// to wait for file descriptors.
async fn spawn_cleanup(shared: &RuntimeState, work: impl Future<Output = ()> + Send + 'static) {
    let (cleanup, fd_shortage) = (shared.cleanup.begin(), shared.fd_shortage.notified());
    let work = tokio::spawn(async move {
        work.await;
        drop(cleanup);
    });
    tokio::select! {
        _ = work => {}
        () = fd_shortage => {}
    }
}

/// Runs cleanup that has no other retry; repeats it every 100 ms while the process is out of file
/// descriptors.
async fn retry_while_out_of_fds<W: Future<Output = Result<(), Error>>>(
    shared: &RuntimeState,
    mut work: impl FnMut() -> W,
) -> Result<(), Error> {
    loop {
        match work().await {
            Err(error) if error.code == Code::NoCapacity => {
                shared.fd_shortage.notify_waiters();
                tokio::time::sleep(FD_RETRY_INTERVAL).await;
            }
            done => return done,
        }
    }
}

/// Removes the files of a sandbox that has no owner.
async fn remove_files(shared: &Arc<RuntimeState>, id: &SandboxId, directory: &Path) {
    let remove = || {
        let (shared, id, directory) = (Arc::clone(shared), id.clone(), directory.to_owned());
        run_blocking(move || {
            shared.instance.storage.remove(&id)?;
            crate::instance::remove_directory(&directory)
        })
    };
    let _ = retry_while_out_of_fds(shared, remove).await;
}
