//! How a sandbox is made.
//!
//! ```text
//! slot    ids, control groups                   (directory and first mounts meanwhile)
//! clone   keeper: PID 1 in its namespaces, then into the v1 limits: an embryo
//! root    overlay with PID 1's ids              (PID 1 prepares its mounts meanwhile)
//! start   root and mounts attached, confined, ready
//! ```
//! Everything up to the embryo can be done before anybody asks for a sandbox. A failure at any point
//! takes back everything before it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_jail::cgroup::Group;
use atoll_jail::plan::{IdRange, Plan, Spec, plan};
use atoll_jail::rootfs;
use atoll_jail::wire::{self, ToInit};
use atoll_model::{
    Bytes, Code, Error, HostMount, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Timings,
};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::connection::{self, Linked};
use super::{Record, Sandbox, TERMINALS, Variables, blocking, size, variables};
use crate::error::{host_file, internal, jail};
use crate::init::{Init, gone};
use crate::keeper::Parent;
use crate::network::Link;
use crate::runtime::{Announce, Shared};
use crate::template::{self, Template};

/// How long PID 1 may take to become a sandbox.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a sandbox is to become, checked.
pub(crate) struct Wish {
    id: SandboxId,
    ids: IdRange,
    spec: SandboxSpec,
    template: Template,
    plan: Arc<Plan>,
    kind: Kind,
}

/// What a sandbox is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Somebody asked for it.
    New,
    /// Somebody will.
    Warm,
    /// Its files are there already, since then.
    Old(i64),
}

impl Kind {
    fn of(pooled: bool) -> Self {
        if pooled { Self::Warm } else { Self::New }
    }
}

/// A PID 1 in its namespaces and limits that waits to be told what to become.
#[derive(Debug)]
pub(crate) struct Embryo {
    id: SandboxId,
    ids: IdRange,
    files: Files,
    group: Group,
    init: Init,
    parent: Parent,
    /// With the world, if it is to have one.
    link: Option<Arc<Link>>,
    /// PID 1 gets into the v1 limits.
    attached: JoinHandle<Result<(), Error>>,
    /// It has been told what to become.
    told: bool,
    timings: Timings,
}

