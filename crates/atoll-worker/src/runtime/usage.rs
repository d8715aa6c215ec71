//! Resource limits and current usage of a sandbox.

use std::sync::Arc;

use atoll_model::{Bytes, DiskUsage, Error, Limits, SandboxId, SandboxInfo, SandboxState, Usage};

use super::{EntryState, LocalRuntime};
use crate::sandbox::{resize, run_blocking};

impl LocalRuntime {
    /// Changes a sandbox's limits, in force when this returns. Commands that start later see the
    /// new size; running programs keep their CPU affinity. A paused sandbox's views are updated
    /// when it resumes, a stopped one's when it starts. Memory in use cannot be taken away.
    pub async fn set_limits(&self, id: &SandboxId, limits: Limits) -> Result<SandboxInfo, Error> {
        let _time = self.time("set_limits");
        resize::check(&self.shared, &limits)?;
        self.transition(id, move |runtime, entry, state| async move {
            let shared = &runtime.shared;
            match state {
                EntryState::Live(sandbox) => sandbox.set_limits(shared, limits).await,
                EntryState::Stopped(mut record, execs) => {
                    let name = record.info.id.clone();
                    if record.info.limits.disk != limits.disk {
                        // A storage limit applies to files, so also to a stopped sandbox.
                        let shared = Arc::clone(shared);
                        let limit = move || shared.instance.storage.set_limit(&name, limits.disk);
                        run_blocking(limit).await?;
                    }
                    record.set_limits(limits);
                    runtime.update_stopped(&entry, record, execs)
                }
                EntryState::Unadoptable(sandbox) => Err(sandbox.error()),
                EntryState::Gone => Ok(()),
            }
        })
        .await
    }

    /// Current CPU, memory and process count of a sandbox. PID 1 counts as a process, an idle
    /// helper does not.
    pub fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let state = self.entry(id)?.state();
        let sandbox = match &state {
            EntryState::Live(sandbox) if sandbox.exit_status.borrow().is_none() => sandbox,
            EntryState::Unadoptable(sandbox) => return Err(sandbox.error()),
            _ => return Err(SandboxState::Stopped.state_error("measured")),
        };
        let usage = sandbox.group.usage();
        Ok(Usage {
            cpu: usage.cpu,
            memory: Bytes(usage.memory),
            pids: usage.pids,
        })
    }

    /// Whether the kernel enforces the disk limits of sandboxes.
    pub fn enforces_disk_limits(&self) -> bool {
        self.shared.instance.storage.enforces_limits()
    }

    /// Disk usage of a sandbox's files, in any state.
    pub async fn disk_usage(&self, id: &SandboxId) -> Result<DiskUsage, Error> {
        let limit = self.get(id)?.limits.disk;
        let (shared, id) = (Arc::clone(&self.shared), id.clone());
        run_blocking(move || shared.instance.storage.usage(&id, limit)).await
    }
}
