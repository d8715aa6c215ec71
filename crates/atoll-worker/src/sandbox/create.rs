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
use super::planned::{self, Kind, Wish};
use super::{Record, Sandbox, TERMINALS, blocking};
use crate::error::jail;
use crate::init_channel::gone;
use crate::runtime::{BeforeCreate, Shared};
use crate::template::Template;

/// Time for PID 1 to set up the sandbox.
const PATIENCE: Duration = Duration::from_secs(20);

impl Sandbox {
    /// Creates a sandbox, for a request or for the warm pool. If it fails, nothing is left of it.
    pub(crate) async fn create(
        shared: &Arc<Shared>,
        spec: SandboxSpec,
        pooled: bool,
        announce: BeforeCreate,
    ) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let template = {
            let shared = Arc::clone(shared);
            blocking(move || planned::check(&shared, &spec, None).map(|template| (spec, template)))
                .await?
        };
        let (spec, template) = template;
        // The storage of an embryo has the default size.
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

    /// Starts a stopped sandbox on its existing files.
    pub(crate) async fn start(shared: &Arc<Shared>, record: Record) -> Result<Arc<Self>, Error> {
        let begin = Instant::now();
        let (info, spec, layer) = (record.info, record.spec, record.layer);
        let (spec, template) = {
            let shared = Arc::clone(shared);
            let check =
                move || planned::check(&shared, &spec, layer.as_deref()).map(|found| (spec, found));
            blocking(check).await?
        };
        let kind = Kind::Old(info.created_at);
        Self::make(shared, info.id, spec, template, kind, begin).await
    }

    /// Waits until PID 1 is ready, and writes the record.
    pub(super) async fn come_up(
        self: &Arc<Self>,
        shared: &Shared,
        kind: Kind,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        self.ready().await?;
        self.write_down(|info| info.timings.start = begin.elapsed())?;
        // For the next server; an ephemeral instance has none.
        if let (Some(terminals), Some(_)) = (&self.terminals, &shared.instance.lasting) {
            let _ = self.hold(TERMINALS, &[terminals.as_fd()]).await;
        }
        if kind == Kind::Warm {
            crate::exec::start::warm_up(self).await;
        }
        match self.tell_names().await {
            // Programs may have changed its files; that must not prevent a restart.
            Err(error) if !matches!(kind, Kind::Old(_)) => Err(error),
            _ => Ok(()),
        }
    }

    async fn ready(&self) -> Result<(), Error> {
        let mut dying = self.died.clone();
        tokio::select! {
            ready = self.init.ready() => ready,
            // Its last message may not have been read yet.
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
