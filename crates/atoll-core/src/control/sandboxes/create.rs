//! Sandbox creation. The row is inserted before the runtime is called; a repeated idempotency key returns the first
//! result.
//!
//! A create runs to completion even if its caller is cancelled. A sandbox whose create was not acknowledged is removed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use atoll_model::{
    Code, Error, Idempotency, Org, PortAccess, SandboxId, SandboxInfo, SandboxSpec, SandboxState,
    Scope, SessionId, lock,
};
use atoll_store::{QuotaClaim, SandboxRow};

use super::timeouts::{check_timeout, copy_deadlines};
use super::{SandboxView, check_alias, check_metadata, quota_exceeded};
use crate::control::keys;
use crate::live_sandboxes::{LiveSandbox, LockedSandbox};
use crate::{Core, Inner, RequestContext, error, run_to_completion};

/// Request to create a sandbox.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// The part that concerns the runtime. Without a lifetime, the sandbox gets the default one.
    pub spec: SandboxSpec,
    /// Alias, unique per org.
    pub alias: Option<String>,
    /// Key-value pairs of the owner.
    pub metadata: BTreeMap<String, String>,
    /// Credential that requests to its ports need.
    pub port_access: PortAccess,
    /// Idempotency key and request fingerprint.
    pub idempotency: Option<Idempotency>,
}

