//! Warm sandboxes: claim for a create, and return to the pool.

use std::sync::Arc;
use std::time::Instant;

use atoll_model::{Error, Network, SandboxSpec, Timings};

use super::{Record, Sandbox, variables};
use crate::runtime::RuntimeState;
use crate::runtime::activity::DeadlineRecord;
use crate::sync::lock;

impl Sandbox {
    /// Whether it is alive and from the current layer of this template.
    pub(crate) fn is_from_template(&self, template: &str) -> bool {
        self.exit_status.borrow().is_none()
            && lock(&self.record).spec.template == template
            && !self.template.is_replaced()
    }

    /// Whether the spec needs no other limits and no network.
    fn needs_no_change(&self, spec: &SandboxSpec) -> bool {
        spec.limits == lock(&self.record).info.limits && spec.network == Network::None
    }

    /// Applies the limits and the network of a spec that was checked. If that fails, the sandbox is
    /// discarded.
    pub(crate) async fn apply_spec(
        self: Arc<Self>,
        shared: &Arc<RuntimeState>,
        spec: &SandboxSpec,
    ) -> Result<Arc<Self>, Error> {
        let applied = async {
            let authorities = lock(&self.record).authorities.clone();
            *lock(&self.environment) = variables(&self.template, authorities.as_ref(), spec)?;
            if self.needs_no_change(spec) {
                return Ok(());
            }
            // From here on it is neither warm nor acknowledged. If the server is killed, the next
            // one kills a sandbox without a record.
            Record::remove(&self.directory)?;
            let default = lock(&self.record).info.limits;
            self.resize_in_memory(default.memory, spec.limits.memory)?;
            let resized = self.resize(shared, default, spec.limits);
            let (resized, linked) = tokio::join!(resized, self.attach_network(shared, spec));
            resized.and(linked)
        };
        match applied.await {
            Ok(()) => Ok(self),
            Err(error) => {
                self.discard(shared).await;
                Err(error)
            }
        }
    }

    /// Returns it to the pool after a create failed. If it was changed already, it is discarded.
    pub(crate) async fn return_to_pool(
        self: Arc<Self>,
        shared: &Arc<RuntimeState>,
        spec: &SandboxSpec,
    ) {
        let rejected = if self.needs_no_change(spec) {
            shared.warm_pool.add(self).err()
        } else {
            Some(self)
        };
        if let Some(rejected) = rejected {
            rejected.discard(shared).await;
        }
    }

    /// Gives it to a create: writes the record with the spec.
    pub(crate) async fn claim(
        self: Arc<Self>,
        shared: &Arc<RuntimeState>,
        spec: SandboxSpec,
        begin: Instant,
    ) -> Result<Arc<Self>, Error> {
        let written = {
            let mut record = lock(&self.record);
            record.is_pooled = false;
            record.info.limits = spec.limits;
            record.info.network = spec.network;
            record.deadlines = spec.lifetime.map(DeadlineRecord::begin);
            record.spec = spec;
            record.info.created_at = crate::exec::now();
            record.info.timings = Timings {
                slot: begin.elapsed(),
                ..Timings::default()
            };
            record.write(&self.directory)
        };
        let boot_sent = match written {
            Ok(()) => self.write_resolv_conf().await,
            Err(error) => Err(error),
        };
        match boot_sent {
            Ok(()) => Ok(self),
            Err(error) => {
                self.discard(shared).await;
                Err(error)
            }
        }
    }
}
