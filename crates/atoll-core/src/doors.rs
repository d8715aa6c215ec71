//! Ways into a sandbox that need no key: whoever has the token of a door may use this one sandbox through it, for as
//! long as there is the sandbox. A token is made from the server's secret and the sandbox's id, so it is the same after a
//! pause or a restart, and nothing has to be kept.

use std::sync::Arc;

use atoll_model::{Error, OrgId, PortAccess, SandboxId, SandboxState};

use crate::ledger::Entry;
use crate::{Core, Use};

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

    /// All of them.
    pub fn doorsteps(&self) -> Vec<Doorstep> {
        let all = self.inner.ledger.all().into_iter();
        let all = all.map(|entry| Doorstep {
            core: self.clone(),
            id: entry.with(|row| row.id.clone()),
            entry,
        });
        all.collect()
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
    pub fn token(&self, door: Door) -> String {
        self.core.token(&self.id, door)
    }

    /// Whether a token opens a door, in a time that says nothing about how much of it is right.
    pub fn opens(&self, door: Door, token: &str) -> bool {
        let name = door.name();
        let signer = &self.core.inner.signer;
        signer.knows_token(self.id.as_str(), name, token)
    }

    /// Whether somebody who uses it now makes it run.
    pub fn wakes(&self) -> bool {
        self.entry.with(|row| row.lifetime.auto_resume)
    }

    /// Whether what it serves on its ports is for everybody.
    pub fn serves_everybody(&self) -> bool {
        self.entry.with(|row| row.port_access == PortAccess::Public)
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
