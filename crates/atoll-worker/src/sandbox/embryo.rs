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

use super::network::{self, LinkRecord};
use super::planned::{Origin, PlannedSandbox};
use super::process::Process;
use super::slot::{self, SlotFiles};
use super::{Parts, Record, Sandbox, Variables, resize, run_blocking, spawn_cleanup, variables};
use crate::authorities::Layer;
use crate::error::{internal, jail};
use crate::network::Link;
use crate::runtime::RuntimeState;
use crate::runtime::activity::DeadlineRecord;

/// A PID 1 in its namespaces and limits that waits for its configuration.
#[derive(Debug)]
pub(crate) struct Embryo {
    pub(super) id: SandboxId,
    pub(super) ids: IdRange,
    files: SlotFiles,
    process: Process,
    /// `None` if its network is `none`, and before it is configured.
    link: Option<Arc<Link>>,
    /// Attaches PID 1 to the v1 control groups.
    attached: JoinHandle<Result<(), Error>>,
}

impl Embryo {
    /// Creates an embryo for a planned sandbox.
    pub(super) async fn create(
        shared: &Arc<RuntimeState>,
        planned: &PlannedSandbox,
        begin: Instant,
    ) -> Result<Self, Error> {
        let boot = ToInit::Boot(planned.plan.boot());
        Self::spawn(shared, planned, Some(boot), begin).await
    }

    /// Creates an embryo for the pool, with the default plan.
    pub(crate) async fn prepare(shared: &Arc<RuntimeState>) -> Result<Self, Error> {
        let planned = {
            let shared = Arc::clone(shared);
            run_blocking(move || PlannedSandbox::for_embryo(&shared)).await?
        };
        let embryo = Self::spawn(shared, &planned, None, Instant::now()).await;
        embryo.inspect_err(|_| shared.instance.ranges.release(planned.ids))
    }

    async fn spawn(
        shared: &Arc<RuntimeState>,
        planned: &PlannedSandbox,
        boot: Option<ToInit>,
        begin: Instant,
    ) -> Result<Self, Error> {
        let files = {
            let (shared, id) = (Arc::clone(shared), planned.id.clone());
            let (plan, disk) = (Arc::clone(&planned.plan), planned.spec.limits.disk);
            let preexisting = matches!(planned.origin, Origin::Restart(_));
            run_blocking(move || SlotFiles::create(&shared, id, &plan, disk, preexisting))
        };
        let process = Process::create(shared, planned, boot, begin);
        // The two are independent.
        match tokio::join!(files, process) {
            (Ok(files), Ok(process)) => {
                let (group, pid) = (process.group.clone(), process.pid1.pid);
                let attach = run_blocking(move || group.attach(pid).map_err(|error| jail(&error)));
                Ok(Self {
                    id: planned.id.clone(),
                    ids: planned.ids,
                    files,
                    process,
                    link: None,
                    attached: tokio::spawn(attach),
                })
            }
            (Ok(files), Err(error)) => {
                let all = Arc::clone(shared);
                spawn_cleanup(shared, async move { files.discard(&all).await }).await;
                Err(error)
            }
            (Err(error), process) => {
                if let Ok(process) = process {
                    let all = Arc::clone(shared);
                    spawn_cleanup(shared, async move { process.discard(&all).await }).await;
                }
                Err(error)
            }
        }
    }

    /// Waits until PID 1 is in its control groups.
    pub(crate) async fn wait_attached(&mut self) -> Result<(), Error> {
        match (&mut self.attached).await {
            Ok(attached) => {
                self.attached = tokio::spawn(async { Ok(()) });
                attached
            }
            Err(error) => Err(internal("attach PID 1", &error)),
        }
    }

