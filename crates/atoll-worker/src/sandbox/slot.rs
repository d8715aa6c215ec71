//! How a sandbox is made.
//!
//! ```text
//! slot    ids, directory, control groups
//! clone   keeper: PID 1 in its namespaces, then into the v1 limits: an embryo
//! root    overlay with PID 1's ids              (PID 1 prepares its mounts meanwhile)
//! start   root and mounts attached, confined, ready
//! ```
//! Everything up to the embryo can be done before anybody asks for a sandbox. A failure at any point
//! takes back everything before it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_jail::cgroup::Group;
use atoll_jail::plan::{IdRange, Limits, Plan, Spec, plan};
use atoll_jail::rootfs;
use atoll_jail::wire::{self, ToInit};
use atoll_model::{
    Bytes, Code, Error, HostMount, SandboxId, SandboxInfo, SandboxSpec, SandboxState, Timings,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connection::{self, Linked};
use super::{Record, Sandbox, TERMINALS, Variables, blocking, variables};
use crate::error::{host_file, internal, jail};
use crate::exec::table::Table;
use crate::init::{Init, gone};
use crate::keeper::Parent;
use crate::network::Link;
use crate::runtime::Shared;
use crate::template::{self, Template};

/// How long PID 1 may take to become a sandbox.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a sandbox is to become, checked.
pub(crate) struct Wish {
    id: SandboxId,
    ids: IdRange,
    spec: SandboxSpec,
    template: Template,
    plan: Plan,
    mounts: Vec<OwnedFd>,
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
    directory: PathBuf,
    opened: OwnedFd,
    group: Group,
    init: Init,
    parent: Parent,
    /// With the world, if it is to have one.
    link: Option<Arc<Link>>,
    /// PID 1 gets into the v1 limits.
    attached: JoinHandle<Result<(), Error>>,
    /// It has been told what to become.
    told: bool,
    /// Mounts that every sandbox has, made with it.
    mounts: Vec<OwnedFd>,
    /// Its files were there before.
    old: bool,
    timings: Timings,
}

impl Sandbox {
    /// Makes a sandbox, perhaps one that waits for somebody to ask for it. Nothing is left of it if it
    /// fails.
    pub(crate) async fn create(
        shared: &Arc<Shared>,
        spec: SandboxSpec,
        pooled: bool,
    ) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let template = {
            let shared = Arc::clone(shared);
            blocking(move || check(&shared, &spec).map(|template| (spec, template))).await?
        };
        let (spec, template) = template;
        // An embryo's place has the usual size.
        let usual = spec.limits.disk == atoll_model::Limits::default().disk;
        if usual && let Some(embryo) = shared.nursery.take() {
            let mut embryo = embryo;
            let (id, ids) = (embryo.id.clone(), embryo.ids);
            let ready = std::mem::take(&mut embryo.mounts);
            let wish = Wish::new(shared, id, ids, spec, template, Kind::of(pooled), ready);
            return match wish {
                Ok(wish) => embryo.become_sandbox(shared, wish, begin).await,
                Err(error) => {
                    embryo.give_back(shared).await;
                    Err(error)
                }
            };
        }
        let kind = Kind::of(pooled);
        Self::make(shared, SandboxId::random(), spec, template, kind, begin).await
    }

    /// Starts a sandbox again whose files are there.
    pub(crate) async fn start(shared: &Arc<Shared>, record: Record) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let (info, spec) = (record.info, record.spec);
        let (spec, template) = {
            let shared = Arc::clone(shared);
            blocking(move || check(&shared, &spec).map(|template| (spec, template))).await?
        };
        let kind = Kind::Old(info.created_at);
        Self::make(shared, info.id, spec, template, kind, begin).await
    }

    /// Takes a new one away that nobody was told of.
    async fn undo(&self, shared: &Arc<Shared>) {
        if self.stop(shared).await.is_ok() {
            let directory = self.directory.clone();
            let _ = blocking(move || crate::instance::remove_directory(&directory)).await;
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
            let wish = Wish::new(shared, id, ids, spec, template, kind, Vec::new())?;
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

/// Refuses what cannot be made; the template, leased.
fn check(shared: &Shared, spec: &SandboxSpec) -> Result<Template, Error> {
    spec.check_network()?;
    spec.limits.check(atoll_model::Bytes(shared.facts.memory))?;
    shared.instance.disk.check(spec.limits.disk)?;
    let data = &shared.instance.directory;
    crate::storage::Space::of(data)?.require(data)?;
    let template = shared.templates.get(&spec.template);
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
        ready: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let mut plan = plan(&jail_spec(&id, &spec, &template, ids), &shared.facts)
            .map_err(|error| jail(&error))?;
        if let Some(amend) = &shared.amend {
            amend(&mut plan);
        }
        let mounts = handed(&plan, ready)?;
        Ok(Self {
            id,
            ids,
            spec,
            template,
            plan,
            mounts,
            kind,
        })
    }

    /// Something ordinary, for embryos that may become anything.
    pub(crate) fn ordinary(shared: &Shared) -> Result<Self, Error> {
        let spec = SandboxSpec::default();
        let template = check(shared, &spec)?;
        let ids = shared.instance.ranges.claim();
        let ids = ids.map_err(|error| jail(&error))?;
        let (id, kind) = (SandboxId::random(), Kind::New);
        let wish = Self::new(shared, id, ids, spec, template, kind, Vec::new());
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
        let ids = wish.ids;
        match Self::conceive(shared, &wish, None, Instant::now()).await {
            Ok(embryo) => Ok(Self {
                mounts: wish.mounts,
                ..embryo
            }),
            Err(error) => {
                shared.instance.ranges.release(ids);
                Err(error)
            }
        }
    }

    async fn conceive(
        shared: &Arc<Shared>,
        wish: &Wish,
        boot: Option<ToInit>,
        begin: Instant,
    ) -> Result<Self, Error> {
        let old = matches!(wish.kind, Kind::Old(_));
        let (id, ids) = (wish.id.clone(), wish.ids);
        let (limits, disk) = (wish.plan.limits.clone(), wish.spec.limits.disk);
        let place = {
            let shared = Arc::clone(shared);
            let id = id.clone();
            blocking(move || Place::make(&shared, &id, ids, (&limits, disk), old)).await?
        };
        let slot = begin.elapsed();
        let begin = Instant::now();
        let told = boot.is_some();
        match place.clone_init(shared, wish, boot).await {
            Ok((init, parent)) => {
                let (group, pid) = (place.group.clone(), parent.pid);
                let attach = blocking(move || group.attach(pid).map_err(|error| jail(&error)));
                Ok(Self {
                    id,
                    ids,
                    directory: place.directory,
                    opened: place.opened,
                    group: place.group,
                    init,
                    parent,
                    link: None,
                    attached: tokio::spawn(attach),
                    told,
                    mounts: Vec::new(),
                    old,
                    timings: Timings {
                        slot,
                        clone: begin.elapsed(),
                        ..Timings::default()
                    },
                })
            }
            Err(error) => {
                let shared = Arc::clone(shared);
                let _ = blocking(move || {
                    place.give_back(&shared, &id, old);
                    Ok(())
                })
                .await;
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
        let (pooled, old) = (wish.kind == Kind::Warm, self.old);
        let outcome = self.grow(shared, &wish).await;
        match outcome {
            Ok((record, environment)) => {
                let sandbox = Arc::new(self.into_sandbox(shared, wish, record, environment));
                if let Some(terminals) = &sandbox.terminals {
                    // Without a keeper there is no later server either.
                    let _ = sandbox.hold(TERMINALS, &[terminals.as_fd()]).await;
                }
                // Others make a child with their first command, which takes no longer.
                if pooled {
                    crate::exec::spare::exercise(&sandbox).await;
                    Arc::clone(&sandbox).refill().await;
                }
                match sandbox.tell_names().await {
                    // What its own programs made of its files must not keep it from starting.
                    Err(error) if !old => {
                        sandbox.undo(shared).await;
                        Err(error)
                    }
                    _ => Ok(sandbox),
                }
            }
            Err(error) => {
                self.give_back(shared).await;
                Err(error)
            }
        }
    }

    /// From an embryo to a sandbox that is written down.
    async fn grow(
        &mut self,
        shared: &Arc<Shared>,
        wish: &Wish,
    ) -> Result<(Record, Arc<Variables>), Error> {
        let environment = variables(&wish.template, &wish.spec)?;
        let begin = Instant::now();
        if !self.told {
            self.init.send(&ToInit::Boot(wish.plan.boot()), &[]).await?;
            self.limit(shared, wish).await?;
        }
        let root = self.root(wish)?;
        let link = connection::attach(shared, self.parent.pid, &wish.spec);
        let (root, link) = tokio::join!(blocking(root), link);
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

        let begin = Instant::now();
        let mut handed = vec![root.as_fd()];
        handed.extend(wish.mounts.iter().map(AsFd::as_fd));
        if let Err(error) = self.init.send(&ToInit::Go, &handed).await {
            return Err(self.init.last_words().await.unwrap_or(error));
        }
        self.ready().await?;
        self.timings.start = begin.elapsed();
        let info = SandboxInfo {
            id: self.id.clone(),
            template: wish.spec.template.clone(),
            state: SandboxState::Creating.next(atoll_model::Transition::Ready)?,
            reason: None,
            limits: wish.spec.limits,
            network: wish.spec.network,
            created_at: match wish.kind {
                Kind::Old(since) => since,
                _ => crate::exec::now(),
            },
            timings: self.timings,
        };
        let mut record = Record::new(info, wish.spec.clone(), self.ids);
        record.pooled = wish.kind == Kind::Warm;
        record.linked = self.link.as_deref().map(Linked::from);
        record.write(&self.directory)?;
        Ok((record, environment))
    }

    /// Sets the limits that are asked for, where they are not those it was made with.
    async fn limit(&self, shared: &Arc<Shared>, wish: &Wish) -> Result<(), Error> {
        if wish.spec.limits == atoll_model::Limits::default() {
            return Ok(());
        }
        let (group, limits) = (self.group.clone(), wish.plan.limits.clone());
        let (shared, id, disk) = (Arc::clone(shared), self.id.clone(), wish.spec.limits.disk);
        blocking(move || {
            shared.instance.disk.limit(&id, disk)?;
            let set = group.limit(&limits, &shared.instance.cgroups);
            set.map_err(|error| jail(&error))
        })
        .await
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut dying = self.parent.died.clone();
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

    /// Work that mounts the root.
    fn root(
        &mut self,
        wish: &Wish,
    ) -> Result<impl FnOnce() -> Result<OwnedFd, Error> + Send + 'static, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| internal("copy a descriptor", &error))
        };
        let (layer, directory) = (copy(&wish.template.root)?, copy(&self.opened)?);
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

    fn into_sandbox(
        self,
        shared: &Shared,
        wish: Wish,
        record: Record,
        environment: Arc<Variables>,
    ) -> Sandbox {
        let execs = Table::new(self.directory.join("execs"), !self.old);
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
            ids: self.ids,
            record: Mutex::new(record),
            link: Mutex::new(self.link),
            namespace: connection::number(self.parent.pid),
            token: self.parent.token,
            keeper: Arc::clone(&shared.keeper),
            busy: shared.busy.clone(),
            leaves: Mutex::default(),
            spare: Mutex::default(),
            over: Mutex::default(),
            abandoned: watch::Sender::new(false),
            directory: self.directory,
            terminals: terminals(&wish.plan, wish.mounts),
            template: wish.template,
        }
    }

    /// Takes back everything of a sandbox that did not come to be.
    pub(crate) async fn give_back(mut self, shared: &Arc<Shared>) {
        let _ = self.settle().await;
        let kill = self.group.clone();
        let _ = blocking(move || kill.kill().map_err(|error| jail(&error))).await;
        let _ = self.parent.died.wait_for(Option::is_some).await;
        let place = Place {
            directory: self.directory,
            opened: self.opened,
            group: self.group,
        };
        let (old, id, kept) = (self.old, self.id, Arc::clone(shared));
        let _ = blocking(move || {
            place.give_back(&kept, &id, old);
            Ok(())
        })
        .await;
        shared.instance.ranges.release(self.ids);
    }
}

/// Where a sandbox will be: everything that needs no process.
struct Place {
    directory: PathBuf,
    opened: OwnedFd,
    group: Group,
}

impl Place {
    fn make(
        shared: &Shared,
        id: &SandboxId,
        ids: IdRange,
        (limits, size): (&Limits, Bytes),
        old: bool,
    ) -> Result<Self, Error> {
        let directory = shared.instance.sandboxes().join(id.as_str());
        let disk = &shared.instance.disk;
        let prepared = (|| {
            let make =
                |path: &Path| fs::create_dir(path).map_err(|error| host_file("make", path, &error));
            let files = disk.place(id);
            if old {
                // What the last mount left there would make the next one fail.
                crate::instance::remove_directory(&files.join("work"))?;
                make(&files.join("work"))?;
            } else {
                make(&directory)?;
                make(&directory.join("execs"))?;
                disk.make(id, size)?;
            }
            let opened = open_directory(&files)?;
            let group = shared.instance.cgroups.add(id.as_str(), limits, ids);
            Ok((opened, group.map_err(|error| jail(&error))?))
        })();
        match prepared {
            Ok((opened, group)) => Ok(Self {
                directory,
                opened,
                group,
            }),
            Err(error) => {
                if !old {
                    let _ = disk.remove(id);
                    let _ = crate::instance::remove_directory(&directory);
                }
                Err(error)
            }
        }
    }

    /// Has PID 1 cloned, and tells it what to become if that is known.
    async fn clone_init(
        &self,
        shared: &Shared,
        wish: &Wish,
        boot: Option<ToInit>,
    ) -> Result<(Init, Parent), Error> {
        let cgroup = self.group.open().map_err(|error| jail(&error))?;
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

    /// Nobody is in it any more.
    fn give_back(self, shared: &Shared, id: &SandboxId, keep_files: bool) {
        let _ = self.group.remove();
        if !keep_files {
            let _ = shared.instance.disk.remove(id);
            let _ = crate::instance::remove_directory(&self.directory);
        }
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