impl Sandbox {
    /// Makes a sandbox, perhaps one that waits for somebody to ask for it. Nothing is left of it if it
    /// fails.
    pub(crate) async fn create(
        shared: &Arc<Shared>,
        spec: SandboxSpec,
        pooled: bool,
        announce: Announce,
    ) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let template = {
            let shared = Arc::clone(shared);
            blocking(move || check(&shared, &spec, None).map(|template| (spec, template))).await?
        };
        let (spec, template) = template;
        // An embryo's place has the usual size.
        let usual = spec.limits.disk == atoll_model::Limits::default().disk;
        if usual && let Some(embryo) = shared.nursery.take() {
            let (id, ids) = (embryo.id.clone(), embryo.ids);
            let wish = Wish::new(shared, id.clone(), ids, spec, template, Kind::of(pooled));
            let announced = announce(id).await;
            return match announced.and(wish) {
                Ok(wish) => embryo.become_sandbox(shared, wish, begin).await,
                Err(error) => {
                    embryo.give_back(shared).await;
                    Err(error)
                }
            };
        }
        let (id, kind) = (SandboxId::random(), Kind::of(pooled));
        announce(id.clone()).await?;
        Self::make(shared, id, spec, template, kind, begin).await
    }

    /// Starts a sandbox again whose files are there.
    pub(crate) async fn start(shared: &Arc<Shared>, record: Record) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let (info, spec, layer) = (record.info, record.spec, record.layer);
        let (spec, template) = {
            let shared = Arc::clone(shared);
            let check = move || check(&shared, &spec, layer.as_deref()).map(|found| (spec, found));
            blocking(check).await?
        };
        let kind = Kind::Old(info.created_at);
        Self::make(shared, info.id, spec, template, kind, begin).await
    }

    /// Waits until PID 1 has become a sandbox, and writes it down.
    async fn come_up(self: &Arc<Self>, shared: &Shared, kind: Kind) -> Result<(), Error> {
        let begin = Instant::now();
        self.ready().await?;
        self.write_down(|info| info.timings.start = begin.elapsed())?;
        // For a later server, where there is one.
        if let (Some(terminals), Some(_)) = (&self.terminals, &shared.instance.lasting) {
            let _ = self.hold(TERMINALS, &[terminals.as_fd()]).await;
        }
        if kind == Kind::Warm {
            crate::exec::start::exercise(self).await;
        }
        match self.tell_names().await {
            // What its own programs made of its files must not keep it from starting.
            Err(error) if !matches!(kind, Kind::Old(_)) => Err(error),
            _ => Ok(()),
        }
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut dying = self.died.clone();
        tokio::select! {
            ready = self.init.ready() => ready,
            // Its last words may still be on the way.
            () = async { let _ = dying.wait_for(Option::is_some).await; } => {
                self.init.ready().await?;
                Err(gone())
            }
            () = tokio::time::sleep(PATIENCE) => {
                Err(Error::new(Code::Timeout, format!("the sandbox was not ready after {PATIENCE:?}"))
                    .remedy("try again; if it happens often this machine is overloaded"))
            }
        }
    }

    async fn make(
        shared: &Arc<Shared>,
        id: SandboxId,
        spec: SandboxSpec,
        template: Template,
        kind: Kind,
        begin: Instant,
    ) -> Result<Arc<Self>, Error> {
        let ids = shared.instance.ranges.claim();
        let ids = ids.map_err(|error| jail(&error))?;
        let made = async {
            let wish = Wish::new(shared, id, ids, spec, template, kind)?;
            let embryo = Embryo::make(shared, &wish, begin).await?;
            Ok((embryo, wish))
        };
        match made.await {
            Ok((embryo, wish)) => embryo.become_sandbox(shared, wish, begin).await,
            Err(error) => {
                shared.instance.ranges.release(ids);
                Err(error)
            }
        }
    }
}

/// Refuses what cannot be made; the template, leased: as it is now, or the layer with this id.
fn check(shared: &Shared, spec: &SandboxSpec, layer: Option<&str>) -> Result<Template, Error> {
    super::check(shared, spec)?;
    let template = shared.templates.get_layer(&spec.template, layer);
    let template = template.map_err(|error| no_template(&error))?;
    check_mounts(spec)?;
    Ok(template)
}

impl Wish {
    fn new(
        shared: &Shared,
        id: SandboxId,
        ids: IdRange,
        spec: SandboxSpec,
        template: Template,
        kind: Kind,
    ) -> Result<Self, Error> {
        let mut plan = plan(&jail_spec(&id, &spec, &template, ids), &shared.facts)
            .map_err(|error| jail(&error))?;
        if let Some(amend) = &shared.amend {
            amend(&mut plan);
        }
        Ok(Self {
            id,
            ids,
            spec,
            template,
            plan: Arc::new(plan),
            kind,
        })
    }

    /// Something ordinary, for embryos that may become anything.
    pub(crate) fn ordinary(shared: &Shared) -> Result<Self, Error> {
        let spec = SandboxSpec::default();
        let template = check(shared, &spec, None)?;
        let ids = shared.instance.ranges.claim();
        let ids = ids.map_err(|error| jail(&error))?;
        let (id, kind) = (SandboxId::random(), Kind::New);
        let wish = Self::new(shared, id, ids, spec, template, kind);
        if wish.is_err() {
            shared.instance.ranges.release(ids);
        }
        wish
    }
}

impl Embryo {
    /// Makes one that can become this.
    async fn make(shared: &Arc<Shared>, wish: &Wish, begin: Instant) -> Result<Self, Error> {
        let boot = ToInit::Boot(wish.plan.boot());
        Self::conceive(shared, wish, Some(boot), begin).await
    }

