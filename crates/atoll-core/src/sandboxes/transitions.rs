//! How a sandbox gets from one state to another: while nobody else changes it, to the end whether or not the caller
//! waits. Which ways there are, [`SandboxState::next`] says.
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
use crate::expiry::deletion_time;
use crate::live_sandboxes::{LiveSandbox, LockedSandbox};
use crate::{Core, RequestContext, error, run_to_completion};

/// Whether what is about to happen to a sandbox is still right, given its row before.
pub(crate) type Precondition = Box<dyn Fn(&SandboxRow, &LiveSandbox) -> bool + Send>;

pub(crate) fn unconditional() -> Precondition {
    Box::new(|_, _| true)
}

/// Shows what runs as stopping, if it is still to be ended: who wants to use it from now on is refused, and who began
/// before is seen.
///
/// `reason` is shown with it. The caller restores state and reason if the sandbox cannot be ended.
pub(super) fn mark_stopping_if(
    entry: &LiveSandbox,
    before: &SandboxRow,
    still: &Precondition,
    reason: Option<StopReason>,
) -> bool {
    use SandboxState::{Paused, Running, Stopping};
    if !still(before, entry) {
        return false;
    }
    if !matches!(before.state, Running | Paused | Stopping) {
        return true;
    }
    entry.set_transient_state(Stopping, reason);
    if still(before, entry) {
        return true;
    }
    entry.set_transient_state(before.state, before.reason);
    false
}

/// How long a start waits for a stop under way.
const STOP_WAIT_TIMEOUT: Duration = Duration::from_secs(30);

impl Core {
    /// Ends its processes; its files stay.
    pub async fn stop(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        self.stop_when(entry, unconditional(), None).await
    }

    /// Stops it if that is still right when nobody else changes it any more. `reason` is `None` for a stop that a
    /// caller asked for.
    pub(crate) async fn stop_when(
        &self,
        entry: Arc<LiveSandbox>,
        still: Precondition,
        reason: Option<StopReason>,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        run_to_completion(async move {
            let held = core.inner.sandboxes.lock(entry).await?;
            core.stop_locked(&held, still, reason).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn stop_locked(
        &self,
        held: &LockedSandbox,
        still: Precondition,
        reason: Option<StopReason>,
    ) -> Result<SandboxView, Error> {
        let (entry, store) = (&held.entry, &self.inner.store);
        let before = entry.row();
        if before.state.next(Transition::Stop)? == SandboxState::Stopped
            || !mark_stopping_if(entry, &before, &still, reason)
        {
            return Ok(before.into());
        }
        // After a crash the runtime says whether it came so far.
        let told = async {
            let _deadlines = self.inner.clock.deadlines.read().await;
            let row = entry.row();
            let told = store.update_sandbox(&row, row.state.name(), self.now());
            told.await.map_err(error::store)
        };
        let stopped = match told.await {
            Ok(()) => self.inner.runtime.stop(&before.id).await,
            Err(error) => Err(error),
        };
        let info = match stopped {
            Ok(info) => info,
            Err(error) => {
                // As it was, also if that cannot be written.
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
            // What has ended is found, and written then.
            entry.set_transient_state(before.state, before.reason);
        }
        written
    }

    /// Makes a stopped sandbox run again, with its files. One that runs already is fine as it is.
    pub async fn start(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        self.start_live(entry).await
    }

    pub(crate) async fn start_live(&self, entry: Arc<LiveSandbox>) -> Result<SandboxView, Error> {
        let core = self.clone();
        run_to_completion(async move {
            // A stop under way is waited for.
            let held = core
                .inner
                .sandboxes
                .lock_within(entry, STOP_WAIT_TIMEOUT)
                .await?;
            core.start_locked(&held).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn start_locked(&self, held: &LockedSandbox) -> Result<SandboxView, Error> {
        let entry = &held.entry;
        let row = entry.row();
        if row.state.next(Transition::Start)? == SandboxState::Running {
            return Ok(row.into());
        }
        if row.state == SandboxState::Stopped {
            let org = self.inner.store.org(&row.org).await.map_err(error::store)?;
            let most = org.and_then(|org| org.max_sandboxes);
            let claim = self.inner.store.claim_quota_for_start(&row.id, most).await;
            if claim.map_err(error::store)? == QuotaClaim::Exceeded {
                return Err(quota_exceeded(most));
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
                        // Nobody is told that it runs. As it was.
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
                // As it was.
                entry.update(&self.inner.store, |_| {}).await?;
                Err(error)
            }
        }
    }

    /// Ends its processes and starts it again.
    pub async fn restart(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<SandboxView, Error> {
        self.stop(context, name).await?;
        self.start(context, name).await
    }

    /// Lets all its processes stand still.
    pub async fn pause(&self, context: &RequestContext, name: &str) -> Result<SandboxView, Error> {
        let entry = self.find_writable(context, name)?;
        self.pause_when(entry, unconditional()).await
    }

    /// Pauses it if that is still right when nobody else changes it any more.
    pub(crate) async fn pause_when(
        &self,
        entry: Arc<LiveSandbox>,
        still: Precondition,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        run_to_completion(async move {
            let held = core.inner.sandboxes.lock(entry).await?;
            core.pause_locked(&held, still).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn pause_locked(
        &self,
        held: &LockedSandbox,
        still: Precondition,
    ) -> Result<SandboxView, Error> {
        let entry = &held.entry;
        let row = entry.row();
        row.state.next(Transition::Pause)?;
        if !still(&row, entry) {
            return Ok(row.into());
        }
        // Who wants to use it from now on lets it go on when this is done, if that is allowed.
        let _pausing = entry.begin_pause();
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
            // Whoever is told that it could not be paused finds it running.
            self.inner.runtime.resume(&row.id).await?;
        }
        written.map(SandboxView::from)
    }

    /// Lets them go on, for as long as was left or as is said; inside, `None` is for ever.
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
            let held = core.inner.sandboxes.lock(entry).await?;
            core.resume_locked(&held, timeout).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn resume_locked(
        &self,
        held: &LockedSandbox,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let entry = &held.entry;
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
            let asked = timeout.map(|time| time.map(microseconds));
            row.end_at = match (asked, left) {
                // It was paused because its time was up.
                (None, Some(0)) => end_at_after_restart(&row.lifetime, self.now()),
                (asked, left) => asked.unwrap_or(left).map(|left| self.now() + left),
            };
        });
        let row = written.await?;
        entry.record_activity();
        self.inner.expiry_changed.notify_one();
        Ok(row.into())
    }
}
