//! Start, stop, pause and resume of sandboxes.
//!
//! A transition holds the sandbox's transition lock and runs to completion even if its caller is cancelled.
//! [`SandboxState::next`] defines the legal transitions:
//!
//! ```text
//!            pause
//!   running ------> paused
//!    ^  |   <------   |
//!    |  |   resume    |
//!    |  | stop        | stop
//!    |  v             |
//!   stopped <---------'
//! start
//! ```

use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Error, SandboxState, Scope, Transition};
use atoll_store::QuotaClaim;

use super::timeouts::{check_timeout, copy_deadlines, microseconds};
use super::{SandboxView, quota_exceeded};
use crate::control::expiry::deletion_time;
use crate::live_sandboxes::{LiveSandbox, LockedSandbox};
use crate::{Core, RequestContext, error, run_to_completion};

/// Maximum time that a start waits for a stop in progress.
const STOP_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

impl Core {
    /// Kills the processes of a sandbox and keeps its files.
    pub async fn stop(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.lock(entry).await?;
            core.stop_locked(&locked).await
        })
        .await
    }

    /// Like [`Self::stop`], for a caller that holds the lock.
    pub(crate) async fn stop_locked(&self, locked: &LockedSandbox) -> Result<SandboxView, Error> {
        let (entry, store) = (&locked.entry, &self.inner.store);
        let before = entry.row();
        if before.state.next(Transition::Stop)? == SandboxState::Stopped {
            return Ok(before.into());
        }
        entry.set_transient_state(SandboxState::Stopping, None);
        // Record the intent. After a crash, the runtime's state shows whether the sandbox was stopped.
        let recorded = async {
            let _deadlines = self.inner.clock.deadlines.read().await;
            let row = entry.row();
            let updated = store.update_sandbox(&row, row.state.name(), self.now());
            updated.await.map_err(error::store)
        };
        let stopped = match recorded.await {
            Ok(()) => self.inner.runtime.stop(&before.id).await,
            Err(error) => Err(error),
        };
        let info = match stopped {
            Ok(info) => info,
            Err(error) => {
                // Restore the previous state, in memory even if it cannot be written.
                let back = entry.update(store, |row| {
                    (row.state, row.reason) = (before.state, before.reason);
                });
                if back.await.is_err() {
                    entry.set_transient_state(before.state, before.reason);
                }
                return Err(error);
            }
        };
        let written = entry.update(store, |row| {
            row.state = info.state;
            row.reason = info.reason;
            let at = self.now();
            row.stopped_at = Some(at);
            row.end_at = deletion_time(&self.inner.config, at);
            row.time_left = None;
        });
        let written = written.await.map(SandboxView::from);
        if written.is_err() {
            // The reconcile loop finds the stopped sandbox and updates its row.
            entry.set_transient_state(before.state, before.reason);
        }
        written
    }

    /// Starts a stopped sandbox with its files. A running one is left as it is.
    pub async fn start(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        self.start_live(entry).await
    }

    pub(crate) async fn start_live(&self, entry: Arc<LiveSandbox>) -> Result<SandboxView, Error> {
        let core = self.clone();
        run_to_completion(async move {
            core.catch_up(&entry).await;
            // Wait for a stop in progress.
            let locked = core
                .inner
                .sandboxes
                .lock_within(entry, STOP_WAIT_TIMEOUT)
                .await?;
            core.start_locked(&locked).await
        })
        .await
    }

    /// Like [`Self::start_live`], for a caller that holds the lock.
    pub(crate) async fn start_locked(&self, locked: &LockedSandbox) -> Result<SandboxView, Error> {
        let entry = &locked.entry;
        let row = entry.row();
        if row.state.next(Transition::Start)? == SandboxState::Running {
            return Ok(row.into());
        }
        if row.state == SandboxState::Stopped {
            let org = self.inner.store.org(&row.org).await.map_err(error::store)?;
            let max = org.and_then(|org| org.max_sandboxes);
            let claim = self.inner.store.claim_quota_for_start(&row.id, max).await;
            if claim.map_err(error::store)? == QuotaClaim::Exceeded {
                return Err(quota_exceeded(max));
            }
        }
        match self.inner.runtime.start(&row.id).await {
            Ok(info) => {
                let written = entry.update(&self.inner.store, |row| {
                    row.state = info.state;
                    row.reason = None;
                    row.started_at = Some(self.now());
                    row.stopped_at = None;
                    copy_deadlines(row, &info);
                });
                let row = match written.await {
                    Ok(row) => row,
                    Err(error) => {
                        // The start is not acknowledged: stop the sandbox and restore the row.
                        let _ = self.inner.runtime.stop(&row.id).await;
                        let _ = entry.update(&self.inner.store, |_| {}).await;
                        return Err(error);
                    }
                };
                Ok(row.into())
            }
            Err(error) => {
                // Restore the row, whose state is `creating` in the store.
                entry.update(&self.inner.store, |_| {}).await?;
                Err(error)
            }
        }
    }

    /// Stops a sandbox and starts it.
    pub async fn restart(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<SandboxView, Error> {
        self.stop(context, name).await?;
        self.start(context, name).await
    }

    /// Freezes all processes of a sandbox.
    pub async fn pause(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.lock(entry).await?;
            core.pause_locked(&locked).await
        })
        .await
    }

    /// Like [`Self::pause`], for a caller that holds the lock.
    pub(crate) async fn pause_locked(&self, locked: &LockedSandbox) -> Result<SandboxView, Error> {
        let entry = &locked.entry;
        let row = entry.row();
        row.state.next(Transition::Pause)?;
        let info = self.inner.runtime.pause(&row.id).await?;
        let written = entry.update(&self.inner.store, |row| {
            if row.state != info.state {
                row.stopped_at = Some(self.now());
            }
            row.state = info.state;
            copy_deadlines(row, &info);
        });
        let written = written.await;
        if written.is_err() && row.state == SandboxState::Running {
            // The caller gets an error, so the sandbox must run.
            self.inner.runtime.resume(&row.id).await?;
        }
        written.map(SandboxView::from)
    }

    /// Resumes a paused sandbox. `timeout` is counted from now; `None` keeps the remaining time, and the inner `None`
    /// means no expiry.
    pub async fn resume(
        &self,
        context: &RequestContext,
        name: &str,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        if let Some(timeout) = timeout {
            check_timeout(&context.org, timeout)?;
        }
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.lock(entry).await?;
            core.resume_locked(&locked, timeout).await
        })
        .await
    }

    /// Like [`Self::resume`], for a caller that holds the lock.
    pub(crate) async fn resume_locked(
        &self,
        locked: &LockedSandbox,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let entry = &locked.entry;
        let row = entry.row();
        row.state.next(Transition::Resume)?;
        if row.state == SandboxState::Running && timeout.is_none() {
            return Ok(row.into());
        }
        let info = self.inner.runtime.resume(&row.id).await?;
        let written = entry.update(&self.inner.store, |row| {
            row.state = info.state;
            row.stopped_at = None;
            copy_deadlines(row, &info);
            if let Some(timeout) = timeout {
                row.end_at = timeout.map(|seconds| self.now() + microseconds(seconds));
            }
        });
        let row = written.await?;
        if timeout.is_some() {
            self.push_deadlines(&row).await?;
        }
        Ok(row.into())
    }
}
