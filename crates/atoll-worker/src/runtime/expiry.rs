//! Background task that enforces timeouts and idle timeouts, also while the control plane is away.
//!
//! A sandbox that is to be destroyed is stopped and waits for its deletion: the control plane marks its row as deleted
//! before the files are removed. Nothing expires while the clock holds deadlines.

use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::runtime::{DeadlineClock, OpenedUse, UseGuard};
use atoll_model::{Deadlines, Error, ExpiryAction, SandboxId, SandboxState};

use super::activity::{DeadlineRecord, Expiry, LocalUse, NoUse, boottime};
use super::{EntryState, LocalRuntime, RuntimeState, SandboxEntry, not_found};
use crate::sandbox::run_blocking;

/// Upper bound between two checks. Idle time is polled: no event marks its start or end.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum lead of the system clock over server time in the recorded end of a command, in microseconds.
const MAX_CLOCK_LEAD: i64 = 60_000_000;

/// Expires sandboxes until the runtime is dropped.
pub(super) async fn run(shared: Weak<RuntimeState>, clock: Arc<dyn DeadlineClock>) {
    let mut offset = clock.at(0);
    loop {
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if std::mem::replace(&mut offset, clock.at(0)) != clock.at(0) {
            // Ends of commands were recorded by the system clock: they cannot be compared with the time before.
            for (_, entry) in shared.entries() {
                entry.activity.record();
            }
        }
        let changed = Arc::clone(&shared.deadlines_changed);
        let runtime = LocalRuntime { shared };
        let now = boottime();
        let mut next = now + i64::try_from(CHECK_INTERVAL.as_micros()).unwrap_or(i64::MAX);
        if !clock.is_held() {
            for (id, entry) in runtime.shared.entries() {
                if entry.state().sandbox_state() != SandboxState::Running {
                    continue;
                }
                match runtime.next_expiry(&id, &entry, &*clock) {
                    Some(due) if due.at <= now => runtime.expire(id, &entry, &clock, due),
                    Some(due) => next = next.min(due.at),
                    None => {}
                }
            }
        }
        drop(runtime);
        let wait = Duration::from_micros(u64::try_from(next - boottime()).unwrap_or(0));
        let _ = tokio::time::timeout(wait, changed.notified()).await;
    }
}

impl LocalRuntime {
    fn next_expiry(
        &self,
        id: &SandboxId,
        entry: &SandboxEntry,
        clock: &dyn DeadlineClock,
    ) -> Option<Expiry> {
        let commands_until = || self.commands_until(id, clock);
        entry.activity.next_expiry(boottime(), commands_until)
    }

    /// Time of the last end of a command, or now if one runs. Terminals do not count. Ends are recorded by the system
    /// clock: one that is far in the future was recorded before the clock was set back, and is ignored.
    fn commands_until(&self, id: &SandboxId, clock: &dyn DeadlineClock) -> i64 {
        let now = clock.at(boottime());
        let all = self.execs(id).unwrap_or_default();
        let commands = all.iter().filter(|exec| exec.spec.terminal.is_none());
        let until = commands
            .map(|exec| {
                let ended = exec.ended_at.filter(|_| exec.status.is_some());
                ended.unwrap_or(now)
            })
            .filter(|until| *until <= now + MAX_CLOCK_LEAD)
            .map(|until| until.min(now))
            .max();
        clock.boottime_at(until.unwrap_or_default())
    }

