//! One sandbox: how it is made and how it ends.
//!
//! ```text
//! slot    ids, directory, control groups
//! clone   keeper: PID 1 in its namespaces          (prepares its mounts meanwhile)
//! root    overlay with PID 1's ids  ∥  PID 1 into the v1 limits
//! start   root and mounts attached, confined, ready
//! ```
//! A failure at any point takes back everything before it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_jail::cgroup::{End, Group, Leaf};
use atoll_jail::plan::{IdRange, Plan, Spec, plan};
use atoll_jail::rootfs;
use atoll_jail::wire::{self, ToInit};
use atoll_model::{
    Code, Error, HostMount, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Timings,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::error::{host_file, internal, jail};
use crate::exec::spare::Spare;
use crate::init::{Init, gone};
use crate::runtime::Shared;
use crate::template::{self, Template};

/// How long PID 1 may take to become a sandbox.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) info: SandboxInfo,
    pub(crate) init: Init,
    pub(crate) group: Group,
    /// Set once PID 1 and everything it started are gone.
    pub(crate) died: watch::Receiver<Option<i32>>,
    /// PID 1 as the host sees it.
    pub(crate) pid: i32,
    /// Directories of ended execs whose children live on.
    leaves: Mutex<Leaves>,
    /// A child that waits for the next command's program.
    spare: Mutex<Option<Spare>>,
    /// Variables of every command: the template's, then the sandbox's own.
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
    directory: PathBuf,
    pub(crate) ids: IdRange,
    /// Keeps the template's layer from being removed.
    _template: Template,
}

/// What stands beside a sandbox's files and says what it is.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    #[serde(flatten)]
    info: SandboxInfo,
}

