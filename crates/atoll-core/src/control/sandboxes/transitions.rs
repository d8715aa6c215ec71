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

use atoll_model::{Error, SandboxState, Scope, StopReason, Transition};
use atoll_store::{QuotaClaim, SandboxRow};

use super::timeouts::{check_timeout, end_at_after_restart, microseconds};
use super::{SandboxView, quota_exceeded};
use crate::control::expiry::deletion_time;
use crate::live_sandboxes::{LiveSandbox, LockedSandbox};
use crate::{Core, RequestContext, error, run_to_completion};

/// Condition that is checked again once the transition lock is held, with the row before the transition.
pub(crate) type Precondition = Box<dyn Fn(&SandboxRow, &LiveSandbox) -> bool + Send>;

pub(crate) fn unconditional() -> Precondition {
    Box::new(|_, _| true)
}

/// Sets the transient state `stopping` and the reason if the precondition holds. Returns whether it holds.
///
/// The precondition is checked again after setting the state: new accesses are rejected from then on, and earlier ones
/// are visible to it. The caller restores state and reason if the sandbox cannot be stopped.
pub(super) fn mark_stopping_if(
    entry: &LiveSandbox,
    before: &SandboxRow,
    precondition: &Precondition,
    reason: Option<StopReason>,
) -> bool {
    use SandboxState::Stopping;
    if !precondition(before, entry) {
        return false;
    }
    if !before.state.has_processes() && before.state != Stopping {
        return true;
    }
    entry.set_transient_state(Stopping, reason);
    if precondition(before, entry) {
        return true;
    }
    entry.set_transient_state(before.state, before.reason);
    false
}

/// Maximum time that a start waits for a stop in progress.
const STOP_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

impl Core {
    /// Kills the processes of a sandbox and keeps its files.
    pub async fn stop(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        self.stop_when(entry, unconditional(), None).await
    }

    /// Stops a sandbox if the precondition holds. `reason` is `None` for a stop by request.
    pub(crate) async fn stop_when(
        &self,
        entry: Arc<LiveSandbox>,
        precondition: Precondition,
        reason: Option<StopReason>,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.inner.sandboxes.lock(entry).await?;
            core.stop_locked(&locked, precondition, reason).await
        })
        .await
    }

    /// Like [`Self::stop_when`], for a caller that holds the lock.
    pub(crate) async fn stop_locked(
        &self,
        locked: &LockedSandbox,
        precondition: Precondition,
        reason: Option<StopReason>,
    ) -> Result<SandboxView, Error> {
        let (entry, store) = (&locked.entry, &self.inner.store);
        let before = entry.row();
        if before.state.next(Transition::Stop)? == SandboxState::Stopped
            || !mark_stopping_if(entry, &before, &precondition, reason)
        {
            return Ok(before.into());
        }
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
            row.reason = info.reason.or(reason);
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
                    row.end_at = end_at_after_restart(&row.lifetime, self.now());
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
                entry.record_activity();
                self.inner.expiry_changed.notify_one();
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
        self.pause_when(entry, unconditional()).await
    }

    /// Pauses a sandbox if the precondition holds.
    pub(crate) async fn pause_when(
        &self,
        entry: Arc<LiveSandbox>,
        precondition: Precondition,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        run_to_completion(async move {
            let locked = core.inner.sandboxes.lock(entry).await?;
            core.pause_locked(&locked, precondition).await
        })
        .await
    }

    /// Like [`Self::pause_when`], for a caller that holds the lock.
    pub(crate) async fn pause_locked(
        &self,
        locked: &LockedSandbox,
        precondition: Precondition,
    ) -> Result<SandboxView, Error> {
        let entry = &locked.entry;
        let row = entry.row();
        row.state.next(Transition::Pause)?;
        if !precondition(&row, entry) {
            return Ok(row.into());
        }
        // New accesses wait for the pause and resume the sandbox if it has `auto_resume`.
        let _guard = entry.begin_pause();
        let info = self.inner.runtime.pause(&row.id).await?;
        let written = entry.update(&self.inner.store, |row| {
            if row.state != info.state {
                row.stopped_at = Some(self.now());
            }
            row.state = info.state;
            if let Some(end) = row.end_at.take() {
                row.time_left = Some((end - self.now()).max(0));
            }
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
        self.resume_live(&entry, timeout).await
    }

    pub(crate) async fn resume_live(
        &self,
        entry: &Arc<LiveSandbox>,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let (core, entry) = (self.clone(), Arc::clone(entry));
        run_to_completion(async move {
            let locked = core.inner.sandboxes.lock(entry).await?;
            core.resume_locked(&locked, timeout).await
        })
        .await
    }

    /// Like [`Self::resume_live`], for a caller that holds the lock.
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
            let left = row.time_left.take();
            let requested = timeout.map(|time| time.map(microseconds));
            row.end_at = match (requested, left) {
                // It was paused by its timeout.
                (None, Some(0)) => end_at_after_restart(&row.lifetime, self.now()),
                (requested, left) => requested.unwrap_or(left).map(|left| self.now() + left),
            };
        });
        let row = written.await?;
        entry.record_activity();
        self.inner.expiry_changed.notify_one();
        Ok(row.into())
    }
}
