//! Changes of a sandbox's properties by its owner.

use std::collections::BTreeMap;

use atoll_model::{Error, Lifetime, Limits, Network, NetworkPolicy, Scope};
use atoll_store::SandboxRow;

use super::{SandboxView, check_alias, check_metadata};
use crate::{Access as _, Core, RequestContext};

/// Request to change a sandbox. `None` leaves a property as it is.
#[derive(Debug, Clone, Default)]
pub struct SandboxChange {
    /// Alias. The inner `None` removes it.
    pub alias: Option<Option<String>>,
    /// Key-value pairs of the owner. Replaces all of them.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Timeouts and their actions, except `timeout` itself.
    pub lifetime: Option<Lifetime>,
    /// Resource limits.
    pub limits: Option<Limits>,
}

impl Core {
    /// Changes a sandbox. `change` computes the request from the row while the transition lock is held.
    pub async fn change(
        &self,
        context: &RequestContext,
        name: &str,
        change: impl FnOnce(&SandboxRow) -> Result<SandboxChange, Error>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let locked = self.find_and_lock(context, name).await?;
        let (entry, store) = (&locked.entry, &self.inner.store);
        let before = entry.row();
        let change = change(&before)?;
        if let Some(Some(alias)) = &change.alias {
            check_alias(alias)?;
        }
        if let Some(metadata) = &change.metadata {
            check_metadata(metadata)?;
        }
        let written = entry.update(store, |row| {
            row.limits = change.limits.unwrap_or(row.limits);
            row.alias = change.alias.unwrap_or(row.alias.take());
            row.metadata = change.metadata.unwrap_or(std::mem::take(&mut row.metadata));
            if let Some(lifetime) = change.lifetime {
                row.lifetime = Lifetime {
                    timeout: row.lifetime.timeout,
                    ..lifetime
                };
            }
        });
        let row = written.await?;
        // Update the row first, because that checks whether the alias is free.
        if row.limits != before.limits {
            let set = self.inner.runtime.set_limits(&row.id, row.limits).await;
            if let Err(error) = set {
                // Restore only these columns: others may have changed meanwhile.
                let back = entry.update(store, |row| {
                    (row.limits, row.alias) = (before.limits, before.alias);
                    (row.metadata, row.lifetime) = (before.metadata, before.lifetime);
                });
                back.await?;
                return Err(error);
            }
        }
        self.push_deadlines(&row).await?;
        Ok(row.into())
    }

    /// Changes the network mode and policy of a running sandbox. `network` of `None` keeps the mode.
    pub async fn set_network(
        &self,
        context: &RequestContext,
        name: &str,
        network: Option<Network>,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, Error> {
        let used = self.open(context, name, Scope::Sandboxes).await?;
        let locked = self.find_and_lock(context, name).await?;
        let entry = &locked.entry;
        let network = network.unwrap_or_else(|| entry.read(|row| row.network));
        let runtime = &self.inner.runtime;
        let changed = runtime.set_network(used.id(), network, policy.clone());
        changed.await?;
        let written = entry.update(&self.inner.store, |row| {
            (row.network, row.policy) = (network, policy);
        });
        written.await.map(SandboxView::from)
    }
}