    /// Makes one that nobody has asked for yet.
    pub(crate) async fn in_advance(shared: &Arc<Shared>) -> Result<Self, Error> {
        let wish = {
            let shared = Arc::clone(shared);
            blocking(move || Wish::ordinary(&shared)).await?
        };
        let made = Self::conceive(shared, &wish, None, Instant::now()).await;
        made.inspect_err(|_| shared.instance.ranges.release(wish.ids))
    }

    async fn conceive(
        shared: &Arc<Shared>,
        wish: &Wish,
        boot: Option<ToInit>,
        begin: Instant,
    ) -> Result<Self, Error> {
        let files = {
            let (shared, id) = (Arc::clone(shared), wish.id.clone());
            let (plan, disk) = (Arc::clone(&wish.plan), wish.spec.limits.disk);
            let old = matches!(wish.kind, Kind::Old(_));
            blocking(move || Files::make(&shared, id, &plan, disk, old))
        };
        let process = Process::make(shared, wish, boot, begin);
        // They need nothing of each other.
        match tokio::join!(files, process) {
            (Ok(files), Ok(process)) => {
                let (group, pid) = (process.group.clone(), process.parent.pid);
                let attach = blocking(move || group.attach(pid).map_err(|error| jail(&error)));
                Ok(Self {
                    id: wish.id.clone(),
                    ids: wish.ids,
                    files,
                    group: process.group,
                    init: process.init,
                    parent: process.parent,
                    link: None,
                    attached: tokio::spawn(attach),
                    told: process.told,
                    timings: process.timings,
                })
            }
            (Ok(files), Err(error)) => {
                files.give_back(shared).await;
                Err(error)
            }
            (Err(error), process) => {
                if let Ok(process) = process {
                    process.give_back().await;
                }
                Err(error)
            }
        }
    }

    /// It is complete, but for what it is to become.
    pub(crate) async fn settle(&mut self) -> Result<(), Error> {
        match (&mut self.attached).await {
            Ok(attached) => {
                self.attached = tokio::spawn(async { Ok(()) });
                attached
            }
            Err(error) => Err(internal("attach PID 1", &error)),
        }
    }

    /// PID 1 still waits.
    pub(crate) fn lives(&self) -> bool {
        self.parent.died.borrow().is_none()
    }

