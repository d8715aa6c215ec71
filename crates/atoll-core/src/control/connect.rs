//! E2B's connect and pause: bring a sandbox into a state from whatever state it is in.
//!
//! The current state is read and changed under one hold of the transition lock.

use atoll_model::{Code, Error, ExpiryAction, SandboxState, Scope};
use atoll_store::SandboxRow;

use crate::control::sandboxes::{check_timeout, microseconds};
use crate::live_sandboxes::LockedSandbox;
use crate::{Core, RequestContext, SandboxView, run_to_completion};

/// Options of [`Core::connect`].
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Minimum time to expiry, in seconds.
    pub seconds: u32,
    /// Whether a paused sandbox is resumed. Otherwise it is stopped and started.
    pub keep_memory: bool,
    /// Whether a running sandbox is an error.
    pub require_suspended: bool,
    /// New action at the end of the timeout. `None` keeps the current one.
    pub on_timeout: Option<ExpiryAction>,
}

/// How [`Core::suspend`] suspends a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseMode {
    /// Pause: keep the processes.
    Memory,
    /// Stop: keep only the files.
    FilesOnly,
}

/// State of the sandbox before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorState {
    /// Running.
    Running,
    /// Paused or stopped.
    Suspended,
}

impl Core {
    /// Makes a sandbox run. Waits for a transition in progress. The expiry of a running sandbox is only moved later.
    pub async fn connect(
        &self,
        context: &RequestContext,
        name: &str,
        options: ConnectOptions,
    ) -> Result<(SandboxView, PriorState), Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, Some(options.seconds))?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.lock(entry).await.map_err(deleted)?;
            core.connect_locked(&locked, options).await
        })
        .await
    }

    /// Pauses or stops a sandbox unless it is paused or stopped. Of two concurrent calls, one returns
    /// [`PriorState::Running`].
    pub async fn suspend(
        &self,
        context: &RequestContext,
        name: &str,
        mode: PauseMode,
    ) -> Result<PriorState, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.lock(entry).await?;
            match (locked.entry.read(|row| row.state), mode) {
                (SandboxState::Paused | SandboxState::Stopped, _) => {
                    return Ok(PriorState::Suspended);
                }
                (_, PauseMode::Memory) => core.pause_locked(&locked).await?,
                (_, PauseMode::FilesOnly) => core.stop_locked(&locked).await?,
            };
            Ok(PriorState::Running)
        })
        .await
    }

    async fn connect_locked(
        &self,
        locked: &LockedSandbox,
        options: ConnectOptions,
    ) -> Result<(SandboxView, PriorState), Error> {
        let entry = &locked.entry;
        let state = entry.read(|row| row.state);
        let before = match state {
            SandboxState::Running if options.require_suspended => {
                return Err(state.state_error("resumed"));
            }
            SandboxState::Running => PriorState::Running,
            SandboxState::Paused if options.keep_memory => {
                self.resume_locked(locked, Some(Some(options.seconds)))
                    .await?;
                PriorState::Suspended
            }
            _ => {
                if state == SandboxState::Paused {
                    self.stop_locked(locked).await?;
                }
                self.start_locked(locked).await?;
                PriorState::Suspended
            }
        };
        let change = |row: &mut SandboxRow| {
            let end = self.now() + microseconds(options.seconds);
            row.end_at = match state {
                SandboxState::Running => row.end_at.map(|set| set.max(end)),
                SandboxState::Paused if options.keep_memory => row.end_at,
                _ => Some(end),
            };
            row.lifetime.on_timeout = options.on_timeout.unwrap_or(row.lifetime.on_timeout);
        };
        let row = entry.row();
        let mut wanted = row.clone();
        change(&mut wanted);
        if wanted == row {
            return Ok((row.into(), before));
        }
        let written = entry.update(&self.inner.store, change);
        let row = written.await?;
        self.push_deadlines(&row).await?;
        Ok((row.into(), before))
    }
}

/// Converts 404 to 409: the sandbox existed at the beginning of the call and was deleted by another one.
fn deleted(error: Error) -> Error {
    match error.code {
        Code::SandboxNotFound => Error::new(Code::Conflict, "the sandbox is being deleted"),
        _ => error,
    }
}