    /// Starts the action of an expiry, unless a transition is in progress: then the next round checks again.
    fn expire(
        &self,
        id: SandboxId,
        entry: &Arc<SandboxEntry>,
        clock: &Arc<dyn DeadlineClock>,
        expiry: Expiry,
    ) {
        if entry.transition_lock.try_lock().is_err() {
            return;
        }
        let (runtime, entry, clock) = (self.clone(), Arc::clone(entry), Arc::clone(clock));
        tokio::spawn(async move {
            let is_due = {
                let (runtime, id, entry) = (runtime.clone(), id.clone(), Arc::clone(&entry));
                move || {
                    let next = runtime.next_expiry(&id, &entry, &*clock);
                    next.is_some_and(|due| {
                        due.at <= boottime()
                            && (due.action, due.reason) == (expiry.action, expiry.reason)
                    })
                }
            };
            let action = expiry.action;
            let done = match action {
                ExpiryAction::Destroy | ExpiryAction::Stop => {
                    runtime.stop_expired(&id, expiry, is_due).await
                }
                ExpiryAction::Pause => runtime.pause_expired(&id, &entry, is_due).await,
            };
            match done {
                Ok(true) => {
                    tracing::info!(sandbox = %id, ?action, "sandbox expired");
                    runtime.shared.publish_change(&id);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(sandbox = %id, ?action, %error, "failed to expire sandbox");
                }
            }
        });
    }

    /// Pauses an idle sandbox, and resumes it if a use began at the same moment, which would otherwise wait for ever.
    async fn pause_expired(
        &self,
        id: &SandboxId,
        entry: &Arc<SandboxEntry>,
        is_due: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        // New uses wait for the pause; earlier ones are visible to the check.
        let pausing = entry.activity.begin_pause();
        if entry.state().sandbox_state() != SandboxState::Running || !is_due() {
            return Ok(false);
        }
        self.pause(id).await?;
        drop(pausing);
        let deadlines = entry.activity.deadlines();
        let resumes = deadlines.is_some_and(DeadlineRecord::auto_resumes);
        let is_over = deadlines.is_some_and(DeadlineRecord::is_over);
        // A sandbox whose timeout has ended stays paused.
        if resumes && !is_over && entry.activity.is_in_use() {
            self.resume(id).await?;
        }
        Ok(true)
    }

    /// Counts a use until the guard is dropped, whatever the state of the sandbox.
    pub(super) fn count_use(&self, id: &SandboxId) -> Box<dyn UseGuard> {
        match self.entry(id) {
            Ok(entry) => Box::new(LocalUse::begin(&entry)),
            Err(_) => Box::new(NoUse),
        }
    }

    /// Opens a running sandbox for a use, and resumes a paused one if its lifetime says so.
    pub(super) async fn open_use(&self, id: &SandboxId) -> Result<OpenedUse, Error> {
        let entry = self.entry(id)?;
        // Count the use before reading the state: an expiry sets the state before it checks for uses.
        let guard: Box<dyn UseGuard> = Box::new(LocalUse::begin(&entry));
        let auto_resumes = || {
            let deadlines = entry.activity.deadlines();
            deadlines.is_some_and(DeadlineRecord::auto_resumes)
        };
        match entry.state() {
            EntryState::Unadoptable(sandbox) => return Err(sandbox.error()),
            EntryState::Gone => return Err(not_found(id)),
            EntryState::Live(_) | EntryState::Stopped(..) => {}
        }
        let was_resumed = match entry.effective_state() {
            SandboxState::Running => false,
            SandboxState::Paused if auto_resumes() => {
                self.resume(id).await?;
                self.shared.publish_change(id);
                true
            }
            state => return Err(state.state_error("used")),
        };
        Ok(OpenedUse { guard, was_resumed })
    }

    /// Sets the timeouts and deadlines of a sandbox, and stores them in its record.
    pub(super) async fn set_deadlines(
        &self,
        id: &SandboxId,
        deadlines: Deadlines,
    ) -> Result<(), Error> {
        let Some(clock) = &self.shared.clock else {
            return Ok(());
        };
        let entry = self.entry(id)?;
        let _transition = entry.transition_lock.lock().await;
        let new = DeadlineRecord::from_server_time(deadlines, &**clock);
        if entry.activity.deadlines() == Some(new) {
            return Ok(());
        }
        entry.activity.set_deadlines(Some(new));
        self.shared.deadlines_changed.notify_one();
        if let EntryState::Live(sandbox) = entry.state() {
            run_blocking(move || {
                sandbox
                    .update_record(|record| record.deadlines = Some(new))
                    .map(drop)
            })
            .await?;
            self.shared.note_record(id);
        }
        Ok(())
    }
}
