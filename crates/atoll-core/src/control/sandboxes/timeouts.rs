//! Timeouts of sandboxes: computing `end_at`, checking the org's limit, setting and extending.

use atoll_model::runtime::Runtime;
use atoll_model::{Code, Deadlines, Error, Lifetime, Org, SandboxInfo, SandboxState, Scope};
use atoll_store::SandboxRow;

use super::SandboxView;
use crate::{Core, RequestContext};

/// Converts seconds to microseconds.
pub(crate) fn microseconds(seconds: u32) -> i64 {
    i64::from(seconds) * 1_000_000
}

/// Copies what the runtime enforces to the row.
pub(crate) fn copy_deadlines(row: &mut SandboxRow, info: &SandboxInfo) {
    if let Some(deadlines) = info.deadlines {
        (row.end_at, row.time_left) = (deadlines.end_at, deadlines.time_left);
    }
}

/// Timeout after a restart of a sandbox whose own timeout is 0.
const MIN_RESTART_TIMEOUT_SECS: u32 = 300;

/// Expiry of a sandbox that is restarted or resumed. A timeout of 0 would expire before it can be used.
pub(crate) fn end_at_after_restart(lifetime: &Lifetime, now: i64) -> Option<i64> {
    let seconds = lifetime.timeout?;
    let seconds = if seconds == 0 {
        MIN_RESTART_TIMEOUT_SECS
    } else {
        seconds
    };
    Some(now + microseconds(seconds))
}

/// Rejects a timeout that exceeds the maximum of the org.
pub(crate) fn check_timeout(org: &Org, timeout: Option<u32>) -> Result<(), Error> {
    let Some(max) = org.max_timeout else {
        return Ok(());
    };
    if timeout.is_some_and(|seconds| seconds <= max) {
        return Ok(());
    }
    Err(Error::invalid(
        "timeout",
        match timeout {
            Some(seconds) => format!("a timeout of {seconds} s is more than your org's {max} s"),
            None => format!("your org's sandboxes live for at most {max} s: 0, for ever, is more"),
        },
        format!("ask for at most {max}, or have the org's maxTimeout raised"),
    )
    .detail("max", max.to_string()))
}

impl Core {
    /// Sets the timeout, counted from now. `None`: no expiry.
    pub async fn set_timeout(
        &self,
        context: &RequestContext,
        name: &str,
        timeout: Option<u32>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, timeout)?;
        let locked = self.find_and_lock(context, name).await?;
        let entry = &locked.entry;
        let written = entry.update(&self.inner.store, |row| {
            row.lifetime.timeout = timeout;
            match row.state {
                SandboxState::Paused => {
                    row.time_left = timeout.map(microseconds);
                }
                SandboxState::Running => {
                    row.end_at = timeout.map(|seconds| self.now() + microseconds(seconds));
                }
                _ => {}
            }
        });
        let row = written.await?;
        self.push_deadlines(&row).await?;
        Ok(row.into())
    }

    /// Moves the expiry to at least this many seconds from now.
    pub async fn extend(
        &self,
        context: &RequestContext,
        name: &str,
        seconds: u32,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, Some(seconds))?;
        let locked = self.find_and_lock(context, name).await?;
        let entry = &locked.entry;
        let row = entry.row();
        let end = || self.now() + microseconds(seconds);
        if row.end_at.is_none_or(|before| before >= end()) {
            return Ok(row.into());
        }
        let written = entry.update(&self.inner.store, |row| row.end_at = Some(end()));
        let row = written.await?;
        self.push_deadlines(&row).await?;
        Ok(row.into())
    }

    /// Resets the idle timer.
    pub async fn keep_alive(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<SandboxView, Error> {
        let row = self.find_writable(context, name)?.row();
        match self.inner.runtime.keep_alive(&row.id).await {
            // A failed sandbox has no timer.
            Err(error) if error.code != Code::SandboxNotFound => Err(error),
            _ => Ok(row.into()),
        }
    }

    /// Gives the deadlines in a row to the runtime, which enforces them.
    pub(crate) async fn push_deadlines(&self, row: &SandboxRow) -> Result<(), Error> {
        push_deadlines(&*self.inner.runtime, row).await
    }
}

/// Gives the deadlines in a row to the runtime. A sandbox that the runtime does not have has none.
pub(crate) async fn push_deadlines(runtime: &dyn Runtime, row: &SandboxRow) -> Result<(), Error> {
    let has_processes = row.state.has_processes();
    let deadlines = Deadlines {
        lifetime: row.lifetime,
        end_at: row.end_at.filter(|_| has_processes),
        time_left: row.time_left,
    };
    match runtime.set_deadlines(&row.id, deadlines).await {
        Err(error) if error.code != Code::SandboxNotFound => Err(error),
        _ => Ok(()),
    }
}
