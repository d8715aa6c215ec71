//! Authorized access to one sandbox.
//!
//! [`SandboxAccess`] exists only after the caller's scope and org were checked. Access that counts as activity keeps the
//! sandbox from becoming idle until it is dropped.

use std::sync::Arc;

use async_trait::async_trait;
use atoll_model::runtime::{Runtime, UseGuard};
use atoll_model::{Code, Error, SandboxId, SandboxState, Scope};

use super::watchers::Watchers;
use crate::live_sandboxes::LiveSandbox;
use crate::{Core, RequestContext};

/// Decides whether a caller may use a sandbox, and opens it. The routes for commands, files, terminals and ports know a
/// sandbox only through this trait.
#[async_trait]
pub trait Access: std::fmt::Debug + Send + Sync {
    /// Opens a running sandbox. A paused one is resumed if it has `auto_resume`; any other state is an error.
    async fn open(
        &self,
        context: &RequestContext,
        name: &str,
        scope: Scope,
    ) -> Result<SandboxAccess, Error>;

    /// Opens a sandbox in any state for reading metadata, metrics or logs. Does not count as activity.
    async fn peek(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error>;

    /// Opens a sandbox in any state for a stream, which counts as activity until it is dropped.
    async fn observe(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error>;
}

/// Authorized access to a sandbox. It does not lock the sandbox: its state can change at any time.
#[derive(Debug)]
pub struct SandboxAccess {
    id: SandboxId,
    runtime: Arc<dyn Runtime>,
    /// Keeps the sandbox from becoming idle. `None` for access that does not count as activity.
    guard: Option<Box<dyn UseGuard>>,
    pub(super) watchers: Arc<Watchers>,
}

impl SandboxAccess {
    fn new(core: &Core, entry: &LiveSandbox, guard: Option<Box<dyn UseGuard>>) -> Self {
        Self {
            id: entry.read(|row| row.id.clone()),
            runtime: Arc::clone(&core.inner.runtime),
            guard,
            watchers: Arc::clone(&entry.watchers),
        }
    }

    /// The sandbox id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The runtime, for calls to the sandbox.
    pub fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    /// Resumes the sandbox if it was paused since and has `auto_resume`. Otherwise calls wait until it is resumed.
    pub async fn resume_if_paused(&self) -> Result<(), Error> {
        match self.runtime.open_use(&self.id).await {
            Err(error) if error.code != Code::SandboxPaused => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the sandbox was deleted, or its processes have exited or are being killed.
    pub async fn has_ended(&self) -> bool {
        let now = self.runtime.get(&self.id).await;
        !now.is_ok_and(|now| now.state.has_processes())
    }

    /// Whether the sandbox has ended and requests do not start it again. Waits for a state change in progress.
    pub async fn is_gone(&self) -> bool {
        let Ok(info) = self.runtime.get_settled(&self.id).await else {
            return true;
        };
        let starts_again = info.deadlines.is_some_and(|set| set.lifetime.auto_resume);
        info.awaits_deletion || (info.state == SandboxState::Stopped && !starts_again)
    }

    /// Resets the idle timer during long access.
    pub fn record_activity(&self) {
        if let Some(guard) = &self.guard {
            guard.record_activity();
        }
    }
}

/// Access by the rows of the store.
#[async_trait]
impl Access for Core {
    async fn open(
        &self,
        context: &RequestContext,
        name: &str,
        scope: Scope,
    ) -> Result<SandboxAccess, Error> {
        context.require(scope)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        self.open_live(&entry).await
    }

    async fn peek(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        Ok(SandboxAccess::new(self, &entry, None))
    }

    async fn observe(&self, context: &RequestContext, name: &str) -> Result<SandboxAccess, Error> {
        context.require(Scope::Read)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let guard = entry.read(|row| self.inner.runtime.count_use(&row.id));
        Ok(SandboxAccess::new(self, &entry, Some(guard)))
    }
}

impl Core {
    pub(crate) async fn open_live(&self, entry: &Arc<LiveSandbox>) -> Result<SandboxAccess, Error> {
        let id = entry.read(|row| row.id.clone());
        let opened = match self.inner.runtime.open_use(&id).await {
            Ok(opened) => opened,
            // It is being created or deleted, or has failed.
            Err(error) if error.code == Code::SandboxNotFound => {
                return Err(entry.read(|row| row.state.state_error("used")));
            }
            Err(error) => return Err(error),
        };
        if opened.was_resumed {
            // The row shows it before the caller continues.
            self.follow_runtime(entry).await;
        }
        Ok(SandboxAccess::new(self, entry, Some(opened.guard)))
    }
}
