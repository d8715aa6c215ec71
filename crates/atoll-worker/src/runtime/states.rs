//! State transitions of a sandbox: one at a time per sandbox, each runs to completion.

use std::sync::Arc;

use atoll_model::{Error, SandboxId, SandboxInfo, SandboxState, StopReason, Transition};

use super::{Entry, LocalRuntime, Place, Shared, unknown};
use crate::exec::table::ExecTable;
use crate::freezer::Step;
use crate::run_to_completion;
use crate::sandbox::{Record, Sandbox, blocking};
use crate::syncer;

impl LocalRuntime {
    /// Runs one transition under the sandbox's transition lock. It completes even if the caller
    /// goes away.
    pub(super) async fn change<F, W>(&self, id: &SandboxId, change: F) -> Result<SandboxInfo, Error>
    where
        F: FnOnce(Self, Arc<Entry>, Place) -> W + Send + 'static,
        W: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (runtime, id) = (self.clone(), id.clone());
        let entry = self.entry(&id)?;
        let work = async move {
            let _gate = entry.gate.lock().await;
            let place = entry.place();
            let Some(info) = entry.info() else {
                return Err(unknown(&id));
            };
            let shared = Arc::clone(&runtime.shared);
            change(runtime, Arc::clone(&entry), place).await?;
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
        let _busy = self.shared.busy.begin();
        let entry = self.entry(id)?;
        let gate = Arc::clone(&entry.gate).lock_owned().await;
        let (id, shared) = (id.clone(), Arc::clone(&self.shared));
        let work = move || {
            let step = match entry.place() {
                Place::Live(sandbox) => sandbox.freeze(transition)?,
                Place::Gone => Step::Done(()),
                Place::Apart(apart) => return Err(apart.refusal()),
                place @ Place::Stopped(..) => {
                    place.state().next(transition)?;
                    Step::Done(())
                }
            };
            let info = move || {
                let _gate = gate;
                shared.note_record(&id);
                entry.info().ok_or_else(|| unknown(&id))
            };
            Ok(match step {
                Step::Done(()) => Step::Done(info()?),
                Step::Later(rest) => Step::Later(Box::new(move || rest().and_then(|()| info()))),
            })
        };
        self.shared.freezer.run(work).await
    }

    /// Ends a sandbox's processes. Its files stay, and are synced to disk when this returns.
    pub async fn stop(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _time = self.time("stop");
        self.change(id, |runtime, entry, place| async move {
            place.state().next(Transition::Stop)?;
            let shared = &runtime.shared;
            if let Place::Apart(apart) = &place {
                apart.end(shared).await?;
                sync_files(shared, &apart.record.info.id).await?;
                entry.set(apart.stopped(shared, None)?);
                sync_record(shared, &apart.record.info.id).await?;
                runtime.dismiss_keepers(None).await;
            }
            let Place::Live(sandbox) = place else {
                return Ok(());
            };
            sandbox.state.send_replace(SandboxState::Stopping);
            sandbox.stop(shared).await?;
            let id = sandbox.info().id;
            // Files before the record: a record in state `stopped` promises that the files are on
            // disk.
            sync_files(shared, &id).await?;
            stopped(shared, &entry, &sandbox, None).await?;
            sync_record(shared, &id).await
        })
        .await
    }

    /// Starts the processes of a stopped sandbox, on its files.
    pub async fn start(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let _busy = self.shared.busy.begin();
        let _time = self.time("start");
        self.change(id, |runtime, entry, place| async move {
            place.state().next(Transition::Start)?;
            let Place::Stopped(record, execs) = place else {
                return Ok(());
            };
            let sandbox = Sandbox::start(&runtime.shared, *record).await?;
            entry.set(Place::Live(Arc::clone(&sandbox)));
            execs.close();
            runtime.watch_over(&entry, &sandbox);
            Ok(())
        })
        .await
    }

    /// Watches for the exit of a sandbox that was not requested, and then marks it stopped.
    pub(super) fn watch_over(&self, entry: &Arc<Entry>, sandbox: &Arc<Sandbox>) {
        let (shared, entry) = (Arc::downgrade(&self.shared), Arc::downgrade(entry));
        let mut died = sandbox.died.clone();
        let sandbox = Arc::downgrade(sandbox);
        tokio::spawn(async move {
            let Ok(status) = died.wait_for(Option::is_some).await.map(|status| *status) else {
                return;
            };
            let Some(entry) = entry.upgrade() else { return };
            let _gate = entry.gate.lock().await;
            let (Some(shared), Some(sandbox)) = (shared.upgrade(), sandbox.upgrade()) else {
                return;
            };
            // Not if it was stopped or deleted meanwhile.
            if matches!(entry.place(), Place::Live(live) if Arc::ptr_eq(&live, &sandbox)) {
                let reason = reason(&sandbox, status.unwrap_or(9));
                let _ = stopped(&shared, &entry, &sandbox, Some(reason)).await;
                shared.ended.send_replace(());
                let id = sandbox.info().id;
                shared.note_record(&id);
                // No caller waits for it. If it fails, the kernel writes the data back later.
                let _ = sync_files(&shared, &id).await;
            }
        });
    }

    /// Replaces the record of a sandbox without processes.
    pub(super) fn rewrite(
        &self,
        entry: &Entry,
        record: Box<Record>,
        execs: Arc<ExecTable>,
    ) -> Result<(), Error> {
        record.write(&self.shared.instance.sandbox(&record.info.id))?;
        entry.set(Place::Stopped(record, execs));
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
async fn sync_files(shared: &Shared, id: &SandboxId) -> Result<(), Error> {
    if shared.instance.lasting.is_none() {
        return Ok(());
    }
    let place = shared.instance.disk.place(id);
    shared.syncer.sync_files(place).await
}

/// Syncs a sandbox's record, if the instance is persistent.
async fn sync_record(shared: &Shared, id: &SandboxId) -> Result<(), Error> {
    if shared.instance.lasting.is_none() {
        return Ok(());
    }
    let directory = shared.instance.sandbox(id);
    blocking(move || syncer::sync_record(&directory)).await
}

/// Marks a sandbox as stopped after its processes have ended.
async fn stopped(
    shared: &Arc<Shared>,
    entry: &Entry,
    sandbox: &Arc<Sandbox>,
    reason: Option<StopReason>,
) -> Result<(), Error> {
    sandbox.clear(shared).await?;
    let record = {
        let sandbox = Arc::clone(sandbox);
        blocking(move || {
            sandbox.write_down(|info| {
                info.state = SandboxState::Stopped;
                info.reason = reason;
            })
        })
        .await?
    };
    entry.set(Place::Stopped(Box::new(record), Arc::clone(&sandbox.execs)));
    Ok(())
}
