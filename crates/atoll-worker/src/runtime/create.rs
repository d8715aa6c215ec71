//! Sandboxes are made, or taken from those that are warm.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxSpec};

use super::{Entry, LocalRuntime, Place};
use crate::outlast;
use crate::sandbox::Sandbox;

/// Hears the id of a sandbox that is about to be made, and may still say no.
pub type Announce = Box<
    dyn FnOnce(SandboxId) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>
        + Send,
>;

/// Nobody has to know.
pub(crate) fn nobody() -> Announce {
    Box::new(|_| Box::pin(async { Ok(()) }))
}

impl LocalRuntime {
    /// Makes a sandbox; an exec works when this returns. A caller that goes away does not leave
    /// half of one.
    pub async fn create(&self, spec: SandboxSpec) -> Result<SandboxInfo, Error> {
        self.create_announced(spec, nobody()).await
    }

    /// The same, for a caller who has to know the sandbox's id before there is anything of it: whoever
    /// keeps books writes it down first. If that fails nothing is made.
    pub async fn create_announced(
        &self,
        spec: SandboxSpec,
        announce: Announce,
    ) -> Result<SandboxInfo, Error> {
        let runtime = self.clone();
        let work = async move {
            let _busy = runtime.shared.busy.begin();
            let _time = runtime.time("create");
            let shared = &runtime.shared;
            // Before a warm one is taken: not every one can be put back.
            crate::sandbox::check(shared, &spec)?;
            shared.network.check(&spec.policy)?;
            let begin = std::time::Instant::now();
            let fitted = match shared.pool.take(&spec) {
                Some(warm) => warm.fit(shared, &spec).await.map(Some),
                None => Ok(None),
            };
            let sandbox = match fitted {
                Ok(Some(warm)) => {
                    if let Err(error) = announce(warm.info().id).await {
                        warm.put_back(shared, &spec).await;
                        return Err(error);
                    }
                    warm.belong(shared, spec, begin).await?
                }
                Ok(None) => Sandbox::create(shared, spec, false, announce).await?,
                // It holds some memory already: a fresh one may be smaller.
                Err(error) if error.code == Code::Conflict => {
                    Sandbox::create(shared, spec, false, announce).await?
                }
                Err(error) => return Err(error),
            };
            let info = runtime.add(&sandbox);
            shared.pool.asked(&info.template);
            Ok(info)
        };
        outlast(work).await
    }

    /// Takes a sandbox with processes among ours.
    pub(super) fn add(&self, sandbox: &Arc<Sandbox>) -> SandboxInfo {
        let info = sandbox.info();
        let entry = Entry::new(Place::Live(Arc::clone(sandbox)));
        self.watch_over(&entry, sandbox);
        self.shared.note_record(&info.id);
        self.sandboxes().insert(info.id.clone(), entry);
        info
    }
}
