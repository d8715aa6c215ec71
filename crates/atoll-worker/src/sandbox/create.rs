//! Creation and start of sandboxes.
//!
//! ```text
//! slot    ids, control groups                   (meanwhile: directory and first mounts)
//! clone   keeper: PID 1 in its namespaces, then in the v1 limits: an embryo
//! root    overlay with PID 1's ids              (meanwhile: PID 1 prepares its mounts)
//! start   root and mounts attached, confined, ready
//! ```
//! The steps up to the embryo do not depend on the request and can be done in advance. A failure at
//! any step undoes the steps before it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, SandboxId, SandboxSpec};

use super::embryo::Embryo;
use super::planned::{self, Origin, PlannedSandbox};
use super::{DEVPTS_REQUEST_ID, Record, Sandbox, run_blocking};
use crate::error::jail;
use crate::init_channel::sandbox_ended;
use crate::runtime::{BeforeCreate, RuntimeState};
use crate::template::Template;

/// Time for PID 1 to set up the sandbox.
const START_TIMEOUT: Duration = Duration::from_secs(20);

impl Sandbox {
    /// Creates a sandbox, for a request or for the warm pool. If it fails, nothing is left of it.
    pub(crate) async fn create(
        shared: &Arc<RuntimeState>,
        spec: SandboxSpec,
        is_pooled: bool,
        before_create: BeforeCreate,
    ) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let template = {
            let shared = Arc::clone(shared);
            run_blocking(move || {
                planned::check(&shared, &spec, None).map(|template| (spec, template))
            })
            .await?
        };
        let (spec, template) = template;
        // The storage of an embryo has the default size.
        let has_default_disk = spec.limits.disk == atoll_model::Limits::default().disk;
        if has_default_disk && let Some(embryo) = shared.embryo_pool.take() {
            let (id, ids) = (embryo.id.clone(), embryo.ids);
            let planned = PlannedSandbox::new(
                shared,
                id.clone(),
                ids,
                spec,
                template,
                Origin::for_create(is_pooled),
            );
            let allowed = before_create(id).await;
            return match allowed.and(planned) {
                Ok(planned) => embryo.start(shared, planned, begin).await,
                Err(error) => {
                    embryo.discard(shared).await;
                    Err(error)
                }
            };
        }
        let (id, origin) = (SandboxId::random(), Origin::for_create(is_pooled));
        before_create(id.clone()).await?;
        Self::build(shared, id, spec, template, origin, begin).await
    }

    /// Starts a stopped sandbox on its existing files.
    pub(crate) async fn start(
        shared: &Arc<RuntimeState>,
        record: Record,
    ) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let (info, spec, layer) = (record.info, record.spec, record.layer);
        let (spec, template) = {
            let shared = Arc::clone(shared);
            let check =
                move || planned::check(&shared, &spec, layer.as_deref()).map(|found| (spec, found));
            run_blocking(check).await?
        };
        let origin = Origin::Restart(info.created_at);
        Self::build(shared, info.id, spec, template, origin, begin).await
    }

    /// Waits until PID 1 is ready, and writes the record.
    pub(super) async fn finish_start(
        self: &Arc<Self>,
        shared: &RuntimeState,
        origin: Origin,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        self.ready().await?;
        self.update_record(|record| record.info.timings.start = begin.elapsed())?;
        // For the next server; an ephemeral instance has none.
        if let (Some(terminals), Some(_)) = (&self.terminals, &shared.instance.data_lock) {
            let _ = self.hold(DEVPTS_REQUEST_ID, &[terminals.as_fd()]).await;
        }
        if origin == Origin::Pool {
            crate::exec::start::warm_up(self).await;
        }
        match self.write_resolv_conf().await {
            // Programs may have changed its files; that must not prevent a restart.
            Err(error) if !matches!(origin, Origin::Restart(_)) => Err(error),
            _ => Ok(()),
        }
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut exit_status = self.exit_status.clone();
        tokio::select! {
            ready = self.init.ready() => ready,
            // Its last message may not have been read yet.
            () = async { let _ = exit_status.wait_for(Option::is_some).await; } => {
                self.init.ready().await?;
                Err(sandbox_ended())
            }
            () = tokio::time::sleep(START_TIMEOUT) => {
                Err(Error::new(Code::Timeout, format!("the sandbox was not ready after {START_TIMEOUT:?}"))
                    .remedy("try again; if it happens often, this machine is overloaded"))
            }
        }
    }

    async fn build(
        shared: &Arc<RuntimeState>,
        id: SandboxId,
        spec: SandboxSpec,
        template: Template,
        origin: Origin,
        begin: Instant,
    ) -> Result<Arc<Self>, Error> {
        let ids = shared.instance.ranges.claim();
        let ids = ids.map_err(|error| jail(&error))?;
        let embryo = async {
            let planned = PlannedSandbox::new(shared, id, ids, spec, template, origin)?;
            let embryo = Embryo::create(shared, &planned, begin).await?;
            Ok((embryo, planned))
        };
        match embryo.await {
            Ok((embryo, planned)) => embryo.start(shared, planned, begin).await,
            Err(error) => {
                shared.instance.ranges.release(ids);
                Err(error)
            }
        }
    }
}
