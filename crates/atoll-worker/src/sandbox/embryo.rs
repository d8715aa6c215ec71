//! Embryos: PID 1 processes in their namespaces and limits that have no configuration yet, and
//! their start as a sandbox.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use atoll_jail::plan::IdRange;
use atoll_jail::rootfs;
use atoll_jail::wire::ToInit;
use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxState, Timings};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::connection::{self, Linked};
use super::planned::{Kind, Wish};
use super::process::Process;
use super::slot::{self, Files};
use super::{Parts, Record, Sandbox, Variables, blocking, give_back, resize, variables};
use crate::authorities::Layer;
use crate::error::{internal, jail};
use crate::network::Link;
use crate::runtime::Shared;

/// A PID 1 in its namespaces and limits that waits for its configuration.
#[derive(Debug)]
pub(crate) struct Embryo {
    pub(super) id: SandboxId,
    pub(super) ids: IdRange,
    files: Files,
    process: Process,
    /// `None` if its network is `none`, and before it is configured.
    link: Option<Arc<Link>>,
    /// Attaches PID 1 to the v1 control groups.
    attached: JoinHandle<Result<(), Error>>,
}

impl Embryo {
    /// Creates an embryo for a planned sandbox.
    pub(super) async fn make(
        shared: &Arc<Shared>,
        wish: &Wish,
        begin: Instant,
    ) -> Result<Self, Error> {
        let boot = ToInit::Boot(wish.plan.boot());
        Self::conceive(shared, wish, Some(boot), begin).await
    }

