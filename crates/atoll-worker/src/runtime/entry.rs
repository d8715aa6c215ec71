//! Entry of the sandbox table: a sandbox in any state, with or without processes.

use std::sync::{Arc, Mutex};

use atoll_model::{Error, SandboxId, SandboxInfo, SandboxState};

use super::activity::Activity;
use super::not_found;
use super::unadoptable::Unadoptable;
use crate::exec::table::ExecTable;
use crate::samples::Samples;
use crate::sandbox::{Record, Sandbox};
use crate::sync::lock;

/// A sandbox in any state.
#[derive(Debug)]
pub(crate) struct SandboxEntry {
    /// Held during a state transition: one at a time.
    pub(super) transition_lock: Arc<tokio::sync::Mutex<()>>,
    /// Held while the journal is passed to the history sink.
    pub(super) history_lock: tokio::sync::Mutex<()>,
    state: Mutex<EntryState>,
    pub(crate) samples: Mutex<Samples>,
    pub(crate) activity: Arc<Activity>,
}

#[derive(Debug, Clone)]
pub(crate) enum EntryState {
    /// It has processes.
    Live(Arc<Sandbox>),
    /// It has only files.
    Stopped(Box<Record>, Arc<ExecTable>),
    /// It has processes, and this server cannot talk to it.
    Unadoptable(Arc<Unadoptable>),
    /// It is being deleted, or was.
    Gone,
}

impl EntryState {
    pub(super) fn sandbox_state(&self) -> SandboxState {
        match self {
            Self::Live(sandbox) => *sandbox.state.borrow(),
            Self::Stopped(record, _) => record.info.state,
            Self::Unadoptable(sandbox) => sandbox.record.info.state,
            Self::Gone => SandboxState::Failed,
        }
    }
}

impl SandboxEntry {
    pub(super) fn new(state: EntryState) -> Arc<Self> {
        let deadlines = match &state {
            EntryState::Live(sandbox) => lock(&sandbox.record).deadlines,
            EntryState::Stopped(record, _) => record.deadlines,
            EntryState::Unadoptable(sandbox) => sandbox.record.deadlines,
            EntryState::Gone => None,
        };
        Arc::new(Self {
            activity: Arc::new(Activity::new(deadlines)),
            transition_lock: Arc::default(),
            history_lock: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            samples: Mutex::default(),
        })
    }

    pub(crate) fn state(&self) -> EntryState {
        lock(&self.state).clone()
    }

    /// The state for new uses: a sandbox that is being paused counts as paused, and one whose processes have exited as
    /// stopped.
    pub(super) fn effective_state(&self) -> SandboxState {
        let state = self.state();
        match state.sandbox_state() {
            SandboxState::Running => match &state {
                EntryState::Live(sandbox) if sandbox.exit_status.borrow().is_some() => {
                    SandboxState::Stopped
                }
                _ if self.activity.is_pausing() => SandboxState::Paused,
                _ => SandboxState::Running,
            },
            state => state,
        }
    }

    pub(super) fn set_state(&self, state: EntryState) {
        *lock(&self.state) = state;
    }

    pub(super) fn info(&self) -> Option<SandboxInfo> {
        match self.state() {
            EntryState::Live(sandbox) => Some(sandbox.info()),
            EntryState::Stopped(record, _) => Some(record.info),
            EntryState::Unadoptable(sandbox) => Some(sandbox.record.info.clone()),
            EntryState::Gone => None,
        }
    }

    /// Its execs, and the sandbox itself if it has processes.
    pub(super) fn execs(
        &self,
        id: &SandboxId,
    ) -> Result<(Arc<ExecTable>, Option<Arc<Sandbox>>), Error> {
        match self.state() {
            EntryState::Live(sandbox) => Ok((Arc::clone(&sandbox.execs), Some(sandbox))),
            EntryState::Stopped(_, execs) => Ok((execs, None)),
            EntryState::Unadoptable(sandbox) => Err(sandbox.error()),
            EntryState::Gone => Err(not_found(id)),
        }
    }
}
