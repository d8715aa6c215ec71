//! Creation of sandboxes, from the warm pool if possible.

use std::sync::Arc;

use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxSpec};

use super::{EntryState, LocalRuntime, SandboxEntry};
use crate::run_to_completion;
use crate::sandbox::Sandbox;

/// Called with the id of a sandbox before it is created; an error cancels the create.
pub type BeforeCreate = Box<
    dyn FnOnce(SandboxId) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>
        + Send,
>;

/// A hook that does nothing.
pub(crate) fn no_hook() -> BeforeCreate {
    Box::new(|_| Box::pin(async { Ok(()) }))
}

impl LocalRuntime {
    /// Creates a sandbox and returns when an exec would work. If the caller goes away, the create
    /// still completes or is undone.
    pub async fn create(&self, spec: SandboxSpec) -> Result<SandboxInfo, Error> {
        self.create_with_hook(spec, no_hook()).await
    }

    /// Creates a sandbox whose id the caller has to store first. If the hook fails, nothing is
    /// created.
    pub async fn create_with_hook(
        &self,
        spec: SandboxSpec,
        before_create: BeforeCreate,
    ) -> Result<SandboxInfo, Error> {
        let runtime = self.clone();
        let work = async move {
            let _in_flight = runtime.shared.foreground.begin();
            let _time = runtime.time("create");
            let shared = &runtime.shared;
            // Before a warm sandbox is taken: not every one can be returned to the pool.
            crate::sandbox::check(shared, &spec)?;
            shared.network.check(&spec.policy)?;
            let begin = std::time::Instant::now();
            let prepared = match shared.warm_pool.take(&spec) {
                Some(warm) => warm.apply_spec(shared, &spec).await.map(Some),
                None => Ok(None),
            };
            let sandbox = match prepared {
                Ok(Some(warm)) => {
                    if let Err(error) = before_create(warm.info().id).await {
                        warm.return_to_pool(shared, &spec).await;
                        return Err(error);
                    }
                    warm.claim(shared, spec, begin).await?
                }
                Ok(None) => Sandbox::create(shared, spec, false, before_create).await?,
                // The warm sandbox uses more memory than the limit allows; a new one may not.
                Err(error) if error.code == Code::Conflict => {
                    Sandbox::create(shared, spec, false, before_create).await?
                }
                Err(error) => return Err(error),
            };
            let info = runtime.add(&sandbox);
            shared.warm_pool.record_demand(&info.template);
            Ok(info)
        };
        run_to_completion(work).await
    }

    /// Adds a sandbox with processes to the table.
    pub(super) fn add(&self, sandbox: &Arc<Sandbox>) -> SandboxInfo {
        let info = sandbox.info();
        let entry = SandboxEntry::new(EntryState::Live(Arc::clone(sandbox)));
        self.watch_exit(&entry, sandbox);
        self.shared.note_record(&info.id);
        self.sandboxes().insert(info.id.clone(), entry);
        self.shared.deadlines_changed.notify_one();
        info
    }
}
