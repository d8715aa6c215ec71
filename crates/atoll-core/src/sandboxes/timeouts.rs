//! How long a sandbox lives: within its org's limits, from when it begins to run, and longer if somebody says so.

use atoll_model::{Error, Lifetime, Org, SandboxState, Scope};

use super::SandboxView;
use crate::{Core, RequestContext};

/// Times are counted in them.
pub(crate) fn microseconds(seconds: u32) -> i64 {
    i64::from(seconds) * 1_000_000
}

/// When a sandbox that begins to run now must end.
pub(crate) fn end_at(lifetime: &Lifetime, now: i64) -> Option<i64> {
    let seconds = lifetime.timeout?;
    Some(now + microseconds(seconds))
}

/// How long a sandbox lives whose own time is none, in seconds, when it runs again.
const MIN_RESTART_TIMEOUT_SECS: u32 = 300;

/// When a life that begins again ends. With no time at all it would be over before anybody could use it.
pub(crate) fn end_at_after_restart(lifetime: &Lifetime, now: i64) -> Option<i64> {
    let seconds = lifetime.timeout?;
    let seconds = if seconds == 0 {
        MIN_RESTART_TIMEOUT_SECS
    } else {
        seconds
    };
    Some(now + microseconds(seconds))
}

/// Refuses a lifetime that the org does not allow.
pub(crate) fn check_timeout(org: &Org, timeout: Option<u32>) -> Result<(), Error> {
    let Some(most) = org.max_timeout else {
        return Ok(());
    };
    if timeout.is_some_and(|seconds| seconds <= most) {
        return Ok(());
    }
    Err(Error::invalid(
        "timeout",
        match timeout {
            Some(seconds) => format!("a timeout of {seconds} s is more than your org's {most} s"),
            None => format!("your org's sandboxes live for at most {most} s: 0, for ever, is more"),
        },
        format!("ask for at most {most}, or have the org's maxTimeout raised"),
    )
    .detail("max", most.to_string()))
}

impl Core {
    /// Sets how long it lives from now; `None` is for ever.
    pub async fn set_timeout(
        &self,
        context: &RequestContext,
        name: &str,
        timeout: Option<u32>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, timeout)?;
        let held = self.find_and_lock(context, name).await?;
        let entry = &held.entry;
        let written = entry.update(&self.inner.store, |row| {
            row.lifetime.timeout = timeout;
            match row.state {
                SandboxState::Paused => {
                    row.time_left = timeout.map(microseconds);
                }
                SandboxState::Running => row.end_at = end_at(&row.lifetime, self.now()),
                _ => {}
            }
        });
        let row = written.await?;
        self.inner.expiry_changed.notify_one();
        Ok(row.into())
    }

    /// Sees to it that it lives for so long from now, at least.
    pub async fn extend(
        &self,
        context: &RequestContext,
        name: &str,
        seconds: u32,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        check_timeout(&context.org, Some(seconds))?;
        let held = self.find_and_lock(context, name).await?;
        let entry = &held.entry;
        let row = entry.row();
        let end = || self.now() + microseconds(seconds);
        if row.end_at.is_none_or(|before| before >= end()) {
            return Ok(row.into());
        }
        let written = entry.update(&self.inner.store, |row| row.end_at = Some(end()));
        let row = written.await?;
        self.inner.expiry_changed.notify_one();
        Ok(row.into())
    }

    /// Counts as a use.
    pub fn keep_alive(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        entry.record_activity();
        Ok(entry.row().into())
    }
}