impl Sandbox {
    /// Makes a sandbox. Nothing is left of it if it fails.
    pub(crate) async fn create(
        shared: &Arc<Shared>,
        id: SandboxId,
        spec: SandboxSpec,
    ) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let slot = {
            let shared = Arc::clone(shared);
            blocking(move || Slot::take(&shared, id, spec)).await?
        };
        let taken = begin.elapsed();
        match slot.start(shared, taken).await {
            Ok(sandbox) => {
                let sandbox = Arc::new(sandbox);
                Arc::clone(&sandbox).refill().await;
                Ok(sandbox)
            }
            Err((slot, error)) => {
                slot.give_back(shared).await;
                Err(error)
            }
        }
    }

    /// Where its files are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Ends all its processes and takes its control groups away; its files stay.
    pub(crate) async fn stop(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let mut died = self.died.clone();
        let group = self.group.clone();
        let kill = group.clone();
        blocking(move || kill.kill().map_err(|error| jail(&error))).await?;
        // The keeper tells when the last of its processes is gone.
        let _ = died.wait_for(Option::is_some).await;
        blocking(move || group.remove().map_err(|error| jail(&error))).await?;
        shared.instance.ranges.release(self.ids);
        Ok(())
    }

    /// Writes down that only its files are left.
    pub(crate) fn record_stopped(&self) -> Result<(), Error> {
        record(
            &self.directory,
            &SandboxInfo {
                state: SandboxState::Stopped,
                ..self.info.clone()
            },
        )
    }

    /// The child that waits, if it still does.
    pub(crate) fn take_spare(&self) -> Option<Spare> {
        let mut spare = lock(&self.spare).take()?;
        if !spare.has_ended() {
            return Some(spare);
        }
        self.leave(spare.into_leaf().into());
        None
    }

    /// How many children wait for a command.
    pub(crate) fn waiting(&self) -> u64 {
        u64::from(lock(&self.spare).is_some())
    }

    /// Sees to it that a child waits for the next command.
    pub(crate) async fn refill(self: Arc<Self>) {
        if lock(&self.spare).is_some() {
            return;
        }
        // Where there is no room for one now, the next command makes its own.
        if let Ok(made) = Spare::prepare(&self).await {
            let another = lock(&self.spare).replace(made);
            if let Some(another) = another {
                self.leave(another.into_leaf().into());
            }
        }
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
pub(crate) struct Leaves {
    /// Of ended execs whose children live on.
    lingering: Vec<Arc<Leaf>>,
    /// Empty ones.
    spare: Vec<Leaf>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

fn record(directory: &Path, info: &SandboxInfo) -> Result<(), Error> {
    let record = Record {
        version: 1,
        info: info.clone(),
    };
    let text = serde_json::to_vec(&record).map_err(|error| internal("write a record", &error))?;
    let (new, path) = (
        directory.join("record.json.new"),
        directory.join("record.json"),
    );
    fs::write(&new, text).map_err(|error| host_file("write", &new, &error))?;
    fs::rename(&new, &path).map_err(|error| host_file("write", &path, &error))
}

/// The place for a sandbox: everything that needs no process.
struct Slot {
    info: SandboxInfo,
    plan: Plan,
    template: Template,
    mounts: Vec<OwnedFd>,
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    group: Group,
    cgroup: OwnedFd,
    directory: PathBuf,
    opened: OwnedFd,
    died: Option<watch::Receiver<Option<i32>>>,
}

impl Slot {
    fn take(shared: &Shared, id: SandboxId, spec: SandboxSpec) -> Result<Self, Error> {
        spec.limits.check(atoll_model::Bytes(shared.facts.memory))?;
        for (name, value) in &spec.environment {
            crate::exec::check_variable(name.as_bytes(), value.as_bytes())?;
        }
        let template = shared
            .templates
            .get(&spec.template)
            .map_err(|error| no_template(&error))?;
        check_mounts(&spec)?;
        let ids = shared
            .instance
            .ranges
            .claim()
            .map_err(|error| jail(&error))?;
        let made = Self::build(shared, id, spec, template, ids);
        if made.is_err() {
            shared.instance.ranges.release(ids);
        }
        made
    }

    fn build(
        shared: &Shared,
        id: SandboxId,
        spec: SandboxSpec,
        template: Template,
        ids: IdRange,
    ) -> Result<Self, Error> {
        let mut plan = plan(&jail_spec(&id, &spec, &template, ids), &shared.facts)
            .map_err(|error| jail(&error))?;
        if let Some(amend) = &shared.amend {
            amend(&mut plan);
        }
        let mounts = handed(&plan)?;
        let environment = template.meta.env.iter().chain(&spec.environment);
        let environment = environment
            .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()))
            .collect();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let info = SandboxInfo {
            id,
            template: spec.template,
            state: SandboxState::Creating,
            limits: spec.limits,
            created_at: now.as_micros() as i64,
            timings: Timings::default(),
        };
        let directory = shared
            .instance
            .directory
            .join("sandboxes")
            .join(info.id.as_str());
        let prepared = (|| {
            for part in ["", "upper", "work"] {
                let path = directory.join(part);
                fs::create_dir(&path).map_err(|error| host_file("make", &path, &error))?;
            }
            let opened = open_directory(&directory)?;
            let group = shared
                .instance
                .cgroups
                .add(info.id.as_str(), &plan.limits, ids);
            let group = group.map_err(|error| jail(&error))?;
            match group.open() {
                Ok(cgroup) => Ok((opened, group, cgroup)),
                Err(error) => {
                    let _ = group.remove();
                    Err(jail(&error))
                }
            }
        })();
        match prepared {
            Ok((opened, group, cgroup)) => Ok(Self {
                info,
                plan,
                template,
                mounts,
                environment,
                group,
                cgroup,
                directory,
                opened,
                died: None,
            }),
            Err(error) => {
                let _ = crate::instance::remove_directory(&directory);
                Err(error)
            }
        }
    }

    async fn start(
        mut self,
        shared: &Arc<Shared>,
        taken: Duration,
    ) -> Result<Sandbox, (Self, Error)> {
        let mut timings = Timings {
            slot: taken,
            ..Timings::default()
        };
        let ids = self.plan.ids;
        match self.start_steps(shared, &mut timings).await {
            Ok((init, pid, died)) => {
                self.info.timings = timings;
                self.info.state = SandboxState::Running;
                if let Err(error) = record(&self.directory, &self.info) {
                    return Err((self, error));
                }
                Ok(Sandbox {
                    info: self.info,
                    init,
                    group: self.group,
                    died,
                    pid,
                    leaves: Mutex::default(),
                    spare: Mutex::default(),
                    environment: self.environment,
                    directory: self.directory,
                    ids,
                    _template: self.template,
                })
            }
            Err(error) => Err((self, error)),
        }
    }

    async fn start_steps(
        &mut self,
        shared: &Arc<Shared>,
        timings: &mut Timings,
    ) -> Result<(Init, i32, watch::Receiver<Option<i32>>), Error> {
        let begin = Instant::now();
        let (outside, inside) =
            wire::pair().map_err(|error| internal("make a sandbox's socket", &error))?;
        let init = Init::new(outside)?;
        init.send(&ToInit::Boot(self.plan.boot()), &[]).await?;
        let parent = shared
            .keeper
            .spawn(
                inside.into_fd(),
                &self.cgroup,
                self.plan.ids,
                self.plan.namespaces,
            )
            .await?;
        let (pid, died) = (parent.pid, parent.died);
        self.died = Some(died.clone());
        timings.clone = begin.elapsed();

        let begin = Instant::now();
        let group = self.group.clone();
        let attach = blocking(move || group.attach(pid).map_err(|error| jail(&error)));
        let root = self.root(parent.user_namespace)?;
        let (attached, root) = tokio::join!(attach, blocking(root));
        let root = match attached.and(root) {
            Ok(root) => root,
            // If PID 1 gave up meanwhile, its own words say more.
            Err(error) => return Err(init.last_words().await.unwrap_or(error)),
        };
        timings.root = begin.elapsed();

        let begin = Instant::now();
        let mut handed = vec![root.as_fd()];
        handed.extend(self.mounts.iter().map(AsFd::as_fd));
        if let Err(error) = init.send(&ToInit::Go, &handed).await {
            return Err(init.last_words().await.unwrap_or(error));
        }
        let mut dying = died.clone();
        tokio::select! {
            ready = init.ready() => ready?,
            // Its last words may still be on the way.
            () = async { let _ = dying.wait_for(Option::is_some).await; } => {
                init.ready().await?;
                return Err(gone());
            }
            () = tokio::time::sleep(PATIENCE) => {
                return Err(Error::new(Code::Timeout, format!("the sandbox was not ready after {PATIENCE:?}"))
                    .remedy("try again; if it happens often this machine is overloaded"));
            }
        }
        timings.start = begin.elapsed();
        Ok((init, pid, died))
    }

    /// Work that mounts the root.
    fn root(
        &self,
        user_namespace: Option<OwnedFd>,
    ) -> Result<impl FnOnce() -> Result<OwnedFd, Error> + Send + 'static, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| internal("copy a descriptor", &error))
        };
        let (layer, directory) = (copy(&self.template.root)?, copy(&self.opened)?);
        let (ids, nosuid) = (self.plan.ids, self.plan.nosuid);
        Ok(move || {
            rootfs::mount(&rootfs::Root {
                layers: &[layer.as_fd()],
                directory: directory.as_fd(),
                user_namespace: user_namespace.as_ref().map(AsFd::as_fd),
                ids,
                nosuid,
            })
            .map_err(|error| jail(&error))
        })
    }

    /// Takes back everything of a sandbox that did not come to be.
    async fn give_back(self, shared: &Arc<Shared>) {
        let group = self.group.clone();
        let _ = blocking(move || group.kill().map_err(|error| jail(&error))).await;
        if let Some(mut died) = self.died {
            let _ = died.wait_for(Option::is_some).await;
        }
        let (group, directory) = (self.group, self.directory);
        let _ = blocking(move || {
            let removed = group.remove();
            crate::instance::remove_directory(&directory)?;
            removed.map_err(|error| jail(&error))
        })
        .await;
        shared.instance.ranges.release(self.plan.ids);
    }
}