    async fn become_sandbox(
        mut self,
        shared: &Arc<Shared>,
        wish: Wish,
        begin: Instant,
    ) -> Result<Arc<Sandbox>, Error> {
        // One that was made for this wish has its own times.
        if !self.told {
            self.timings = Timings {
                slot: begin.elapsed(),
                ..Timings::default()
            };
        }
        let environment = match self.grow(shared, &wish).await {
            Ok(environment) => environment,
            Err(error) => {
                self.give_back(shared).await;
                return Err(error);
            }
        };
        let (kind, old) = (wish.kind, self.files.old);
        let sandbox = Arc::new(self.into_sandbox(shared, wish, environment));
        match sandbox.come_up(shared, kind).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                if old {
                    let _ = sandbox.stop(shared).await;
                } else {
                    sandbox.undo(shared).await;
                }
                Err(error)
            }
        }
    }

    /// Gives PID 1 everything it needs to become a sandbox.
    async fn grow(&mut self, shared: &Arc<Shared>, wish: &Wish) -> Result<Arc<Variables>, Error> {
        let environment = variables(&wish.template, &wish.spec)?;
        let begin = Instant::now();
        if !self.told {
            self.init.send(&ToInit::Boot(wish.plan.boot()), &[]).await?;
            self.limit(shared, wish).await?;
            let ready = std::mem::take(&mut self.files.mounts);
            self.files.mounts = handed(&wish.plan, ready)?;
        }
        let root = self.root(wish)?;
        let link = connection::attach(shared, self.parent.pid, &wish.spec);
        let (root, link) = tokio::join!(first_of(shared, root), link);
        let attached = self.settle().await;
        let root = match attached.and(root).and_then(|root| Ok((root, link?))) {
            Ok((root, link)) => {
                self.link = link;
                root
            }
            // If PID 1 gave up meanwhile, its own words say more.
            Err(error) => return Err(self.init.last_words().await.unwrap_or(error)),
        };
        self.timings.root = begin.elapsed();

        let mut handed = vec![root.as_fd()];
        handed.extend(self.files.mounts.iter().map(AsFd::as_fd));
        if let Err(error) = self.init.send(&ToInit::Go, &handed).await {
            return Err(self.init.last_words().await.unwrap_or(error));
        }
        Ok(environment)
    }

    /// Sets the limits that are asked for, where they are not those it was made with.
    async fn limit(&self, shared: &Arc<Shared>, wish: &Wish) -> Result<(), Error> {
        if wish.spec.limits == atoll_model::Limits::default() {
            return Ok(());
        }
        let usual = atoll_model::Limits::default();
        let from = size::plan(shared, &wish.template, (&self.id, self.ids), usual)?;
        let from = (from.limits, usual.disk);
        let to = (wish.plan.limits.clone(), wish.spec.limits.disk);
        size::enforce(shared, &self.id, &self.group, from, to).await
    }

    /// Work that mounts the root.
    fn root(
        &mut self,
        wish: &Wish,
    ) -> Result<impl FnOnce() -> Result<Mounted, Error> + Send + 'static, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| internal("copy a descriptor", &error))
        };
        let (layer, directory) = (copy(&wish.template.root)?, copy(&self.files.opened)?);
        let user_namespace = self.parent.user_namespace.take();
        let (ids, nosuid, taken) = (self.ids, wish.plan.nosuid, wish.plan.layers);
        Ok(move || {
            rootfs::mount(&rootfs::Root {
                layers: &[layer.as_fd()],
                directory: directory.as_fd(),
                user_namespace: user_namespace.as_ref().map(AsFd::as_fd),
                ids,
                nosuid,
                taken,
            })
            .map_err(|error| jail(&error))
        })
    }

    fn into_sandbox(self, shared: &Shared, wish: Wish, environment: Arc<Variables>) -> Sandbox {
        let info = SandboxInfo {
            id: self.id,
            template: wish.spec.template.clone(),
            state: SandboxState::Running,
            reason: None,
            limits: wish.spec.limits,
            network: wish.spec.network,
            created_at: match wish.kind {
                Kind::Old(since) => since,
                _ => crate::exec::now(),
            },
            timings: self.timings,
        };
        let mut record = Record::new(info, wish.spec, self.ids);
        record.pooled = wish.kind == Kind::Warm;
        record.layer.clone_from(&wish.template.meta.id);
        record.linked = self.link.as_deref().map(Linked::from);
        let files = self.files;
        let execs = shared.table(&record.info.id, &files.directory, !files.old);
        if let (Some(link), Some(_)) = (&self.link, &shared.instance.lasting) {
            link.stay();
        }
        Sandbox {
            environment: Mutex::new(environment),
            state: watch::Sender::new(record.info.state),
            init: self.init,
            group: self.group,
            died: self.parent.died,
            pid: self.parent.pid,
            execs: Arc::new(execs),
            watches: crate::watch::places(),
            ids: self.ids,
            record: Mutex::new(record),
            link: Mutex::new(self.link),
            namespace: connection::number(self.parent.pid),
            token: self.parent.token,
            keeper: Arc::clone(&shared.keeper),
            meters: shared.meters.clone(),
            patience: shared.patience,
            oom_kills: AtomicU64::default(),
            leaves: Mutex::default(),
            over: Mutex::default(),
            abandoned: watch::Sender::new(false),
            directory: files.directory,
            terminals: terminals(&wish.plan, files.mounts),
            template: wish.template,
        }
    }

    /// Takes back everything of a sandbox that did not come to be.
    pub(crate) async fn give_back(mut self, shared: &Arc<Shared>) {
        let _ = self.settle().await;
        let kill = self.group.clone();
        let _ = blocking(move || kill.kill().map_err(|error| jail(&error))).await;
        let _ = self.parent.died.wait_for(Option::is_some).await;
        let group = self.group;
        let _ = blocking(move || group.remove().map_err(|error| jail(&error))).await;
        self.files.give_back(shared).await;
        shared.instance.ranges.release(self.ids);
    }
}