    /// Creates an embryo for the pool, with the default plan.
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
        // The two are independent.
        match tokio::join!(files, process) {
            (Ok(files), Ok(process)) => {
                let (group, pid) = (process.group.clone(), process.parent.pid);
                let attach = blocking(move || group.attach(pid).map_err(|error| jail(&error)));
                Ok(Self {
                    id: wish.id.clone(),
                    ids: wish.ids,
                    files,
                    process,
                    link: None,
                    attached: tokio::spawn(attach),
                })
            }
            (Ok(files), Err(error)) => {
                let all = Arc::clone(shared);
                give_back(shared, async move { files.give_back(&all).await }).await;
                Err(error)
            }
            (Err(error), process) => {
                if let Ok(process) = process {
                    let all = Arc::clone(shared);
                    give_back(shared, async move { process.give_back(&all).await }).await;
                }
                Err(error)
            }
        }
    }

    /// Waits until PID 1 is in its control groups.
    pub(crate) async fn settle(&mut self) -> Result<(), Error> {
        match (&mut self.attached).await {
            Ok(attached) => {
                self.attached = tokio::spawn(async { Ok(()) });
                attached
            }
            Err(error) => Err(internal("attach PID 1", &error)),
        }
    }

    /// Whether PID 1 still runs.
    pub(crate) fn lives(&self) -> bool {
        self.process.parent.died.borrow().is_none()
    }

    pub(super) async fn become_sandbox(
        mut self,
        shared: &Arc<Shared>,
        wish: Wish,
        begin: Instant,
    ) -> Result<Arc<Sandbox>, Error> {
        // An embryo that was created for this sandbox has its own timings.
        if !self.process.told {
            self.process.timings = Timings {
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

    /// Sends PID 1 its configuration, root and mounts; returns the variables of its commands.
    async fn grow(&mut self, shared: &Arc<Shared>, wish: &Wish) -> Result<Arc<Variables>, Error> {
        let mounted = wish.authorities.as_deref().map(Layer::mounted);
        let environment = variables(&wish.template, mounted, &wish.spec)?;
        let begin = Instant::now();
        if !self.process.told {
            self.process
                .init
                .send(&ToInit::Boot(wish.plan.boot()), &[])
                .await?;
            self.limit(shared, wish).await?;
            let ready = std::mem::take(&mut self.files.mounts);
            self.files.mounts = slot::handed(&wish.plan, ready)?;
        }
        let root = self.root(wish)?;
        let link = connection::attach(shared, self.process.parent.pid, &wish.spec);
        let (root, link) = tokio::join!(first_of(shared, root), link);
        let attached = self.settle().await;
        let root = match attached.and(root).and_then(|root| Ok((root, link?))) {
            Ok((root, link)) => {
                self.link = link;
                root
            }
            // If PID 1 has failed meanwhile, its own error is more precise.
            Err(error) => return Err(self.process.init.last_words().await.unwrap_or(error)),
        };
        self.process.timings.root = begin.elapsed();

        let mut handed = vec![root.as_fd()];
        handed.extend(self.files.mounts.iter().map(AsFd::as_fd));
        if let Err(error) = self.process.init.send(&ToInit::Go, &handed).await {
            return Err(self.process.init.last_words().await.unwrap_or(error));
        }
        Ok(environment)
    }

    /// Applies the spec's limits if they differ from the defaults, which an embryo is created with.
    async fn limit(&self, shared: &Arc<Shared>, wish: &Wish) -> Result<(), Error> {
        if wish.spec.limits == atoll_model::Limits::default() {
            return Ok(());
        }
        let usual = atoll_model::Limits::default();
        let from = resize::plan(shared, &wish.template, (&self.id, self.ids), usual)?;
        let from = (from.limits, usual.disk);
        let to = (wish.plan.limits.clone(), wish.spec.limits.disk);
        resize::enforce(shared, &self.id, &self.process.group, from, to).await
    }

    /// Blocking work that mounts the root.
    fn root(
        &mut self,
        wish: &Wish,
    ) -> Result<impl FnOnce() -> Result<Mounted, Error> + Send + 'static, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| internal("copy a descriptor", &error))
        };
        let (layer, directory) = (copy(&wish.template.root)?, copy(&self.files.opened)?);
        let authorities = wish.authorities.as_deref();
        let authorities = authorities.map(|authorities| copy(authorities.root()));
        let layers: Vec<OwnedFd> = authorities
            .into_iter()
            .chain([Ok(layer)])
            .collect::<Result<_, _>>()?;
        let user_namespace = self.process.parent.user_namespace.take();
        let (ids, nosuid, taken) = (self.ids, wish.plan.nosuid, wish.plan.layers);
        let durable = wish.spec.durable;
        Ok(move || {
            let layers: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
            rootfs::mount(&rootfs::Root {
                layers: &layers,
                directory: directory.as_fd(),
                user_namespace: user_namespace.as_ref().map(AsFd::as_fd),
                ids,
                nosuid,
                durable,
                taken,
            })
            .map_err(|error| jail(&error))
        })
    }

    fn into_sandbox(self, shared: &Shared, wish: Wish, environment: Arc<Variables>) -> Sandbox {
        let (files, process) = (self.files, self.process);
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
            timings: process.timings,
        };
        let mut record = Record::new(info, wish.spec, self.ids);
        record.pooled = wish.kind == Kind::Warm;
        record.layer.clone_from(&wish.template.meta.id);
        record.authorities = wish
            .authorities
            .as_deref()
            .map(|layer| layer.mounted().clone());
        record.linked = self.link.as_deref().map(Linked::from);
        let execs = shared.table(&record.info.id, &files.directory, !files.old);
        if let (Some(link), Some(_)) = (&self.link, &shared.instance.lasting) {
            link.keep_on_drop();
        }
        Sandbox::new(
            shared,
            Parts {
                record,
                environment,
                init: process.init,
                group: process.group,
                parent: process.parent,
                keeper: Arc::clone(&shared.keeper),
                execs,
                link: self.link,
                directory: files.directory,
                terminals: slot::terminals(&wish.plan, files.mounts),
                template: wish.template,
            },
        )
    }

    /// Ends PID 1 and removes everything of a sandbox that was not started.
    pub(crate) async fn give_back(mut self, shared: &Arc<Shared>) {
        let all = Arc::clone(shared);
        let given = async move {
            let _ = self.settle().await;
            self.process.give_back(&all).await;
            self.files.give_back(&all).await;
            all.instance.ranges.release(self.ids);
        };
        give_back(shared, given).await;
    }
}

/// A mounted root, and the descriptors that it was mounted from.
type Mounted = (OwnedFd, Vec<OwnedFd>);

/// Runs blocking work with two results and returns the first; the second is dropped on the blocking
/// thread.
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
        // The caller may have gone away.
        let _ = sender.send(first);
        drop(second);
        drop(aftermath);
    });
    let ended = |_| Err(Error::new(Code::Internal, "a thread ended before its work"));
    receiver.await.unwrap_or_else(ended)
}
