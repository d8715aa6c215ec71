//! Ways into a sandbox that need no key: whoever has the token of a door may use this one sandbox through it, for as
//! long as there is the sandbox. A token is made from the server's secret and the sandbox's id, so it is the same after a
//! pause or a restart, and nothing has to be kept.

use std::net::IpAddr;
use std::sync::Arc;

use atoll_model::{Error, OrgId, PortAccess, SandboxId, SandboxState};

use crate::ledger::Entry;
use crate::{Core, Link, Use};

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Commands and files.
    Agent,
    /// What listens on the sandbox's ports.
    Ports,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Ports => "ports",
        }
    }

    /// The request header for its token.
    pub fn header(self) -> &'static str {
        match self {
            Self::Agent => "x-access-token",
            Self::Ports => "e2b-traffic-access-token",
        }
    }
}

/// A sandbox, before it is known whether somebody may use it.
#[derive(Debug, Clone)]
pub struct Doorstep {
    core: Core,
    entry: Arc<Entry>,
    id: SandboxId,
}

impl Core {
    /// The token of a sandbox's door.
    pub fn token(&self, id: &SandboxId, door: Door) -> String {
        self.inner.signer.token(id.as_str(), door.name())
    }

    /// A living sandbox, whosever it is.
    pub fn doorstep(&self, id: &SandboxId) -> Option<Doorstep> {
        let entry = self.inner.ledger.get(id)?;
        Some(Doorstep {
            core: self.clone(),
            entry,
            id: id.clone(),
        })
    }

    /// Counts a request of a client without a credential that makes the server search for a sandbox, or refuses it.
    pub fn count_search(&self, client: IpAddr) -> Result<(), Error> {
        self.inner.searches.check(client)
    }

    /// The sandboxes that were created last, of all orgs, at most so many.
    pub fn newest_doorsteps(&self, most: usize) -> Vec<Doorstep> {
        let newest = self.inner.ledger.newest(most).into_iter();
        let newest = newest.map(|entry| Doorstep {
            core: self.clone(),
            id: entry.with(|row| row.id.clone()),
            entry,
        });
        newest.collect()
    }

    /// Whether a token opens a door of a sandbox. Takes as long for a sandbox that does not exist; the comparison takes
    /// constant time.
    pub fn opens(&self, id: &SandboxId, door: Door, token: &str) -> bool {
        let signer = &self.inner.signer;
        signer.knows_token(id.as_str(), door.name(), token)
    }
}

impl Doorstep {
    /// The sandbox.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Its state now.
    pub fn state(&self) -> SandboxState {
        self.entry.with(|row| row.state)
    }

    /// Whether it was deleted since it was found.
    pub fn is_deleted(&self) -> bool {
        self.entry.with(|row| row.deleted_at.is_some())
    }

    /// The token of one of its doors.
    pub fn token(&self, door: Door) -> &str {
        let tokens = || [Door::Agent, Door::Ports].map(|door| self.core.token(&self.id, door));
        let [agent, ports] = self.entry.tokens.get_or_init(tokens);
        match door {
            Door::Agent => agent,
            Door::Ports => ports,
        }
    }

    /// Whether a token opens a door. The comparison takes constant time.
    pub fn opens(&self, door: Door, token: &str) -> bool {
        self.core.opens(&self.id, door, token)
    }

    /// Whether this server signed a link.
    pub fn knows_link(&self, link: &Link, signature: &str) -> bool {
        self.core.inner.signer.knows(link, signature)
    }

    /// Whether somebody who uses it now makes it run.
    pub fn wakes(&self) -> bool {
        self.entry.with(|row| row.lifetime.auto_resume)
    }

    /// Callers that may use its ports.
    pub fn port_access(&self) -> PortAccess {
        self.entry.with(|row| row.port_access)
    }

    /// Whose it is.
    pub fn org(&self) -> OrgId {
        self.entry.with(|row| row.org.clone())
    }

    /// Counts a request of somebody who may use it, or refuses it.
    pub fn count(&self) -> Result<(), Error> {
        match &self.core.inner.rate {
            Some(rate) => rate.check_sandbox(&self.entry.bucket),
            None => Ok(()),
        }
    }

    /// Uses it; one that is paused or stopped goes on, if it may.
    pub async fn enter(&self) -> Result<Use, Error> {
        if self.state() == SandboxState::Stopped && self.wakes() {
            self.core.start_entry(Arc::clone(&self.entry)).await?;
        }
        self.core.enter_entry(Arc::clone(&self.entry)).await
    }
}
