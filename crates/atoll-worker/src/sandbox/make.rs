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

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, SandboxId, SandboxSpec};

use super::embryo::Embryo;
use super::wish::{self, Kind, Wish};
use super::{Record, Sandbox, TERMINALS, blocking};
use crate::error::jail;
use crate::init::gone;
use crate::runtime::{Announce, Shared};
use crate::template::Template;

/// How long PID 1 may take to become a sandbox.
const PATIENCE: Duration = Duration::from_secs(20);

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
            blocking(move || wish::check(&shared, &spec, None).map(|template| (spec, template)))
                .await?
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
            let check =
                move || wish::check(&shared, &spec, layer.as_deref()).map(|found| (spec, found));
            blocking(check).await?
        };
        let kind = Kind::Old(info.created_at);
        Self::make(shared, info.id, spec, template, kind, begin).await
    }

    /// Waits until PID 1 has become a sandbox, and writes it down.
    pub(super) async fn come_up(
        self: &Arc<Self>,
        shared: &Shared,
        kind: Kind,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        self.ready().await?;
        self.write_down(|info| info.timings.start = begin.elapsed())?;
        // For a later server, where there is one.
        if let (Some(terminals), Some(_)) = (&self.terminals, &shared.instance.lasting) {
            let _ = self.hold(TERMINALS, &[terminals.as_fd()]).await;
        }
        if kind == Kind::Warm {
            crate::exec::start::warm_up(self).await;
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