fn no_template(error: &template::Error) -> Error {
    match error {
        template::Error::Unknown { name, known } => Error::new(
            Code::UnknownTemplate,
            format!("there is no template {name:?}"),
        )
        .remedy(format!("choose one of: {}", known.join(", ")))
        .detail("template", name),
        template::Error::Name(name) => {
            Error::new(Code::UnknownTemplate, error.to_string()).detail("template", name)
        }
        error => internal("the template cannot be used", error),
    }
}

fn jail_spec(id: &SandboxId, spec: &SandboxSpec, template: &Template, ids: IdRange) -> Spec {
    let meta = &template.meta;
    Spec {
        id: id.to_string(),
        ids,
        millicpus: spec.limits.cpus.0,
        memory: spec.limits.memory.0,
        pids: spec.limits.pids,
        user: wire::User {
            name: meta.user.name.clone(),
            uid: meta.user.uid,
            gid: meta.user.gid,
            home: meta.user.home.to_string_lossy().into_owned(),
        },
        sudo: meta.sudo,
        nested_user_namespaces: meta.nested_user_namespaces,
        host_mounts: spec
            .mounts
            .iter()
            .map(|mount| (mount.source.clone(), mount.target.clone()))
            .collect(),
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Error> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| host_file("open", path, &error.into()))
}

/// Prepares the mounts that PID 1 cannot make itself, in the plan's order.
fn handed(plan: &Plan) -> Result<Vec<OwnedFd>, Error> {
    let mounts = plan
        .inside
        .mounts
        .iter()
        .filter_map(|mount| match &mount.source {
            wire::Source::Devices => Some(rootfs::devices(plan.ids)),
            wire::Source::Handed { path } => Some(rootfs::host_mount(Path::new(path))),
            _ => None,
        });
    mounts
        .map(|mount| mount.map_err(|error| jail(&error)))
        .collect()
}

/// Refuses what cannot be shown of the host.
fn check_mounts(spec: &SandboxSpec) -> Result<(), Error> {
    for HostMount { source, target } in &spec.mounts {
        let path = Path::new(target);
        let plain = path.is_absolute()
            && !path.components().any(|part| part == Component::ParentDir)
            && path != Path::new("/");
        if !plain {
            return Err(Error::invalid(
                "mount",
                format!("the mount target {target:?} is not an absolute path below /"),
                "write --mount /on/the/host:/in/the/sandbox",
            ));
        }
        if source.to_str().is_none() {
            let message = format!("the mount source {} is not UTF-8", source.display());
            return Err(Error::invalid("mount", message, "rename it"));
        }
        if let Err(error) = fs::metadata(source) {
            let source = source.display();
            return Err(Error::invalid(
                "mount",
                format!("the mount source {source} cannot be opened: {error}"),
                "name a file or directory of this host",
            ));
        }
    }
    Ok(())
}
