//! Access tokens: credentials for one sandbox, without an API key.
//!
//! A token is a MAC over the sandbox id and the token's scope. It is valid as long as the sandbox exists, survives
//! pauses and server restarts, and needs no storage.

use std::net::IpAddr;
use std::sync::Arc;

use atoll_model::{Error, OrgId, PortAccess, SandboxId, SandboxState};

use crate::live_sandboxes::LiveSandbox;
use crate::{Core, SandboxAccess, SignedUrl};

/// Permission of an access token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenScope {
    /// Commands and files.
    Data,
    /// Requests to the sandbox's ports.
    Ports,
}

impl TokenScope {
    /// Name in the MAC. Changing it would invalidate all tokens.
    fn name(self) -> &'static str {
        match self {
            Self::Data => "agent",
            Self::Ports => "ports",
        }
    }

    /// Request header that carries the token.
    pub fn header(self) -> &'static str {
        match self {
            Self::Data => "x-access-token",
            Self::Ports => "e2b-traffic-access-token",
        }
    }
}

/// A sandbox that was looked up before the caller is authenticated.
#[derive(Debug, Clone)]
pub struct SandboxRef {
    core: Core,
    entry: Arc<LiveSandbox>,
    id: SandboxId,
}

impl Core {
    /// Computes the access token of a sandbox.
    pub fn token(&self, id: &SandboxId, scope: TokenScope) -> String {
        self.inner.signer.token(id.as_str(), scope.name())
    }

    /// Looks up a sandbox of any org by id.
    pub fn lookup_unauthenticated(&self, id: &SandboxId) -> Option<SandboxRef> {
        let entry = self.inner.sandboxes.get(id)?;
        Some(SandboxRef {
            core: self.clone(),
            entry,
            id: id.clone(),
        })
    }

    /// Applies the rate limit for unauthenticated requests that make the server search for a sandbox.
    pub fn check_search_rate(&self, client: IpAddr) -> Result<(), Error> {
        self.inner.searches.check(client)
    }

    /// Returns up to `limit` sandboxes of all orgs, newest first.
    pub fn newest_unauthenticated(&self, limit: usize) -> Vec<SandboxRef> {
        let newest = self.inner.sandboxes.newest(limit).into_iter();
        let newest = newest.map(|entry| SandboxRef {
            core: self.clone(),
            id: entry.read(|row| row.id.clone()),
            entry,
        });
        newest.collect()
    }

    /// Verifies an access token in constant time, also for a sandbox that does not exist.
    pub fn verify_token(&self, id: &SandboxId, scope: TokenScope, token: &str) -> bool {
        let signer = &self.inner.signer;
        signer.verify_token(id.as_str(), scope.name(), token)
    }
}

impl SandboxRef {
    /// The sandbox id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The current state.
    pub fn state(&self) -> SandboxState {
        self.entry.read(|row| row.state)
    }

    /// Waits until the row has followed a change of the runtime. `None` if the sandbox was deleted.
    pub async fn caught_up(self) -> Option<Self> {
        self.core.catch_up(&self.entry).await;
        (!self.is_deleted()).then_some(self)
    }

    /// Whether the sandbox was deleted since the lookup.
    pub fn is_deleted(&self) -> bool {
        self.entry.read(|row| row.deleted_at.is_some())
    }

    /// The access token for a scope.
    pub fn token(&self, scope: TokenScope) -> &str {
        let tokens =
            || [TokenScope::Data, TokenScope::Ports].map(|scope| self.core.token(&self.id, scope));
        let [data, ports] = self.entry.tokens.get_or_init(tokens);
        match scope {
            TokenScope::Data => data,
            TokenScope::Ports => ports,
        }
    }

    /// Whether a text is the operator's static key.
    pub fn is_static_key(&self, text: &str) -> bool {
        self.core.is_static_key(text)
    }

    /// Verifies an access token in constant time.
    pub fn verify_token(&self, scope: TokenScope, token: &str) -> bool {
        self.core.verify_token(&self.id, scope, token)
    }

    /// Verifies the signature of a signed URL in constant time.
    pub fn verify_signed_url(&self, link: &SignedUrl, signature: &str) -> bool {
        self.core.inner.signer.verify(link, signature)
    }

    /// Whether access resumes or starts the sandbox.
    pub fn auto_resumes(&self) -> bool {
        self.entry.read(|row| row.lifetime.auto_resume)
    }

    /// Credential that requests to its ports need.
    pub fn port_access(&self) -> PortAccess {
        self.entry.read(|row| row.port_access)
    }

    /// The owner.
    pub fn org(&self) -> OrgId {
        self.entry.read(|row| row.org.clone())
    }

    /// Applies the rate limit of requests with an access token.
    pub fn check_rate(&self) -> Result<(), Error> {
        match &self.core.inner.rate {
            Some(rate) => rate.check_sandbox(&self.entry.bucket),
            None => Ok(()),
        }
    }

    /// Opens the sandbox. A paused or stopped one is resumed or started if it has `auto_resume`.
    pub async fn open(&self) -> Result<SandboxAccess, Error> {
        self.core.catch_up(&self.entry).await;
        if self.state() == SandboxState::Stopped && self.auto_resumes() {
            self.core.start_live(Arc::clone(&self.entry)).await?;
        }
        self.core.open_live(&self.entry).await
    }
}
