//! Timeouts of sandboxes: computing `end_at`, checking the org's limit, setting and extending.

use atoll_model::{Error, Lifetime, Org, SandboxState, Scope};

use super::SandboxView;
use crate::{Core, RequestContext};

/// Converts seconds to microseconds.
pub(crate) fn microseconds(seconds: u32) -> i64 {
    i64::from(seconds) * 1_000_000
}

/// Expiry of a sandbox that starts at a time.
pub(crate) fn end_at(lifetime: &Lifetime, now: i64) -> Option<i64> {
    let seconds = lifetime.timeout?;
    Some(now + microseconds(seconds))
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
                SandboxState::Running => row.end_at = end_at(&row.lifetime, self.now()),
                _ => {}
            }
        });
        let row = written.await?;
        self.inner.expiry_changed.notify_one();
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
        self.inner.expiry_changed.notify_one();
        Ok(row.into())
    }

    /// Resets the idle timer.
    pub fn keep_alive(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        entry.record_activity();
        Ok(entry.row().into())
    }
}
