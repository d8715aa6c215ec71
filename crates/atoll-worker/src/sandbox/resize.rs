//! Resizing: changes the limits of a sandbox while it runs.
//!
//! The kernel's limits come first, because the kernel can refuse them; then PID 1 updates the views
//! of programs (CPU affinity, file systems in memory). If a step fails, the old limits are
//! restored.

use std::sync::Arc;

use atoll_jail::plan::{self, IdRange, Size};
use atoll_jail::{rootfs, wire};
use atoll_model::{Bytes, Code, Error, Limits, SandboxId, SandboxSpec, SandboxState};

use super::{Record, Sandbox, planned, run_blocking};
use crate::error::jail;
use crate::runtime::RuntimeState;
use crate::sync::lock;
use atoll_jail::cgroup::SandboxCgroup;

/// Checks limits against the maximum and this host.
pub(crate) fn check(shared: &RuntimeState, limits: &Limits) -> Result<(), Error> {
    limits.check(&shared.max_limits, Bytes(shared.facts.memory))?;
    shared.instance.storage.check_limit(limits.disk)
}

/// Limits of the control groups, and what PID 1 has to set for programs.
pub(super) fn plan(
    shared: &RuntimeState,
    template: &crate::template::Template,
    (id, ids): (&SandboxId, IdRange),
    limits: Limits,
) -> Result<Size, Error> {
    let spec = SandboxSpec {
        limits,
        ..SandboxSpec::default()
    };
    let spec = planned::jail_spec(id, &spec, template, ids);
    plan::size(&spec, &shared.facts).map_err(|error| jail(&error))
}

/// Sets the kernel's limits, all of them or none.
pub(super) async fn enforce(
    shared: &Arc<RuntimeState>,
    id: &SandboxId,
    group: &SandboxCgroup,
    from: (plan::Limits, Bytes),
    to: (plan::Limits, Bytes),
) -> Result<(), Error> {
    let (shared, id, group) = (Arc::clone(shared), id.clone(), group.clone());
    run_blocking(move || {
        let storage = &shared.instance.storage;
        if from.1 != to.1 {
            storage.set_limit(&id, to.1)?;
        }
        let changed = group.change(&from.0, &to.0, &shared.instance.cgroups);
        if changed.is_err() && from.1 != to.1 {
            let _ = storage.set_limit(&id, from.1);
        }
        changed.map_err(|error| resize_error(&error, group.usage().memory))
    })
    .await
}

/// Memory in use cannot be taken away: EBUSY becomes `Conflict`.
fn resize_error(error: &atoll_jail::Error, used: u64) -> Error {
    match error {
        atoll_jail::Error::Step { source, .. }
            if source.kind() == std::io::ErrorKind::ResourceBusy =>
        {
            let message = format!(
                "the sandbox uses {} of memory, more than the new limit",
                Bytes(used)
            );
            Error::new(Code::Conflict, message)
                .remedy("end some of its programs, or choose a higher limit")
                .detail("field", "memory")
        }
        error => jail(error),
    }
}

impl Sandbox {
    /// Changes the limits and the record. The limits have been checked.
    pub(crate) async fn set_limits(
        &self,
        shared: &Arc<RuntimeState>,
        limits: Limits,
    ) -> Result<(), Error> {
        let old = lock(&self.record).info.limits;
        self.resize(shared, old, limits).await?;
        let written = {
            let mut record = lock(&self.record);
            record.set_limits(limits);
            let written = record.write(&self.directory);
            if written.is_err() {
                record.set_limits(old);
            }
            written
        };
        if written.is_err() {
            // The next server reads the limits from the record, which still has the old ones.
            let _ = self.resize(shared, limits, old).await;
        }
        written
    }

    /// Changes the limits without the record.
    pub(super) async fn resize(
        &self,
        shared: &Arc<RuntimeState>,
        from: Limits,
        to: Limits,
    ) -> Result<(), Error> {
        if from == to {
            return Ok(());
        }
        let id = lock(&self.record).info.id.clone();
        let planned = |limits| plan(shared, &self.template, (&id, self.ids), limits);
        let (old, new) = (planned(from)?, planned(to)?);
        let (old_limits, new_limits) = (
            (old.limits.clone(), from.disk),
            (new.limits.clone(), to.disk),
        );
        enforce(
            shared,
            &id,
            &self.group,
            old_limits.clone(),
            new_limits.clone(),
        )
        .await?;
        let updated = self.update_views(new.since(&old)).await;
        if updated.is_err() {
            let _ = enforce(shared, &id, &self.group, new_limits, old_limits).await;
            let _ = self.update_views(old.since(&new)).await;
        }
        updated
    }

    /// Resizes file systems in memory to the size that a new sandbox would have. Only before the
    /// first exec.
    pub(super) fn resize_in_memory(&self, from: Bytes, to: Bytes) -> Result<(), Error> {
        if from == to {
            return Ok(());
        }
        let namespace = self.netns_inode.unwrap_or_default();
        rootfs::resize_in_memory(self.pid, namespace, &plan::in_memory(to.0))
            .map_err(|error| jail(&error))
    }

    /// Has PID 1 update the views of programs. Commands that start after this see the new size.
    async fn update_views(&self, size: wire::Size) -> Result<(), Error> {
        if *self.state.borrow() == SandboxState::Paused {
            // PID 1 reads it when it is resumed.
            return self.init.resize_later(size);
        }
        self.init.resize(size).await
    }
}

impl Record {
    /// Sets the limits, in effect now and after a restart.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.info.limits = limits;
        self.spec.limits = limits;
    }
}
