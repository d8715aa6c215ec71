//! State transitions of a sandbox: one at a time per sandbox, each runs to completion.

use std::sync::Arc;

use atoll_model::{
    Error, ExpiryAction, SandboxId, SandboxInfo, SandboxState, StopReason, Transition,
};

use super::activity::{DeadlineRecord, Expiry};
use super::{EntryState, LocalRuntime, RuntimeState, SandboxEntry, not_found};
use crate::exec::table::ExecTable;
use crate::freezer::FreezeStep;
use crate::run_to_completion;
use crate::sandbox::{Record, Sandbox, run_blocking};
use crate::sync::lock;
use crate::syncer;

impl LocalRuntime {
    /// Runs one transition under the sandbox's transition lock. It completes even if the caller
    /// goes away.
    pub(super) async fn transition<F, W>(
        &self,
        id: &SandboxId,
        change: F,
    ) -> Result<SandboxInfo, Error>
    where
        F: FnOnce(Self, Arc<SandboxEntry>, EntryState) -> W + Send + 'static,
        W: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (runtime, id) = (self.clone(), id.clone());
        let entry = self.entry(&id)?;
        let work = async move {
            let _transition = entry.transition_lock.lock().await;
            let state = entry.state();
            let Some(info) = entry.info() else {
                return Err(not_found(&id));
            };
            let shared = Arc::clone(&runtime.shared);
            change(runtime, Arc::clone(&entry), state).await?;
            shared.note_record(&id);
            Ok(entry.info().unwrap_or(info))
        };
        run_to_completion(work).await
    }

    /// Freezes all processes of a sandbox.
    pub async fn pause(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("pause");
        self.freeze(id, Transition::Pause).await
    }

    /// Thaws all processes of a sandbox.
    pub async fn resume(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("resume");
        self.freeze(id, Transition::Resume).await
    }

    async fn freeze(&self, id: &SandboxId, transition: Transition) -> Result<SandboxInfo, Error> {
        let _in_flight = self.shared.foreground.begin();
        let entry = self.entry(id)?;
        // New uses wait for a pause and resume the sandbox if its lifetime says so.
        let pausing = (transition == Transition::Pause).then(|| entry.activity.begin_pause());
        let lock = Arc::clone(&entry.transition_lock).lock_owned().await;
        let held_starts = match entry.state() {
            EntryState::Live(sandbox) if transition == Transition::Pause => {
                sandbox.hold_starts().await
            }
            _ => None,
        };
        let (id, shared) = (id.clone(), Arc::clone(&self.shared));
        let work = move || {
            let step = match entry.state() {
                EntryState::Live(sandbox) => sandbox.freeze(transition, &entry.activity)?,
                EntryState::Gone => FreezeStep::Done(()),
                EntryState::Unadoptable(sandbox) => return Err(sandbox.error()),
                state @ EntryState::Stopped(..) => {
                    state.sandbox_state().next(transition)?;
                    FreezeStep::Done(())
                }
            };
            let info = move || {
                let (_transition, _pausing, _starts) = (lock, pausing, held_starts);
                shared.deadlines_changed.notify_one();
                shared.note_record(&id);
                entry.info().ok_or_else(|| not_found(&id))
            };
            Ok(match step {
                FreezeStep::Done(()) => FreezeStep::Done(info()?),
                FreezeStep::Continue(rest) => {
                    FreezeStep::Continue(Box::new(move || rest().and_then(|()| info())))
                }
            })
        };
        self.shared.freezer.run(work).await
    }

    /// Ends a sandbox's processes. Its files stay, and are synced to disk when this returns.
    pub async fn stop(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("stop");
        self.transition(id, |runtime, entry, state| async move {
            state.sandbox_state().next(Transition::Stop)?;
            runtime
                .stop_locked(&entry, state, Stopped::on_request())
                .await
        })
        .await
    }

    /// Stops a running sandbox that has expired, if it is still due. Returns whether it was.
    pub(super) async fn stop_expired(
        &self,
        id: &SandboxId,
        expiry: Expiry,
        is_due: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Result<bool, Error> {
        let _time = self.time("stop");
        let info = self.transition(id, move |runtime, entry, state| async move {
            if state.sandbox_state() != SandboxState::Running || !is_due() {
                return Ok(());
            }
            if let EntryState::Live(sandbox) = &state {
                // New uses are rejected from now on, and earlier ones are visible to the check.
                sandbox.state.send_replace(SandboxState::Stopping);
                if !is_due() {
                    sandbox.state.send_replace(SandboxState::Running);
                    return Ok(());
                }
            }
            runtime
                .stop_locked(&entry, state, Stopped::by_expiry(expiry))
                .await
        });
        let info = info.await?;
        Ok(info.state == SandboxState::Stopped && info.reason == Some(expiry.reason))
    }

    /// Stops a sandbox whose transition lock is held.
    async fn stop_locked(
        &self,
        entry: &SandboxEntry,
        state: EntryState,
        stopped: Stopped,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        if let EntryState::Unadoptable(sandbox) = &state {
            sandbox.end(shared).await?;
            sync_files(shared, &sandbox.record.info.id).await?;
            entry.set_state(sandbox.mark_stopped(shared, stopped)?);
            sync_record(shared, &sandbox.record.info.id).await?;
            self.dismiss_keepers(None).await;
        }
        let EntryState::Live(sandbox) = state else {
            return Ok(());
        };
        sandbox.state.send_replace(SandboxState::Stopping);
        sandbox.stop(shared).await?;
        let id = sandbox.info().id;
        // Files before the record: a record in state `stopped` promises that the files are on
        // disk.
        if !stopped.awaits_deletion {
            sync_files(shared, &id).await?;
        }
        mark_stopped(shared, entry, &sandbox, stopped).await?;
        sync_record(shared, &id).await
    }

    /// Starts the processes of a stopped sandbox, on its files.
    pub async fn start(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _in_flight = self.shared.foreground.begin();
        let _time = self.time("start");
        self.transition(id, |runtime, entry, state| async move {
            state.sandbox_state().next(Transition::Start)?;
            let EntryState::Stopped(mut record, execs) = state else {
                return Ok(());
            };
            let lifetime = entry.activity.deadlines().map(DeadlineRecord::lifetime);
            record.spec.lifetime = lifetime;
            let sandbox = Sandbox::start(&runtime.shared, *record).await?;
            entry
                .activity
                .set_deadlines(lock(&sandbox.record).deadlines);
            entry.activity.record();
            runtime.shared.deadlines_changed.notify_one();
            entry.set_state(EntryState::Live(Arc::clone(&sandbox)));
            execs.close();
            runtime.watch_exit(&entry, &sandbox);
            Ok(())
        })
        .await
    }

    /// Watches for the exit of a sandbox that was not requested, and then marks it stopped.
    pub(super) fn watch_exit(&self, entry: &Arc<SandboxEntry>, sandbox: &Arc<Sandbox>) {
        let (shared, entry) = (Arc::downgrade(&self.shared), Arc::downgrade(entry));
        let mut exit_status = sandbox.exit_status.clone();
        let sandbox = Arc::downgrade(sandbox);
        tokio::spawn(async move {
            let Ok(status) = exit_status
                .wait_for(Option::is_some)
                .await
                .map(|status| *status)
            else {
                return;
            };
            let Some(entry) = entry.upgrade() else { return };
            let _transition = entry.transition_lock.lock().await;
            let (Some(shared), Some(sandbox)) = (shared.upgrade(), sandbox.upgrade()) else {
                return;
            };
            // Not if it was stopped or deleted meanwhile.
            if matches!(entry.state(), EntryState::Live(live) if Arc::ptr_eq(&live, &sandbox)) {
                let reason = reason(&sandbox, status.unwrap_or(9));
                let stopped = Stopped::by_itself(reason);
                let _ = mark_stopped(&shared, &entry, &sandbox, stopped).await;
                let id = sandbox.info().id;
                shared.publish_change(&id);
                shared.note_record(&id);
                // No caller waits for it. If it fails, the kernel writes the data back later.
                let _ = sync_files(&shared, &id).await;
            }
        });
    }

    /// Replaces the record of a sandbox without processes.
    pub(super) fn update_stopped(
        &self,
        entry: &SandboxEntry,
        record: Box<Record>,
        execs: Arc<ExecTable>,
    ) -> Result<(), Error> {
        record.write(&self.shared.instance.sandbox(&record.info.id))?;
        entry.set_state(EntryState::Stopped(record, execs));
        Ok(())
    }
}

