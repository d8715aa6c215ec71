//! Lifecycle half of the local runtime.

use async_trait::async_trait;
use atoll_model::runtime::{Lifecycle, Recovery, Reservation, RuntimeStatus};
use atoll_model::{
    Deadlines, Error, Limits, Network, NetworkPolicy, SandboxId, SandboxInfo, SandboxSpec,
    SandboxState,
};
use prometheus_client::registry::Registry;

use super::{LocalRuntime, reservation};
use crate::orphans;
use crate::runtime::not_found;

#[async_trait]
impl Lifecycle for LocalRuntime {
    async fn reserve(&self, spec: SandboxSpec) -> Result<Box<dyn Reservation>, Error> {
        Ok(Box::new(reservation::reserve(self, spec).await?))
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Error> {
        let all = Self::list(self).into_iter();
        Ok(all.map(|info| self.with_deadlines(info)).collect())
    }

    async fn get(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::get(self, id)?))
    }

    fn known_state(&self, id: &SandboxId) -> Option<SandboxState> {
        Some(self.entry(id).ok()?.state().sandbox_state())
    }

    async fn spec(&self, id: &SandboxId) -> Result<SandboxSpec, Error> {
        Self::spec(self, id)
    }

    async fn start(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::start(self, id).await?))
    }

    async fn stop(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::stop(self, id).await?))
    }

    async fn pause(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::pause(self, id).await?))
    }

    async fn resume(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::resume(self, id).await?))
    }

    async fn set_limits(&self, id: &SandboxId, limits: Limits) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::set_limits(self, id, limits).await?))
    }

    async fn set_network(
        &self,
        id: &SandboxId,
        network: Network,
        policy: NetworkPolicy,
    ) -> Result<SandboxInfo, Error> {
        Ok(self.with_deadlines(Self::set_network(self, id, network, policy).await?))
    }

    async fn set_deadlines(&self, id: &SandboxId, deadlines: Deadlines) -> Result<(), Error> {
        Self::set_deadlines(self, id, deadlines).await
    }

    async fn keep_alive(&self, id: &SandboxId) -> Result<(), Error> {
        self.entry(id)?.activity.record();
        Ok(())
    }

    async fn get_settled(&self, id: &SandboxId) -> Result<SandboxInfo, Error> {
        let entry = self.entry(id)?;
        let _transition = entry.transition_lock.lock().await;
        let info = entry.info().ok_or_else(|| not_found(id))?;
        Ok(self.with_deadlines(info))
    }

    async fn delete(&self, id: &SandboxId) -> Result<(), Error> {
        Self::delete(self, id).await
    }

    async fn move_to_orphaned(&self, id: &SandboxId) -> Result<(), Error> {
        Self::move_to_orphaned(self, id).await
    }

    async fn recover(
        &self,
        id: &SandboxId,
        spec: SandboxSpec,
        created_at: i64,
    ) -> Result<Option<Recovery>, Error> {
        Self::recover(self, id, spec, created_at).await
    }

    async fn remove_old_orphans(&self, now: i64) -> Result<(), Error> {
        let retention = orphans::RETENTION.as_micros() as i64;
        self.remove_orphans(now - retention).await
    }

    async fn sync_history(&self, id: &SandboxId) -> Result<(), Error> {
        Self::sync_history(self, id).await
    }

    fn enforces_disk_limits(&self) -> bool {
        Self::enforces_disk_limits(self)
    }

    fn status(&self) -> RuntimeStatus {
        let (warm, embryos) = self.pool_sizes();
        RuntimeStatus {
            warm,
            embryos,
            journal: self.journal_status(),
            oldest_unsynced: self.oldest_unsynced(),
        }
    }

    fn register(&self, registry: &mut Registry) {
        Self::register(self, registry);
    }

    async fn close(&self) -> Result<(), Error> {
        self.clone().close().await
    }
}
