//! Authorized access to one sandbox.
//!
//! [`SandboxAccess`] exists only after the caller's scope and org were checked. Access with [`Activity::Counted`] keeps
//! the sandbox from becoming idle until it is dropped.

use std::sync::Arc;

use atoll_model::{Error, SandboxId, SandboxState, Scope};
use atoll_worker::LocalRuntime;

use crate::live_sandboxes::LiveSandbox;
use crate::{Core, RequestContext};

/// Authorized access to a sandbox. It does not lock the sandbox: its state can change at any time.
#[derive(Debug)]
pub struct SandboxAccess {
    activity: Activity,
    id: SandboxId,
    entry: Arc<LiveSandbox>,
    core: Core,
}

/// Whether access resets the idle timer.
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

    /// The sandbox id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The runtime, for calls to the sandbox.
    pub fn runtime(&self) -> &LocalRuntime {
        self.core.runtime()
    }

    pub(crate) fn entry(&self) -> &LiveSandbox {
        &self.entry
    }

    /// Resumes the sandbox if it was paused since and has `auto_resume`. Otherwise calls wait until it is resumed.
    pub async fn resume_if_paused(&self) -> Result<(), Error> {
        let auto_resumes = self.entry.read(|row| row.lifetime.auto_resume);
        if auto_resumes && self.entry.effective_state() == SandboxState::Paused {
            self.core.resume_live(&self.entry, None).await?;
        }
        Ok(())
    }

    /// The current state of the sandbox.
    pub fn state(&self) -> SandboxState {
        self.entry.read(|row| row.state)
    }

    /// Whether the sandbox was deleted, or its processes have exited or are being killed.
    pub fn has_ended(&self) -> bool {
        let now = self.runtime().get(&self.id);
        self.entry.read(|row| row.deleted_at.is_some())
            || !now.is_ok_and(|now| now.state.has_processes())
    }

    /// Whether the sandbox has ended and requests do not start it again. Waits for a transition in progress.
    pub async fn is_gone(&self) -> bool {
        use SandboxState::{Failed, Stopped};
        let is_deleted = || self.entry.read(|row| row.deleted_at.is_some());
        if is_deleted() {
            return true;
        }
        let _transition = self.entry.transition_lock.lock().await;
        let is_down = |state| matches!(state, Stopped | Failed);
        is_deleted()
            || self
                .entry
                .read(|row| is_down(row.state) && !row.lifetime.auto_resume)
    }

    /// Resets the idle timer during long access.
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
    /// Opens a running sandbox. A paused one is resumed if it has `auto_resume`; any other state is an error.
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
        // Count the use before reading the state: an idle expiry sets the state before it checks for uses.
        let access = SandboxAccess::new(self, entry, Activity::Counted);
        let auto_resumes = access.entry.read(|row| row.lifetime.auto_resume);
        match access.entry.effective_state() {
            SandboxState::Running => Ok(access),
            SandboxState::Paused if auto_resumes => {
                self.resume_live(&access.entry, None).await?;
                Ok(access)
            }
            state => Err(state.state_error("used")),
        }
    }

    /// Opens a sandbox in any state for reading metadata, metrics or logs. Does not count as activity.
    pub fn peek(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error> {
        self.access(context, name, Activity::Ignored)
    }

    /// Opens a sandbox in any state for a stream, which counts as activity until it is dropped.
    pub fn observe(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error> {
        self.access(context, name, Activity::Counted)
    }

    fn access(
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