/// Where a sandbox's files will be, and its first mounts: everything that needs no process.
#[derive(Debug)]
struct Files {
    id: SandboxId,
    directory: PathBuf,
    opened: OwnedFd,
    /// Those that PID 1 cannot make itself, in the plan's order.
    mounts: Vec<OwnedFd>,
    /// They were there before.
    old: bool,
}

impl Files {
    fn make(
        shared: &Shared,
        id: SandboxId,
        plan: &Plan,
        size: Bytes,
        old: bool,
    ) -> Result<Self, Error> {
        let directory = shared.instance.sandbox(&id);
        let disk = &shared.instance.disk;
        let prepared = (|| {
            let make =
                |path: &Path| fs::create_dir(path).map_err(|error| host_file("make", path, &error));
            let files = disk.place(&id);
            if old {
                // What the last mount left there would make the next one fail.
                crate::instance::remove_directory(&files.join("work"))?;
                make(&files.join("work"))?;
            } else {
                make(&directory)?;
                make(&directory.join("execs"))?;
                disk.make(&id, size)?;
            }
            Ok((open_directory(&files)?, handed(plan, Vec::new())?))
        })();
        match prepared {
            Ok((opened, mounts)) => Ok(Self {
                id,
                directory,
                opened,
                mounts,
                old,
            }),
            Err(error) => {
                if !old {
                    let _ = disk.remove(&id);
                    let _ = crate::instance::remove_directory(&directory);
                }
                Err(error)
            }
        }
    }

    /// Removes those that are new.
    async fn give_back(self, shared: &Arc<Shared>) {
        if self.old {
            return;
        }
        let shared = Arc::clone(shared);
        let _ = blocking(move || {
            drop((self.opened, self.mounts));
            shared.instance.disk.remove(&self.id)?;
            crate::instance::remove_directory(&self.directory)
        })
        .await;
    }
}

/// PID 1 in its namespaces and, on cgroup2, in its limits.
struct Process {
    group: Group,
    init: Init,
    parent: Parent,
    /// It has been told what to become.
    told: bool,
    timings: Timings,
}

impl Process {
    /// Has PID 1 cloned, and tells it what to become if that is known.
    async fn make(
        shared: &Arc<Shared>,
        wish: &Wish,
        boot: Option<ToInit>,
        begin: Instant,
    ) -> Result<Self, Error> {
        let group = {
            let (shared, id, ids) = (Arc::clone(shared), wish.id.clone(), wish.ids);
            let plan = Arc::clone(&wish.plan);
            blocking(move || {
                let group = shared.instance.cgroups.add(id.as_str(), &plan.limits, ids);
                group.map_err(|error| jail(&error))
            })
            .await?
        };
        let slot = begin.elapsed();
        let begin = Instant::now();
        let told = boot.is_some();
        match Self::clone(shared, wish, &group, boot).await {
            Ok((init, parent)) => Ok(Self {
                group,
                init,
                parent,
                told,
                timings: Timings {
                    slot,
                    clone: begin.elapsed(),
                    ..Timings::default()
                },
            }),
            Err(error) => {
                let _ = blocking(move || group.remove().map_err(|error| jail(&error))).await;
                Err(error)
            }
        }
    }

