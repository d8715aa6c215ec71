//! Entry of the sandbox table: a sandbox in any state, with or without processes.

use std::sync::{Arc, Mutex};

use atoll_model::{Error, SandboxId, SandboxInfo, SandboxState};

use super::unadoptable::Apart;
use super::unknown;
use crate::exec::table::ExecTable;
use crate::samples::Samples;
use crate::sandbox::{Record, Sandbox, lock};

/// A sandbox in any state.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Held during a state transition: one at a time.
    pub(super) gate: Arc<tokio::sync::Mutex<()>>,
    place: Mutex<Place>,
    pub(crate) samples: Mutex<Samples>,
}

#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// It has processes.
    Live(Arc<Sandbox>),
    /// It has only files.
    Stopped(Box<Record>, Arc<ExecTable>),
    /// It has processes, and this server cannot talk to it.
    Apart(Arc<Apart>),
    /// It is being deleted, or was.
    Gone,
}

impl Place {
    pub(super) fn state(&self) -> SandboxState {
        match self {
            Self::Live(sandbox) => *sandbox.state.borrow(),
            Self::Stopped(record, _) => record.info.state,
            Self::Apart(apart) => apart.record.info.state,
            Self::Gone => SandboxState::Failed,
        }
    }
}

impl Entry {
    pub(super) fn new(place: Place) -> Arc<Self> {
        Arc::new(Self {
            gate: Arc::default(),
            place: Mutex::new(place),
            samples: Mutex::default(),
        })
    }

    pub(crate) fn place(&self) -> Place {
        lock(&self.place).clone()
    }

    pub(super) fn set(&self, place: Place) {
        *lock(&self.place) = place;
    }

    pub(super) fn info(&self) -> Option<SandboxInfo> {
        match self.place() {
            Place::Live(sandbox) => Some(sandbox.info()),
            Place::Stopped(record, _) => Some(record.info),
            Place::Apart(apart) => Some(apart.record.info.clone()),
            Place::Gone => None,
        }
    }

    /// Its execs, and the sandbox itself if it has processes.
    pub(super) fn execs(
        &self,
        id: &SandboxId,
    ) -> Result<(Arc<ExecTable>, Option<Arc<Sandbox>>), Error> {
        match self.place() {
            Place::Live(sandbox) => Ok((Arc::clone(&sandbox.execs), Some(sandbox))),
            Place::Stopped(_, execs) => Ok((execs, None)),
            Place::Apart(apart) => Err(apart.refusal()),
            Place::Gone => Err(unknown(id)),
        }
    }
}
