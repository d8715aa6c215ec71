//! How much a sandbox may use, and how much it does.

use std::sync::Arc;

use atoll_model::{Bytes, DiskUsage, Error, Limits, SandboxId, SandboxInfo, SandboxState, Usage};

use super::{LocalRuntime, Place};
use crate::sandbox::{blocking, size};

impl LocalRuntime {
    /// Changes what a sandbox may use. It holds when this returns: the kernel keeps it, and commands that begin
    /// later are told; programs that run keep their processors. For a paused one programs are told when it
    /// goes on, for a stopped one when it starts. Memory that is in use cannot be taken away.
    pub async fn set_limits(&self, id: &SandboxId, limits: Limits) -> Result<SandboxInfo, Error> {
        let _time = self.time("set_limits");
        size::check(&self.shared, &limits)?;
        self.change(id, move |runtime, entry, place| async move {
            let shared = &runtime.shared;
            match place {
                Place::Live(sandbox) => sandbox.set_limits(shared, limits).await,
                Place::Stopped(mut record, execs) => {
                    let name = record.info.id.clone();
                    if record.info.limits.disk != limits.disk {
                        // Its files are there although it does not run.
                        let shared = Arc::clone(shared);
                        let limit = move || shared.instance.disk.limit(&name, limits.disk);
                        blocking(limit).await?;
                    }
                    record.set_limits(limits);
                    runtime.rewrite(&entry, record, execs)
                }
                Place::Apart(apart) => Err(apart.refusal()),
                Place::Gone => Ok(()),
            }
        })
        .await
    }

    /// What a sandbox uses now. Its PID 1 counts as a process, what only waits for a command does not.
    pub fn usage(&self, id: &SandboxId) -> Result<Usage, Error> {
        let place = self.entry(id)?.place();
        let sandbox = match &place {
            Place::Live(sandbox) if sandbox.died.borrow().is_none() => sandbox,
            Place::Apart(apart) => return Err(apart.refusal()),
            _ => return Err(SandboxState::Stopped.refusal("measured")),
        };
        let usage = sandbox.group.usage();
        Ok(Usage {
            cpu: usage.cpu,
            memory: Bytes(usage.memory),
            pids: usage.pids,
        })
    }

    /// What a sandbox's files take now, running or not.
    pub async fn disk_usage(&self, id: &SandboxId) -> Result<DiskUsage, Error> {
        let limit = self.get(id)?.limits.disk;
        let (shared, id) = (Arc::clone(&self.shared), id.clone());
        blocking(move || shared.instance.disk.usage(&id, limit)).await
    }
}