    /// Whether PID 1 still runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.process.pid1.exit_status.borrow().is_none()
    }

    pub(super) async fn start(
        mut self,
        shared: &Arc<RuntimeState>,
        planned: PlannedSandbox,
        begin: Instant,
    ) -> Result<Arc<Sandbox>, Error> {
        // An embryo that was created for this sandbox has its own timings.
        if !self.process.boot_sent {
            self.process.timings = Timings {
                slot: begin.elapsed(),
                ..Timings::default()
            };
        }
        let environment = match self.configure(shared, &planned).await {
            Ok(environment) => environment,
            Err(error) => {
                self.discard(shared).await;
                return Err(error);
            }
        };
        let (origin, preexisting) = (planned.origin, self.files.preexisting);
        let sandbox = Arc::new(self.into_sandbox(shared, planned, environment));
        match sandbox.finish_start(shared, origin).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                if preexisting {
                    let _ = sandbox.stop(shared).await;
                } else {
                    sandbox.discard(shared).await;
                }
                Err(error)
            }
        }
    }

    /// Sends PID 1 its configuration, root and mounts; returns the variables of its commands.
    async fn configure(
        &mut self,
        shared: &Arc<RuntimeState>,
        planned: &PlannedSandbox,
    ) -> Result<Arc<Variables>, Error> {
        let layer = planned.authorities.as_deref().map(Layer::record);
        let environment = variables(&planned.template, layer, &planned.spec)?;
        let begin = Instant::now();
        if !self.process.boot_sent {
            self.process
                .init
                .send(&ToInit::Boot(planned.plan.boot()), &[])
                .await?;
            self.apply_limits(shared, planned).await?;
            let ready = std::mem::take(&mut self.files.mounts);
            self.files.mounts = slot::prepare_mounts(&planned.plan, ready)?;
        }
        let root = self.mount_root(planned)?;
        let link = network::attach(shared, self.process.pid1.pid, &planned.spec);
        let (root, link) = tokio::join!(spawn_blocking_first(shared, root), link);
        let attached = self.wait_attached().await;
        let root = match attached.and(root).and_then(|root| Ok((root, link?))) {
            Ok((root, link)) => {
                self.link = link;
                root
            }
            // If PID 1 has failed meanwhile, its own error is more precise.
            Err(error) => return Err(self.process.init.startup_error().await.unwrap_or(error)),
        };
        self.process.timings.root = begin.elapsed();

        let mut mounts = vec![root.as_fd()];
        mounts.extend(self.files.mounts.iter().map(AsFd::as_fd));
        if let Err(error) = self.process.init.send(&ToInit::Go, &mounts).await {
            return Err(self.process.init.startup_error().await.unwrap_or(error));
        }
        Ok(environment)
    }

    /// Applies the spec's limits if they differ from the defaults, which an embryo is created with.
    async fn apply_limits(
        &self,
        shared: &Arc<RuntimeState>,
        planned: &PlannedSandbox,
    ) -> Result<(), Error> {
        if planned.spec.limits == atoll_model::Limits::default() {
            return Ok(());
        }
        let default = atoll_model::Limits::default();
        let from = resize::plan(shared, &planned.template, (&self.id, self.ids), default)?;
        let from = (from.limits, default.disk);
        let to = (planned.plan.limits.clone(), planned.spec.limits.disk);
        resize::enforce(shared, &self.id, &self.process.group, from, to).await
    }

    /// Blocking work that mounts the root.
    fn mount_root(
        &mut self,
        planned: &PlannedSandbox,
    ) -> Result<impl FnOnce() -> Result<MountedRoot, Error> + Send + 'static, Error> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|error| internal("copy a descriptor", &error))
        };
        let (layer, directory) = (
            copy(&planned.template.root)?,
            copy(&self.files.storage_dir)?,
        );
        let authorities = planned.authorities.as_deref();
        let authorities = authorities.map(|authorities| copy(authorities.root()));
        let layers: Vec<OwnedFd> = authorities
            .into_iter()
            .chain([Ok(layer)])
            .collect::<Result<_, _>>()?;
        let user_namespace = self.process.pid1.user_namespace.take();
        let (ids, nosuid, taken) = (self.ids, planned.plan.nosuid, planned.plan.layers);
        let durable = planned.spec.durable;
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

    fn into_sandbox(
        self,
        shared: &RuntimeState,
        planned: PlannedSandbox,
        environment: Arc<Variables>,
    ) -> Sandbox {
        let (files, process) = (self.files, self.process);
        let info = SandboxInfo {
            id: self.id,
            template: planned.spec.template.clone(),
            state: SandboxState::Running,
            reason: None,
            limits: planned.spec.limits,
            network: planned.spec.network,
            created_at: match planned.origin {
                Origin::Restart(since) => since,
                _ => crate::exec::now(),
            },
            timings: process.timings,
            awaits_deletion: false,
            deadlines: None,
        };
        let is_restart = matches!(planned.origin, Origin::Restart(_));
        let mut record = Record::new(info, planned.spec, self.ids);
        if is_restart {
            record.deadlines = record.deadlines.map(DeadlineRecord::restarted);
        }
        record.is_pooled = planned.origin == Origin::Pool;
        record.layer.clone_from(&planned.template.meta.id);
        record.authorities = planned
            .authorities
            .as_deref()
            .map(|layer| layer.record().clone());
        record.linked = self.link.as_deref().map(LinkRecord::from);
        let execs = shared.table(&record.info.id, &files.directory, !files.preexisting);
        if let (Some(link), Some(_)) = (&self.link, &shared.instance.data_lock) {
            link.keep_on_drop();
        }
        Sandbox::new(
            shared,
            Parts {
                record,
                environment,
                init: process.init,
                group: process.group,
                process: process.pid1,
                keeper: Arc::clone(&shared.keeper),
                execs,
                link: self.link,
                directory: files.directory,
                terminals: slot::find_devpts(&planned.plan, files.mounts),
                template: planned.template,
            },
        )
    }

    /// Ends PID 1 and removes everything of a sandbox that was not started.
    pub(crate) async fn discard(mut self, shared: &Arc<RuntimeState>) {
        let all = Arc::clone(shared);
        let discarded = async move {
            let _ = self.wait_attached().await;
            self.process.discard(&all).await;
            self.files.discard(&all).await;
            all.instance.ranges.release(self.ids);
        };
        spawn_cleanup(shared, discarded).await;
    }
}

/// A mounted root, and the descriptors that it was mounted from.
type MountedRoot = (OwnedFd, Vec<OwnedFd>);

/// Runs blocking work with two results and returns the first; the second is dropped on the blocking
/// thread.
async fn spawn_blocking_first<A: Send + 'static, B>(
    shared: &RuntimeState,
    work: impl FnOnce() -> Result<(A, B), Error> + Send + 'static,
) -> Result<A, Error> {
    let cleanup = shared.cleanup.begin();
    let (sender, receiver) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let (first, second) = match work() {
            Ok((first, second)) => (Ok(first), Some(second)),
            Err(error) => (Err(error), None),
        };
        // The caller may have gone away.
        let _ = sender.send(first);
        drop(second);
        drop(cleanup);
    });
    let lost = |_| Err(Error::new(Code::Internal, "a thread ended before its work"));
    receiver.await.unwrap_or_else(lost)
}
