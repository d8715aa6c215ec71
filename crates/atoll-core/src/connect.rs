//! Somebody wants a sandbox to run, or to sleep, whatever it does now: one decision, made while nobody else changes it.

use atoll_model::{Code, Error, ExpiryAction, SandboxState, Scope};
use atoll_store::SandboxRow;

use crate::ledger::Held;
use crate::sandboxes::{always, check_timeout, microseconds};
use crate::{Context, Core, SandboxView, outlast};

/// How a sandbox is to run.
#[derive(Debug, Clone, Copy)]
pub struct Connect {
    /// For at least so many seconds.
    pub seconds: u32,
    /// What is paused goes on; if not, it boots.
    pub with_memory: bool,
    /// One that runs is refused.
    pub only_asleep: bool,
    /// What happens at its end from now on; `None` stays.
    pub on_timeout: Option<ExpiryAction>,
}

/// How a sandbox sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    /// It is paused.
    WithMemory,
    /// It is stopped.
    FilesOnly,
}

/// What it did before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// It ran.
    Ran,
    /// It was paused or stopped.
    Slept,
}

impl Core {
    /// Makes a sandbox run if it does not. What somebody else does to it just now is waited for; the end of one that
    /// runs is never nearer than before.
    pub async fn connect(
        &self,
        context: &Context,
        name: &str,
        asked: Connect,
    ) -> Result<(SandboxView, Before), Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, Some(asked.seconds))?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        let core = self.clone();
        outlast(async move {
            let held = core.inner.ledger.hold(entry).await.map_err(deleted)?;
            core.connect_held(&held, asked).await
        })
        .await
    }

    /// Pauses a sandbox, with its memory or without, if it does not sleep already. Of two who ask at once one is told
    /// that it ran.
    pub async fn put_to_sleep(
        &self,
        context: &Context,
        name: &str,
        how: Sleep,
    ) -> Result<Before, Error> {
        context.require(Scope::Sandboxes)?;
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        let core = self.clone();
        outlast(async move {
            let held = core.inner.ledger.hold(entry).await?;
            match (held.entry.with(|row| row.state), how) {
                (SandboxState::Paused | SandboxState::Stopped, _) => return Ok(Before::Slept),
                (_, Sleep::WithMemory) => core.pause_held(&held, always()).await?,
                (_, Sleep::FilesOnly) => core.stop_held(&held, always(), None).await?,
            };
            Ok(Before::Ran)
        })
        .await
    }

    async fn connect_held(
        &self,
        held: &Held,
        asked: Connect,
    ) -> Result<(SandboxView, Before), Error> {
        let entry = &held.entry;
        let state = entry.with(|row| row.state);
        let before = match state {
            SandboxState::Running if asked.only_asleep => return Err(state.state_error("resumed")),
            SandboxState::Running => Before::Ran,
            SandboxState::Paused if asked.with_memory => {
                self.resume_held(held, Some(Some(asked.seconds))).await?;
                Before::Slept
            }
            _ => {
                if state == SandboxState::Paused {
                    self.stop_held(held, always(), None).await?;
                }
                self.start_held(held).await?;
                Before::Slept
            }
        };
        let change = |row: &mut SandboxRow| {
            let end = self.now() + microseconds(asked.seconds);
            row.end_at = match state {
                SandboxState::Running => row.end_at.map(|set| set.max(end)),
                SandboxState::Paused if asked.with_memory => row.end_at,
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
        let written = entry.write(&self.inner.store, change);
        let row = written.await?;
        self.inner.times.notify_one();
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
