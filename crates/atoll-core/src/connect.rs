//! Somebody wants a sandbox to run, or to sleep, whatever it does now: one decision, made while nobody else changes it.

use atoll_model::{Code, Error, ExpiryAction, SandboxState, Scope};
use atoll_store::SandboxRow;

use crate::live_sandboxes::LockedSandbox;
use crate::sandboxes::{check_timeout, microseconds, unconditional};
use crate::{Core, RequestContext, SandboxView, run_to_completion};

/// How a sandbox is to run.
#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// For at least so many seconds.
    pub seconds: u32,
    /// What is paused goes on; if not, it boots.
    pub keep_memory: bool,
    /// One that runs is refused.
    pub require_suspended: bool,
    /// What happens at its end from now on; `None` stays.
    pub on_timeout: Option<ExpiryAction>,
}

/// How a sandbox sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseMode {
    /// It is paused.
    Memory,
    /// It is stopped.
    FilesOnly,
}

/// What it did before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PriorState {
    /// It ran.
    Running,
    /// It was paused or stopped.
    Suspended,
}

impl Core {
    /// Makes a sandbox run if it does not. What somebody else does to it just now is waited for; the end of one that
    /// runs is never nearer than before.
    pub async fn connect(
        &self,
        context: &RequestContext,
        name: &str,
        asked: ConnectOptions,
    ) -> Result<(SandboxView, PriorState), Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, Some(asked.seconds))?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let held = core.inner.sandboxes.lock(entry).await.map_err(deleted)?;
            core.connect_locked(&held, asked).await
        })
        .await
    }

    /// Pauses a sandbox, with its memory or without, if it does not sleep already. Of two who ask at once one is told
    /// that it ran.
    pub async fn suspend(
        &self,
        context: &RequestContext,
        name: &str,
        how: PauseMode,
    ) -> Result<PriorState, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let held = core.inner.sandboxes.lock(entry).await?;
            match (held.entry.read(|row| row.state), how) {
                (SandboxState::Paused | SandboxState::Stopped, _) => {
                    return Ok(PriorState::Suspended);
                }
                (_, PauseMode::Memory) => core.pause_locked(&held, unconditional()).await?,
                (_, PauseMode::FilesOnly) => core.stop_locked(&held, unconditional(), None).await?,
            };
            Ok(PriorState::Running)
        })
        .await
    }

    async fn connect_locked(
        &self,
        held: &LockedSandbox,
        asked: ConnectOptions,
    ) -> Result<(SandboxView, PriorState), Error> {
        let entry = &held.entry;
        let state = entry.read(|row| row.state);
        let before = match state {
            SandboxState::Running if asked.require_suspended => {
                return Err(state.state_error("resumed"));
            }
            SandboxState::Running => PriorState::Running,
            SandboxState::Paused if asked.keep_memory => {
                self.resume_locked(held, Some(Some(asked.seconds))).await?;
                PriorState::Suspended
            }
            _ => {
                if state == SandboxState::Paused {
                    self.stop_locked(held, unconditional(), None).await?;
                }
                self.start_locked(held).await?;
                PriorState::Suspended
            }
        };
        let change = |row: &mut SandboxRow| {
            let end = self.now() + microseconds(asked.seconds);
            row.end_at = match state {
                SandboxState::Running => row.end_at.map(|set| set.max(end)),
                SandboxState::Paused if asked.keep_memory => row.end_at,
                _ => Some(end),
            };
            row.lifetime.on_timeout = asked.on_timeout.unwrap_or(row.lifetime.on_timeout);
        };
        let row = entry.row();
        let mut wanted = row.clone();
        change(&mut wanted);
        if wanted == row {
            return Ok((row.into(), before));
        }
        let written = entry.update(&self.inner.store, change);
        let row = written.await?;
        self.inner.expiry_changed.notify_one();
        Ok((row.into(), before))
    }
}

/// It was there when somebody asked for it, and somebody else deleted it first.
fn deleted(error: Error) -> Error {
    match error.code {
        Code::SandboxNotFound => Error::new(Code::Conflict, "the sandbox is being deleted"),
        _ => error,
    }
}
