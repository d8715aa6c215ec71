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

use super::times::{check_timeout, end_anew, microseconds};
use super::{SandboxView, full};
use crate::ledger::{Entry, Held};
use crate::lifetimes::kept_until;
use crate::{Context, Core, error, outlast};

/// Whether what is about to happen to a sandbox is still right, given its row before.
pub(crate) type Still = Box<dyn Fn(&SandboxRow, &Entry) -> bool + Send>;

pub(crate) fn always() -> Still {
    Box::new(|_, _| true)
}

/// Shows what runs as stopping, if it is still to be ended: who wants to use it from now on is refused, and who began
/// before is seen.
///
/// `reason` is shown with it. The caller restores state and reason if the sandbox cannot be ended.
pub(super) fn shown_stopping(
    entry: &Entry,
    before: &SandboxRow,
    still: &Still,
    reason: Option<StopReason>,
) -> bool {
    use SandboxState::{Paused, Running, Stopping};
    if !still(before, entry) {
        return false;
    }
    if !matches!(before.state, Running | Paused | Stopping) {
        return true;
    }
    entry.show(Stopping, reason);
    if still(before, entry) {
        return true;
    }
    entry.show(before.state, before.reason);
    false
}

/// How long a start waits for a stop under way.
const STARTS: Duration = Duration::from_secs(30);

impl Core {
    /// Ends its processes; its files stay.
    pub async fn stop(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        let entry = self.own(context, name)?;
        self.stop_if(entry, always(), None).await
    }

    /// Stops it if that is still right when nobody else changes it any more. `reason` is `None` for a stop that a
    /// caller asked for.
    pub(crate) async fn stop_if(
        &self,
        entry: Arc<Entry>,
        still: Still,
        reason: Option<StopReason>,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        outlast(async move {
            let held = core.inner.ledger.hold(entry).await?;
            core.stop_held(&held, still, reason).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn stop_held(
        &self,
        held: &Held,
        still: Still,
        reason: Option<StopReason>,
    ) -> Result<SandboxView, Error> {
        let (entry, store) = (&held.entry, &self.inner.store);
        let before = entry.row();
        if before.state.next(Transition::Stop)? == SandboxState::Stopped
            || !shown_stopping(entry, &before, &still, reason)
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
                let back = entry.write(store, |row| {
                    (row.state, row.reason) = (before.state, before.reason);
                });
                if back.await.is_err() {
                    entry.show(before.state, before.reason);
                }
                return Err(error);
            }
        };
        let written = entry.write(store, |row| {
            row.state = info.state;
            row.reason = info.reason.or(reason);
            let at = self.now();
            row.stopped_at = Some(at);
            row.end_at = kept_until(&self.inner.config, at);
            row.time_left = None;
        });
        let written = written.await.map(SandboxView::from);
        if written.is_err() {
            // What has ended is found, and written then.
            entry.show(before.state, before.reason);
        }
        written
    }

    /// Makes a stopped sandbox run again, with its files. One that runs already is fine as it is.
    pub async fn start(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        let entry = self.own(context, name)?;
        self.start_entry(entry).await
    }

    pub(crate) async fn start_entry(&self, entry: Arc<Entry>) -> Result<SandboxView, Error> {
        let core = self.clone();
        outlast(async move {
            // A stop under way is waited for.
            let held = core.inner.ledger.hold_within(entry, STARTS).await?;
            core.start_held(&held).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn start_held(&self, held: &Held) -> Result<SandboxView, Error> {
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
                return Err(full(most));
            }
        }
        match self.inner.runtime.start(&row.id).await {
            Ok(info) => {
                let written = entry.write(&self.inner.store, |row| {
                    row.state = info.state;
                    row.reason = None;
                    row.started_at = Some(self.now());
                    row.stopped_at = None;
                    row.end_at = end_anew(&row.lifetime, self.now());
                });
                let row = match written.await {
                    Ok(row) => row,
                    Err(error) => {
                        // Nobody is told that it runs. As it was.
                        let _ = self.inner.runtime.stop(&row.id).await;
                        let _ = entry.write(&self.inner.store, |_| {}).await;
                        return Err(error);
                    }
                };
                entry.touch();
                self.inner.times.notify_one();
                Ok(row.into())
            }
            Err(error) => {
                // As it was.
                entry.write(&self.inner.store, |_| {}).await?;
                Err(error)
            }
        }
    }

    /// Ends its processes and starts it again.
    pub async fn restart(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        self.stop(context, name).await?;
        self.start(context, name).await
    }

    /// Lets all its processes stand still.
    pub async fn pause(&self, context: &Context, name: &str) -> Result<SandboxView, Error> {
        let entry = self.own(context, name)?;
        self.pause_if(entry, always()).await
    }

    /// Pauses it if that is still right when nobody else changes it any more.
    pub(crate) async fn pause_if(
        &self,
        entry: Arc<Entry>,
        still: Still,
    ) -> Result<SandboxView, Error> {
        let core = self.clone();
        outlast(async move {
            let held = core.inner.ledger.hold(entry).await?;
            core.pause_held(&held, still).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn pause_held(&self, held: &Held, still: Still) -> Result<SandboxView, Error> {
        let entry = &held.entry;
        let row = entry.row();
        row.state.next(Transition::Pause)?;
        if !still(&row, entry) {
            return Ok(row.into());
        }
        // Who wants to use it from now on lets it go on when this is done, if that is allowed.
        let _pausing = entry.begin_pause();
        let info = self.inner.runtime.pause(&row.id).await?;
        let written = entry.write(&self.inner.store, |row| {
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
        context: &Context,
        name: &str,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        if let Some(timeout) = timeout {
            check_timeout(&context.org, timeout)?;
        }
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        self.resume_entry(&entry, timeout).await
    }

    pub(crate) async fn resume_entry(
        &self,
        entry: &Arc<Entry>,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let (core, entry) = (self.clone(), Arc::clone(entry));
        outlast(async move {
            let held = core.inner.ledger.hold(entry).await?;
            core.resume_held(&held, timeout).await
        })
        .await
    }

    /// The same for somebody who holds it.
    pub(crate) async fn resume_held(
        &self,
        held: &Held,
        timeout: Option<Option<u32>>,
    ) -> Result<SandboxView, Error> {
        let entry = &held.entry;
        let row = entry.row();
        row.state.next(Transition::Resume)?;
        if row.state == SandboxState::Running && timeout.is_none() {
            return Ok(row.into());
        }
        let info = self.inner.runtime.resume(&row.id).await?;
        let written = entry.write(&self.inner.store, |row| {
            row.state = info.state;
            row.stopped_at = None;
            let left = row.time_left.take();
            let asked = timeout.map(|time| time.map(microseconds));
            row.end_at = match (asked, left) {
                // It was paused because its time was up.
                (None, Some(0)) => end_anew(&row.lifetime, self.now()),
                (asked, left) => asked.unwrap_or(left).map(|left| self.now() + left),
            };
        });
        let row = written.await?;
        entry.touch();
        self.inner.times.notify_one();
        Ok(row.into())
    }
}