    async fn clone(
        shared: &Shared,
        wish: &Wish,
        group: &Group,
        boot: Option<ToInit>,
    ) -> Result<(Init, Parent), Error> {
        let cgroup = group.open().map_err(|error| jail(&error))?;
        let (outside, inside) =
            wire::pair().map_err(|error| internal("make a sandbox's socket", &error))?;
        let init = Init::new(outside)?;
        if let Some(boot) = boot {
            init.send(&boot, &[]).await?;
        }
        let plan = &wish.plan;
        let parent = shared.keeper.spawn(
            wish.id.as_str(),
            inside.into_fd(),
            init.socket(),
            cgroup,
            plan.ids,
            plan.namespaces,
        );
        let parent = parent.await?;
        Ok((init, parent))
    }

    async fn give_back(mut self) {
        let group = self.group.clone();
        let _ = blocking(move || group.kill().map_err(|error| jail(&error))).await;
        let _ = self.parent.died.wait_for(Option::is_some).await;
        let group = self.group;
        let _ = blocking(move || group.remove().map_err(|error| jail(&error))).await;
    }
}

/// A root, and what it was made of.
type Mounted = (OwnedFd, Vec<OwnedFd>);

/// Does blocking work that makes two things. Only the first is waited for, before the second is dropped.
async fn first_of<A: Send + 'static, B>(
    shared: &Shared,
    work: impl FnOnce() -> Result<(A, B), Error> + Send + 'static,
) -> Result<A, Error> {
    let aftermath = shared.aftermath.begin();
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let (first, second) = match work() {
            Ok((first, second)) => (Ok(first), Some(second)),
            Err(error) => (Err(error), None),
        };
        // Whoever asked may have gone.
        let _ = sender.send(first);
        drop(second);
        drop(aftermath);
    });
    let ended = |_| Err(Error::new(Code::Internal, "a thread ended before its work"));
    receiver.await.unwrap_or_else(ended)
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
        template::Error::Gone { name } => Error::new(Code::UnknownTemplate, error.to_string())
            .remedy("its own files are there: delete it, or put the layer back")
            .detail("template", name),
        error => internal("the template cannot be used", error),
    }
}

pub(super) fn jail_spec(
    id: &SandboxId,
    spec: &SandboxSpec,
    template: &Template,
    ids: IdRange,
) -> Spec {
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
        // Another one each time it is read.
        boot: std::fs::read_to_string("/proc/sys/kernel/random/uuid")
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
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

/// Prepares the mounts that PID 1 cannot make itself, in the plan's order. `ready` are those that every
/// sandbox has, which come first, if they were made before.
fn handed(plan: &Plan, ready: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Error> {
    let mut ready = ready.into_iter();
    let mounts = plan
        .inside
        .mounts
        .iter()
        .filter_map(|mount| match &mount.source {
            wire::Source::Devices => {
                Some(ready.next().map_or_else(|| rootfs::devices(plan.ids), Ok))
            }
            wire::Source::Terminals => {
                Some(ready.next().map_or_else(|| rootfs::terminals(plan.ids), Ok))
            }
            wire::Source::Handed { path } => Some(rootfs::host_mount(Path::new(path))),
            _ => None,
        });
    mounts
        .map(|mount| mount.map_err(|error| jail(&error)))
        .collect()
}

/// The devpts among the mounts that were prepared.
fn terminals(plan: &Plan, mounts: Vec<OwnedFd>) -> Option<OwnedFd> {
    let prepared = plan.inside.mounts.iter().filter(|mount| {
        use wire::Source::{Devices, Handed, Terminals};
        matches!(mount.source, Devices | Terminals | Handed { .. })
    });
    let mut both = prepared.zip(mounts);
    both.find_map(|(mount, fd)| (mount.source == wire::Source::Terminals).then_some(fd))
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