/// Upper bound between two checks while waiting for a concurrent create with the same key.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Core {
    /// Creates a sandbox. Commands work when this returns.
    pub async fn create(
        &self,
        context: &RequestContext,
        mut request: NewSandbox,
    ) -> Result<SandboxView, Error> {
        context.require(Scope::Sandboxes)?;
        if let Some(alias) = &request.alias {
            check_alias(alias)?;
        }
        check_metadata(&request.metadata)?;
        let lifetime = *request.spec.lifetime.get_or_insert_default();
        check_timeout(&context.org, lifetime.timeout)?;
        let (core, org) = (self.clone(), context.org.clone());
        let work = async move {
            if let Some(idempotency) = request.idempotency.clone() {
                return core.create_idempotent(org, request, idempotency).await;
            }
            core.create_measured(org, request).await
        };
        run_to_completion(work).await
    }

    /// Creates a sandbox, or returns the result of an earlier create with the same idempotency key.
    async fn create_idempotent(
        &self,
        org: Org,
        request: NewSandbox,
        idempotency: Idempotency,
    ) -> Result<SandboxView, Error> {
        let mut changes = self.inner.store.subscribe_changes();
        loop {
            changes.mark_unchanged();
            let before = self
                .inner
                .store
                .find_idempotent(&org.id, &idempotency.key)
                .await;
            let Some((fingerprint, row)) = before.map_err(error::store)? else {
                match self.create_measured(org.clone(), request.clone()).await {
                    // A concurrent create with the same key was first.
                    Err(error) if error.code == Code::IdempotencyMismatch => continue,
                    result => return result,
                }
            };
            if fingerprint != idempotency.fingerprint {
                return Err(error::store(atoll_store::Error::IdempotencyKeyTaken));
            }
            if row.state != SandboxState::Creating {
                return Ok(row.into());
            }
            if self.inner.abandoned_creates().contains_key(&row.id) {
                self.inner.discard_create(&row).await?;
                continue;
            }
            // The other create runs in this process. Its end is a change, unless it cannot be written.
            let _ = tokio::time::timeout(RECHECK_INTERVAL, changes.changed()).await;
        }
    }

    async fn create_measured(&self, org: Org, request: NewSandbox) -> Result<SandboxView, Error> {
        let (begin, template) = (Instant::now(), request.spec.template.clone());
        let result = self.create_inner(org, request).await;
        let metrics = &self.inner.metrics;
        metrics.record_create(&template, &result, begin.elapsed());
        result
    }

    async fn create_inner(&self, org: Org, request: NewSandbox) -> Result<SandboxView, Error> {
        let begin = Instant::now();
        let reservation = self.inner.runtime.reserve(request.spec.clone()).await?;
        self.inner.metrics.record_queue_wait(begin.elapsed());
        let inserted = self
            .insert_row(reservation.id().clone(), org, request)
            .await;
        // Keep the transition lock until the row has the result.
        let locked = match inserted {
            Ok(locked) => locked,
            Err(error) => {
                reservation.release().await;
                return Err(error);
            }
        };
        match reservation.create().await {
            Ok(info) => self.mark_running(&locked.entry, info).await,
            Err(error) => {
                self.mark_failed(&locked.entry, &error).await?;
                Err(error)
            }
        }
    }

    /// Inserts the row in state `creating`, if the quota of the org allows it.
    async fn insert_row(
        &self,
        id: SandboxId,
        org: Org,
        request: NewSandbox,
    ) -> Result<LockedSandbox, Error> {
        let row = SandboxRow {
            id,
            session: SessionId::random(),
            org: org.id,
            alias: request.alias,
            template: request.spec.template,
            state: SandboxState::Creating,
            reason: None,
            error: None,
            metadata: request.metadata,
            limits: request.spec.limits,
            network: request.spec.network,
            policy: request.spec.policy,
            port_access: request.port_access,
            durable: request.spec.durable,
            lifetime: request.spec.lifetime.unwrap_or_default(),
            created_at: self.now(),
            started_at: None,
            end_at: None,
            time_left: None,
            stopped_at: None,
            deleted_at: None,
        };
        let store = &self.inner.store;
        let claim = store.insert_sandbox(&row, org.max_sandboxes, request.idempotency.as_ref());
        // The org was removed, and the caller's key with it, after the caller was authenticated.
        let claim = claim.await.map_err(|error| match error {
            atoll_store::Error::OrgNotFound => keys::refused(),
            error => error::store(error),
        });
        if claim? == QuotaClaim::Exceeded {
            return Err(quota_exceeded(org.max_sandboxes));
        }
        Ok(self.inner.sandboxes.insert_locked(row).await)
    }

    /// Updates the row of a sandbox that runs now.
    async fn mark_running(
        &self,
        entry: &Arc<LiveSandbox>,
        info: SandboxInfo,
    ) -> Result<SandboxView, Error> {
        let written = entry.update(&self.inner.store, |row| {
            row.state = info.state;
            row.started_at = Some(self.now());
            copy_deadlines(row, &info);
        });
        let row = match written.await {
            Ok(row) => row,
            Err(error) => {
                // The create is not acknowledged: remove the sandbox, and release its quota and idempotency key.
                self.inner.sandboxes.remove(&info.id);
                let _ = self.inner.runtime.delete(&info.id).await;
                let row = entry.row();
                self.inner
                    .abandoned_creates()
                    .insert(row.id.clone(), row.clone());
                let _ = self.inner.discard_create(&row).await;
                return Err(error);
            }
        };
        Ok(SandboxView {
            row,
            timings: Some(info.timings),
        })
    }

    /// Updates the row of a failed create.
    async fn mark_failed(&self, entry: &Arc<LiveSandbox>, error: &Error) -> Result<(), Error> {
        let text = error.message.clone();
        // The id was never returned: mark the row as deleted at once, which releases the quota.
        let written = entry.update(&self.inner.store, |row| {
            row.state = SandboxState::Failed;
            row.error = Some(text);
            row.deleted_at = Some(self.now());
        });
        let written = written.await;
        let id = entry.read(|row| row.id.clone());
        self.inner.sandboxes.remove(&id);
        written?;
        let deleted = self.inner.store.delete_idempotency_key(&id).await;
        deleted.map_err(error::store)
    }
}

impl Inner {
    /// Rows of creates that were not acknowledged and whose rows are not removed yet.
    fn abandoned_creates(&self) -> MutexGuard<'_, HashMap<SandboxId, SandboxRow>> {
        lock(&self.abandoned_creates)
    }

    /// Removes the row of an abandoned create.
    async fn discard_create(&self, row: &SandboxRow) -> Result<(), Error> {
        let discarded = self.store.discard_create(row, self.clock.now()).await;
        discarded.map_err(error::store)?;
        self.abandoned_creates().remove(&row.id);
        Ok(())
    }

    /// Retries to remove the rows of all abandoned creates.
    pub(crate) async fn retry_discards(&self) {
        let rows: Vec<SandboxRow> = self.abandoned_creates().values().cloned().collect();
        for row in rows {
            let _ = self.discard_create(&row).await;
        }
    }
}