/// Reason of an exit that was not requested. `raw` is the wait status of PID 1.
fn reason(sandbox: &Sandbox, raw: i32) -> StopReason {
    if sandbox.keeper_is_lost() {
        StopReason::KeeperLost
    } else if raw & 0x7f == 9 && sandbox.group.oom_kills() > 0 {
        StopReason::Oom
    } else {
        StopReason::Exited
    }
}

/// Syncs the files of a sandbox without processes, if the instance is persistent.
async fn sync_files(shared: &RuntimeState, id: &SandboxId) -> Result<(), Error> {
    if shared.instance.data_lock.is_none() {
        return Ok(());
    }
    let path = shared.instance.storage.directory(id);
    shared.syncer.sync_files(path).await
}

/// Syncs a sandbox's record, if the instance is persistent.
async fn sync_record(shared: &RuntimeState, id: &SandboxId) -> Result<(), Error> {
    if shared.instance.data_lock.is_none() {
        return Ok(());
    }
    let directory = shared.instance.sandbox(id);
    run_blocking(move || syncer::sync_record(&directory)).await
}

/// How a sandbox was stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopped {
    /// `None`: on request.
    pub(super) reason: Option<StopReason>,
    pub(super) awaits_deletion: bool,
}

impl Stopped {
    pub(super) fn on_request() -> Self {
        Self {
            reason: None,
            awaits_deletion: false,
        }
    }

    pub(super) fn by_itself(reason: StopReason) -> Self {
        Self {
            reason: Some(reason),
            awaits_deletion: false,
        }
    }

    fn by_expiry(expiry: Expiry) -> Self {
        Self {
            reason: Some(expiry.reason),
            awaits_deletion: expiry.action == ExpiryAction::Destroy,
        }
    }

    pub(super) fn apply(self, record: &mut Record) {
        record.info.state = SandboxState::Stopped;
        record.info.reason = self.reason;
        record.info.awaits_deletion = self.awaits_deletion;
        record.deadlines = record.deadlines.map(DeadlineRecord::stopped);
    }
}

/// Marks a sandbox as stopped after its processes have ended.
async fn mark_stopped(
    shared: &Arc<RuntimeState>,
    entry: &SandboxEntry,
    sandbox: &Arc<Sandbox>,
    stopped: Stopped,
) -> Result<(), Error> {
    sandbox.reap(shared).await?;
    let record = {
        let sandbox = Arc::clone(sandbox);
        run_blocking(move || sandbox.update_record(|record| stopped.apply(record))).await?
    };
    entry.activity.set_deadlines(record.deadlines);
    entry.set_state(EntryState::Stopped(
        Box::new(record),
        Arc::clone(&sandbox.execs),
    ));
    Ok(())
}
