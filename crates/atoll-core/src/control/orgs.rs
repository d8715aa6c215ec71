//! Orgs: creation, limits and removal. The operator's org, created at the first start, has no limits.

use atoll_model::{Code, Error, Org, OrgId, Page, PageRequest, Scope, lock};
use atoll_store::{OrgRemoval, Store};

use crate::{Core, RequestContext, error, run_to_completion};

/// Request to create or change an org.
#[derive(Debug, Clone)]
pub struct OrgRequest {
    /// Display name.
    pub name: Option<String>,
    /// Maximum number of concurrent sandboxes. The inner `None` means no limit.
    pub max_sandboxes: Option<Option<u32>>,
    /// Maximum timeout in seconds. The inner `None` means no limit.
    pub max_timeout: Option<Option<u32>>,
}

impl OrgRequest {
    /// Rejects a maximum timeout of 0, which means "no expiry" in other places.
    fn check(&self) -> Result<(), Error> {
        if self.max_timeout != Some(Some(0)) {
            return Ok(());
        }
        Err(Error::invalid(
            "maxTimeout",
            "maxTimeout is 0: no sandbox could live",
            "give seconds from 1 on, or null for no end",
        ))
    }
}

pub(crate) async fn first(store: &Store, now: i64) -> Result<Org, Error> {
    let all = store.orgs().await.map_err(error::store)?;
    if let Some(first) = all.into_iter().last() {
        return Ok(first);
    }
    let org = Org {
        id: OrgId::random(),
        name: "main".into(),
        max_sandboxes: None,
        max_timeout: None,
        created_at: now,
    };
    store.insert_org(&org).await.map_err(error::store)?;
    Ok(org)
}

impl Core {
    /// Returns all orgs to an admin, and only their own to other callers.
    pub async fn orgs(
        &self,
        context: &RequestContext,
        page: &PageRequest,
    ) -> Result<Page<Org>, Error> {
        let orgs = match context.scope {
            Scope::Admin => self.inner.store.orgs().await.map_err(error::store)?,
            Scope::Sandboxes | Scope::Read => vec![context.org.clone()],
        };
        Ok(Page::from_unsorted(orgs, page, |org: &Org| {
            (org.created_at, org.id.to_string())
        }))
    }

    /// Creates an org.
    pub async fn create_org(
        &self,
        context: &RequestContext,
        request: OrgRequest,
    ) -> Result<Org, Error> {
        context.require(Scope::Admin)?;
        request.check()?;
        let name = request.name.unwrap_or_default();
        Org::check_name(&name)?;
        let org = Org {
            id: OrgId::random(),
            name,
            max_sandboxes: request
                .max_sandboxes
                .unwrap_or(Some(Org::DEFAULT_MAX_SANDBOXES)),
            max_timeout: request
                .max_timeout
                .unwrap_or(Some(Org::DEFAULT_MAX_TIMEOUT_SECS)),
            created_at: self.now(),
        };
        self.inner
            .store
            .insert_org(&org)
            .await
            .map_err(error::store)?;
        Ok(org)
    }

    /// Returns an org that the caller may read.
    pub async fn org(&self, context: &RequestContext, id: &str) -> Result<Org, Error> {
        let id: OrgId = id.parse().map_err(|_| not_found())?;
        if context.scope != Scope::Admin && context.org.id != id {
            return Err(not_found());
        }
        let org = self.inner.store.org(&id).await.map_err(error::store)?;
        org.ok_or_else(not_found)
    }

    /// Changes an org's name and limits.
    pub async fn update_org(
        &self,
        context: &RequestContext,
        id: &str,
        request: OrgRequest,
    ) -> Result<Org, Error> {
        context.require(Scope::Admin)?;
        request.check()?;
        let mut org = self.org(context, id).await?;
        if let Some(name) = request.name {
            Org::check_name(&name)?;
            org.name = name;
        }
        org.max_sandboxes = request.max_sandboxes.unwrap_or(org.max_sandboxes);
        org.max_timeout = request.max_timeout.unwrap_or(org.max_timeout);
        self.inner
            .store
            .update_org(&org)
            .await
            .map_err(error::store)?;
        self.inner.keys.invalidate();
        Ok(org)
    }

    /// Removes an org with its keys and its history. Refused while the org has sandboxes that are not deleted.
    pub async fn remove_org(&self, context: &RequestContext, id: &str) -> Result<(), Error> {
        context.require(Scope::Admin)?;
        let org = self.org(context, id).await?;
        if org.id == self.first_org().await?.id {
            let message = format!(
                "org {} is the operator's own and cannot be removed",
                org.name
            );
            return Err(Error::new(Code::Conflict, message)
                .remedy("remove its sandboxes and keys one by one instead"));
        }
        let core = self.clone();
        run_to_completion(async move { core.remove_unless_used(&org).await }).await
    }

    async fn remove_unless_used(&self, org: &Org) -> Result<(), Error> {
        let in_use = |sandboxes: String| {
            let message = format!("org {} has {sandboxes}", org.name);
            Error::new(Code::Conflict, message)
                .remedy("delete them first, with a key of the org, or let their lifetimes end")
        };
        // Without its row, the next start would move such a sandbox to `orphaned/` instead of deleting it.
        let pending_deletes = lock(&self.inner.pending_deletes).clone();
        for id in pending_deletes {
            let session = self.inner.store.session(&org.id, id.as_str()).await;
            if session.map_err(error::store)?.is_some() {
                let message = format!(
                    "org {} has a sandbox whose files are being deleted",
                    org.name
                );
                return Err(Error::new(Code::Conflict, message).remedy("try again later"));
            }
        }
        let removal = self.inner.store.remove_org(&org.id).await;
        let (keys, sessions) = match removal.map_err(error::store)? {
            OrgRemoval::Removed { keys, sessions } => (keys, sessions),
            OrgRemoval::HasSandboxes(1) => return Err(in_use("a sandbox".to_owned())),
            OrgRemoval::HasSandboxes(count) => return Err(in_use(format!("{count} sandboxes"))),
            OrgRemoval::NotFound => return Err(not_found()),
        };
        self.inner.announce_revoked(&org.id, keys);
        let removed = self.inner.store.remove_history(&org.id, &sessions).await;
        if let Err(failure) = removed {
            tracing::warn!(org = %org.id, %failure, "history of a removed org stays until its retention ends");
        }
        Ok(())
    }
}

fn not_found() -> Error {
    Error::new(Code::OrgNotFound, "there is no such org")
}
