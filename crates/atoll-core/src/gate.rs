//! May this caller touch this sandbox now, and does it run.

use std::sync::Arc;

use atoll_model::{Error, SandboxId, SandboxState, Scope};
use atoll_worker::LocalRuntime;

use crate::ledger::Entry;
use crate::{Context, Core};

/// Somebody uses a sandbox, which is not idle as long as this lives; or only looks at it.
#[derive(Debug)]
pub struct Use {
    kind: Kind,
    id: SandboxId,
    entry: Arc<Entry>,
    core: Core,
}

/// Whether it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Use,
    Look,
}

impl Use {
    fn new(core: &Core, entry: Arc<Entry>, kind: Kind) -> Self {
        if kind == Kind::Use {
            entry.begin_use();
        }
        Self {
            kind,
            id: entry.with(|row| row.id.clone()),
            entry,
            core: core.clone(),
        }
    }

    /// The sandbox.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// What runs it.
    pub fn runtime(&self) -> &LocalRuntime {
        self.core.runtime()
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Lets one that was paused meanwhile go on, if a use may do that. Otherwise what is said to it waits.
    pub async fn wake(&self) -> Result<(), Error> {
        let wakes = self.entry.with(|row| row.lifetime.auto_resume);
        if wakes && self.entry.state_in_use() == SandboxState::Paused {
            self.core.resume_entry(&self.entry, None).await?;
        }
        Ok(())
    }

    /// Where the sandbox is in its life now.
    pub fn state(&self) -> SandboxState {
        self.entry.with(|row| row.state)
    }

    /// Whether the sandbox has ended meanwhile, or is about to.
    pub fn is_over(&self) -> bool {
        use SandboxState::{Paused, Running};
        let now = self.runtime().get(&self.id);
        self.entry.with(|row| row.deleted_at.is_some())
            || !now.is_ok_and(|now| matches!(now.state, Running | Paused))
    }

    /// Whether the sandbox has ended and no request starts it again. Waits for a change of its state under way.
    pub async fn is_gone(&self) -> bool {
        use SandboxState::{Failed, Stopped};
        let is_deleted = || self.entry.with(|row| row.deleted_at.is_some());
        if is_deleted() {
            return true;
        }
        let _settled = self.entry.gate.lock().await;
        let is_down = |state| matches!(state, Stopped | Failed);
        is_deleted()
            || self
                .entry
                .with(|row| is_down(row.state) && !row.lifetime.auto_resume)
    }

    /// It is being used right now, for uses that take long.
    pub fn touch(&self) {
        self.entry.touch();
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if self.kind == Kind::Use {
            self.entry.end_use();
        }
    }
}

impl Core {
    /// Lets a caller use a sandbox; one that is paused goes on, if it may.
    pub async fn enter(&self, context: &Context, name: &str, scope: Scope) -> Result<Use, Error> {
        context.require(scope)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.enter_entry(entry).await
    }

    pub(crate) async fn enter_entry(&self, entry: Arc<Entry>) -> Result<Use, Error> {
        // The use first, then the state: who ends the idle shows that first, and then looks for uses.
        let used = Use::new(self, entry, Kind::Use);
        let wakes = used.entry.with(|row| row.lifetime.auto_resume);
        match used.entry.state_in_use() {
            SandboxState::Running => Ok(used),
            SandboxState::Paused if wakes => {
                self.resume_entry(&used.entry, None).await?;
                Ok(used)
            }
            state => Err(state.state_error("used")),
        }
    }

    /// Lets a caller look at a sandbox in whatever state: what it uses, the logs of its commands. That is no use of
    /// it.
    pub fn look(&self, context: &Context, name: &str) -> Result<Use, Error> {
        self.at(context, name, Kind::Look)
    }

    /// Lets a caller follow what happens in a sandbox in whatever state, which holds it as a use does.
    pub fn follow(&self, context: &Context, name: &str) -> Result<Use, Error> {
        self.at(context, name, Kind::Use)
    }

    fn at(&self, context: &Context, name: &str, kind: Kind) -> Result<Use, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        Ok(Use::new(self, entry, kind))
    }
}
