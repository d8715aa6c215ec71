//! Ways into a sandbox that need no key: whoever has the token of a scope may use this one sandbox through it, for as
//! long as there is the sandbox. A token is made from the server's secret and the sandbox's id, so it is the same after a
//! pause or a restart, and nothing has to be kept.

use std::net::IpAddr;
use std::sync::Arc;

use atoll_model::{Error, OrgId, PortAccess, SandboxId, SandboxState};

use crate::live_sandboxes::LiveSandbox;
use crate::{Core, SandboxAccess, SignedUrl};

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenScope {
    /// Commands and files.
    Data,
    /// What listens on the sandbox's ports.
    Ports,
}

impl TokenScope {
    fn name(self) -> &'static str {
        match self {
            Self::Data => "agent",
            Self::Ports => "ports",
        }
    }

    /// The request header for its token.
    pub fn header(self) -> &'static str {
        match self {
            Self::Data => "x-access-token",
            Self::Ports => "e2b-traffic-access-token",
        }
    }
}

/// A sandbox, before it is known whether somebody may use it.
#[derive(Debug, Clone)]
pub struct SandboxRef {
    core: Core,
    entry: Arc<LiveSandbox>,
    id: SandboxId,
}

impl Core {
    /// The token of a sandbox's scope.
    pub fn token(&self, id: &SandboxId, scope: TokenScope) -> String {
        self.inner.signer.token(id.as_str(), scope.name())
    }

    /// A living sandbox, whosever it is.
    pub fn lookup_unauthenticated(&self, id: &SandboxId) -> Option<SandboxRef> {
        let entry = self.inner.sandboxes.get(id)?;
        Some(SandboxRef {
            core: self.clone(),
            entry,
            id: id.clone(),
        })
    }

    /// Counts a request of a client without a credential that makes the server search for a sandbox, or refuses it.
    pub fn check_search_rate(&self, client: IpAddr) -> Result<(), Error> {
        self.inner.searches.check(client)
    }

    /// The sandboxes that were created last, of all orgs, at most so many.
    pub fn newest_unauthenticated(&self, most: usize) -> Vec<SandboxRef> {
        let newest = self.inner.sandboxes.newest(most).into_iter();
        let newest = newest.map(|entry| SandboxRef {
            core: self.clone(),
            id: entry.read(|row| row.id.clone()),
            entry,
        });
        newest.collect()
    }

    /// Whether a token verify_token a scope of a sandbox. Takes as long for a sandbox that does not exist; the comparison takes
    /// constant time.
    pub fn verify_token(&self, id: &SandboxId, scope: TokenScope, token: &str) -> bool {
        let signer = &self.inner.signer;
        signer.verify_token(id.as_str(), scope.name(), token)
    }
}

impl SandboxRef {
    /// The sandbox.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Its state now.
    pub fn state(&self) -> SandboxState {
        self.entry.read(|row| row.state)
    }

    /// Whether it was deleted since it was found.
    pub fn is_deleted(&self) -> bool {
        self.entry.read(|row| row.deleted_at.is_some())
    }

    /// The token of one of its doors.
    pub fn token(&self, scope: TokenScope) -> &str {
        let tokens =
            || [TokenScope::Data, TokenScope::Ports].map(|scope| self.core.token(&self.id, scope));
        let [agent, ports] = self.entry.tokens.get_or_init(tokens);
        match scope {
            TokenScope::Data => agent,
            TokenScope::Ports => ports,
        }
    }

    /// Whether a token verify_token a scope. The comparison takes constant time.
    pub fn verify_token(&self, scope: TokenScope, token: &str) -> bool {
        self.core.verify_token(&self.id, scope, token)
    }

    /// Whether this server signed a link.
    pub fn verify_signed_url(&self, link: &SignedUrl, signature: &str) -> bool {
        self.core.inner.signer.verify(link, signature)
    }

    /// Whether somebody who uses it now makes it run.
    pub fn auto_resumes(&self) -> bool {
        self.entry.read(|row| row.lifetime.auto_resume)
    }

    /// Callers that may use its ports.
    pub fn port_access(&self) -> PortAccess {
        self.entry.read(|row| row.port_access)
    }

    /// Whose it is.
    pub fn org(&self) -> OrgId {
        self.entry.read(|row| row.org.clone())
    }

    /// Counts a request of somebody who may use it, or refuses it.
    pub fn check_rate(&self) -> Result<(), Error> {
        match &self.core.inner.rate {
            Some(rate) => rate.check_sandbox(&self.entry.bucket),
            None => Ok(()),
        }
    }

    /// Uses it; one that is paused or stopped goes on, if it may.
    pub async fn open(&self) -> Result<SandboxAccess, Error> {
        if self.state() == SandboxState::Stopped && self.auto_resumes() {
            self.core.start_live(Arc::clone(&self.entry)).await?;
        }
        self.core.open_live(Arc::clone(&self.entry)).await
    }
}
