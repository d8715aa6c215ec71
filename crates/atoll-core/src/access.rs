//! May this caller touch this sandbox now, and does it run.

use std::sync::Arc;

use atoll_model::{Error, SandboxId, SandboxState, Scope};
use atoll_worker::LocalRuntime;

use crate::live_sandboxes::LiveSandbox;
use crate::{Core, RequestContext};

/// Somebody uses a sandbox, which is not idle as long as this lives; or only looks at it.
#[derive(Debug)]
pub struct SandboxAccess {
    activity: Activity,
    id: SandboxId,
    entry: Arc<LiveSandbox>,
    core: Core,
}

/// Whether it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Activity {
    Counted,
    Ignored,
}

impl SandboxAccess {
    fn new(core: &Core, entry: Arc<LiveSandbox>, activity: Activity) -> Self {
        if activity == Activity::Counted {
            entry.begin_use();
        }
        Self {
            activity,
            id: entry.read(|row| row.id.clone()),
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

    pub(crate) fn entry(&self) -> &LiveSandbox {
        &self.entry
    }

    /// Lets one that was paused meanwhile go on, if a use may do that. Otherwise what is said to it waits.
    pub async fn resume_if_paused(&self) -> Result<(), Error> {
        let auto_resumes = self.entry.read(|row| row.lifetime.auto_resume);
        if auto_resumes && self.entry.effective_state() == SandboxState::Paused {
            self.core.resume_live(&self.entry, None).await?;
        }
        Ok(())
    }

    /// Where the sandbox is in its life now.
    pub fn state(&self) -> SandboxState {
        self.entry.read(|row| row.state)
    }

    /// Whether the sandbox has ended meanwhile, or is about to.
    pub fn has_ended(&self) -> bool {
        use SandboxState::{Paused, Running};
        let now = self.runtime().get(&self.id);
        self.entry.read(|row| row.deleted_at.is_some())
            || !now.is_ok_and(|now| matches!(now.state, Running | Paused))
    }

    /// Whether the sandbox has ended and no request starts it again. Waits for a change of its state under way.
    pub async fn is_gone(&self) -> bool {
        use SandboxState::{Failed, Stopped};
        let is_deleted = || self.entry.read(|row| row.deleted_at.is_some());
        if is_deleted() {
            return true;
        }
        let _settled = self.entry.transition_lock.lock().await;
        let is_down = |state| matches!(state, Stopped | Failed);
        is_deleted()
            || self
                .entry
                .read(|row| is_down(row.state) && !row.lifetime.auto_resume)
    }

    /// It is being used right now, for uses that take long.
    pub fn record_activity(&self) {
        self.entry.record_activity();
    }
}

impl Drop for SandboxAccess {
    fn drop(&mut self) {
        if self.activity == Activity::Counted {
            self.entry.end_use();
        }
    }
}

impl Core {
    /// Lets a caller use a sandbox; one that is paused goes on, if it may.
    pub async fn open_sandbox(
        &self,
        context: &RequestContext,
        name: &str,
        scope: Scope,
    ) -> Result<SandboxAccess, Error> {
        context.require(scope)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        self.open_live(entry).await
    }

    pub(crate) async fn open_live(&self, entry: Arc<LiveSandbox>) -> Result<SandboxAccess, Error> {
        // The use first, then the state: who ends the idle shows that first, and then looks for uses.
        let used = SandboxAccess::new(self, entry, Activity::Counted);
        let auto_resumes = used.entry.read(|row| row.lifetime.auto_resume);
        match used.entry.effective_state() {
            SandboxState::Running => Ok(used),
            SandboxState::Paused if auto_resumes => {
                self.resume_live(&used.entry, None).await?;
                Ok(used)
            }
            state => Err(state.state_error("used")),
        }
    }

    /// Lets a caller look at a sandbox in whatever state: what it uses, the logs of its commands. That is no use of
    /// it.
    pub fn peek(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error> {
        self.at(context, name, Activity::Ignored)
    }

    /// Lets a caller follow what happens in a sandbox in whatever state, which holds it as a use does.
    pub fn observe(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error> {
        self.at(context, name, Activity::Counted)
    }

    fn at(
        &self,
        context: &RequestContext,
        name: &str,
        activity: Activity,
    ) -> Result<SandboxAccess, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        Ok(SandboxAccess::new(self, entry, activity))
    }
}
