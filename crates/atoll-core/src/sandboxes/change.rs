//! What an owner may change of a sandbox that is there.

use std::collections::BTreeMap;

use atoll_model::{Error, Lifetime, Limits, Network, NetworkPolicy, Scope};
use atoll_store::SandboxRow;

use super::{SandboxView, check_alias, check_metadata};
use crate::{Core, RequestContext};

/// What is to be different. What is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct SandboxChange {
    /// What else it is called; inside, `None` is nothing.
    pub alias: Option<Option<String>>,
    /// What its owner writes on it.
    pub metadata: Option<BTreeMap<String, String>>,
    /// When its time is up, but for the lifetime itself.
    pub lifetime: Option<Lifetime>,
    /// Its ceilings.
    pub limits: Option<Limits>,
}

impl Core {
    /// Changes what its owner may change: what, is worked out of what it is when nobody else changes it.
    pub async fn change(
        &self,
        context: &RequestContext,
        name: &str,
        change: impl FnOnce(&SandboxRow) -> Result<SandboxChange, Error>,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        let held = self.find_and_lock(context, name).await?;
        let (entry, store) = (&held.entry, &self.inner.store);
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
        // The row first: whether the alias is free is known only then.
        if row.limits != before.limits {
            let set = self.inner.runtime.set_limits(&row.id, row.limits).await;
            if let Err(error) = set {
                // Other changes written in the meantime are kept.
                let back = entry.update(store, |row| {
                    (row.limits, row.alias) = (before.limits, before.alias);
                    (row.metadata, row.lifetime) = (before.metadata, before.lifetime);
                });
                back.await?;
                return Err(error);
            }
        }
        self.inner.expiry_changed.notify_one();
        Ok(row.into())
    }

    /// Connects it, or not, and says what it may reach.
    pub async fn set_network(
        &self,
        context: &RequestContext,
        name: &str,
        network: Option<Network>,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, Error> {
        let used = self.open_sandbox(context, name, Scope::Sandboxes).await?;
        let held = self.find_and_lock(context, name).await?;
        let entry = &held.entry;
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
