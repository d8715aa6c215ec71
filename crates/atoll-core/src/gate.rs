//! May this caller touch this sandbox now, and does it run.

use std::sync::Arc;

use atoll_model::{Error, SandboxId, SandboxState, Scope};
use atoll_worker::LocalRuntime;

use crate::ledger::Entry;
use crate::{Context, Core};

/// Somebody uses a sandbox: as long as this lives it is not idle.
#[derive(Debug)]
pub struct Use {
    id: SandboxId,
    entry: Arc<Entry>,
    runtime: LocalRuntime,
}

impl Use {
    /// The sandbox.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// What runs it.
    pub fn runtime(&self) -> &LocalRuntime {
        &self.runtime
    }

    /// It is being used right now, for uses that take long.
    pub fn touch(&self) {
        self.entry.touch();
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.entry.end_use();
    }
}

impl Core {
    /// Lets a caller use a sandbox; one that is paused goes on, if it may.
    pub async fn enter(&self, context: &Context, name: &str, scope: Scope) -> Result<Use, Error> {
        context.require(scope)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        let (id, state, wakes) =
            entry.with(|row| (row.id.clone(), row.state, row.lifetime.auto_resume));
        entry.begin_use();
        let used = Use {
            id,
            entry,
            runtime: self.inner.runtime.clone(),
        };
        match state {
            SandboxState::Running => Ok(used),
            SandboxState::Paused if wakes => {
                self.resume_entry(&used.entry, None).await?;
                Ok(used)
            }
            state => Err(state.refusal("used")),
        }
    }

    /// Lets a caller look at what is left of a sandbox in whatever state: the logs of its commands.
    pub fn look(&self, context: &Context, name: &str) -> Result<Use, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        entry.begin_use();
        Ok(Use {
            id: entry.with(|row| row.id.clone()),
            entry,
            runtime: self.inner.runtime.clone(),
        })
    }
}
