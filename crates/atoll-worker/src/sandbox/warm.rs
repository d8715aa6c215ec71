//! A sandbox that is made before anybody asks for it, and becomes somebody's.

use std::sync::Arc;
use std::time::Instant;

use atoll_model::{Error, Network, SandboxSpec, Timings};

use super::{Record, Sandbox, lock, variables};
use crate::runtime::Shared;

impl Sandbox {
    /// It is alive, and made from this template as that is now.
    pub(crate) fn is_made_from(&self, template: &str) -> bool {
        self.died.borrow().is_none()
            && lock(&self.record).spec.template == template
            && !self.template.is_replaced()
    }

    /// It is as it was made, and so could be anybody's.
    fn suits(&self, spec: &SandboxSpec) -> bool {
        spec.limits == lock(&self.record).info.limits && spec.network == Network::None
    }

    /// Gets the size and the network that somebody asks for: until now it was only warm. What is asked for is
    /// checked; if it cannot be given after all, nothing is left of it.
    pub(crate) async fn fit(
        self: Arc<Self>,
        shared: &Arc<Shared>,
        spec: &SandboxSpec,
    ) -> Result<Arc<Self>, Error> {
        let fitted = async {
            let authorities = lock(&self.record).authorities.clone();
            *lock(&self.environment) = variables(&self.template, authorities.as_ref(), spec)?;
            if self.suits(spec) {
                return Ok(());
            }
            // A server that is killed from here on leaves one that is neither warm nor somebody's: without
            // a record the next one ends it.
            Record::remove(&self.directory)?;
            let usual = lock(&self.record).info.limits;
            self.resize_in_memory(usual.memory, spec.limits.memory)?;
            let resized = self.resize(shared, usual, spec.limits);
            let (resized, linked) = tokio::join!(resized, self.link_with(shared, spec));
            resized.and(linked)
        };
        match fitted.await {
            Ok(()) => Ok(self),
            Err(error) => {
                self.undo(shared).await;
                Err(error)
            }
        }
    }

    /// Nobody wants it after all.
    pub(crate) async fn put_back(self: Arc<Self>, shared: &Arc<Shared>, spec: &SandboxSpec) {
        let late = if self.suits(spec) {
            shared.pool.add(self).err()
        } else {
            Some(self)
        };
        if let Some(late) = late {
            late.undo(shared).await;
        }
    }

    /// Becomes somebody's.
    pub(crate) async fn belong(
        self: Arc<Self>,
        shared: &Arc<Shared>,
        spec: SandboxSpec,
        begin: Instant,
    ) -> Result<Arc<Self>, Error> {
        let written = {
            let mut record = lock(&self.record);
            record.pooled = false;
            record.info.limits = spec.limits;
            record.info.network = spec.network;
            record.spec = spec;
            record.info.created_at = crate::exec::now();
            record.info.timings = Timings {
                slot: begin.elapsed(),
                ..Timings::default()
            };
            record.write(&self.directory)
        };
        let told = match written {
            Ok(()) => self.tell_names().await,
            Err(error) => Err(error),
        };
        match told {
            Ok(()) => Ok(self),
            Err(error) => {
                self.undo(shared).await;
                Err(error)
            }
        }
    }
}
