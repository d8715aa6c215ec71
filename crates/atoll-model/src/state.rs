//! Where a sandbox is in its life, and how it gets from one place to another.
//!
//! ```text
//! creating ──▶ running ◀──▶ paused
//!    │          │  ▲          │
//!    ▼          ▼  └───────┐  ▼
//!  failed     stopping ──▶ stopped
//! ```
//! Processes that are gone although nobody asked for it lead from running and paused straight to
//! stopped, with a reason: files are never given up because processes are.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Code, Error};

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// It is being made.
    Creating,
    /// Execs work.
    Running,
    /// All its processes stand still.
    Paused,
    /// Its processes are being ended.
    Stopping,
    /// Its processes are gone, its files are there.
    Stopped,
    /// It could not be made.
    Failed,
}

/// Why a sandbox stopped without a request to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The host was started anew.
    HostRestart,
    /// Its PID 1 ended.
    Exited,
    /// The kernel ended its PID 1 for want of memory.
    Oom,
    /// The keeper ended, and its sandboxes with it.
    KeeperLost,
    /// Its lifetime (`timeout`) ended.
    Timeout,
    /// It was idle for its `idleTimeout`.
    Idle,
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// An exec would work.
    Ready,
    /// It cannot be made.
    Fail,
    /// Let its processes stand still.
    Pause,
    /// Let them go on.
    Resume,
    /// End its processes.
    Stop,
    /// Its processes are gone.
    End,
    /// Make it run again.
    Start,
}

impl SandboxState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Creating,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
    ];

    /// The state as it is written in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// Where it is after that; an error that names the state and what helps if it cannot be. Asking for
    /// what is already so changes nothing and is no error.
    pub fn next(self, transition: Transition) -> Result<Self, Error> {
        use Transition as T;
        match (self, transition) {
            (Self::Creating | Self::Stopped, T::Ready)
            | (Self::Paused | Self::Running, T::Resume)
            | (Self::Running, T::Start) => Ok(Self::Running),
            (Self::Creating, T::Start) => Ok(Self::Creating),
            (Self::Creating, T::Fail) => Ok(Self::Failed),
            (Self::Running | Self::Paused, T::Pause) => Ok(Self::Paused),
            (Self::Running | Self::Paused | Self::Stopping, T::Stop) => Ok(Self::Stopping),
            (Self::Running | Self::Paused | Self::Stopping | Self::Stopped, T::End)
            | (Self::Stopped, T::Stop | T::Start | T::Fail) => Ok(Self::Stopped),
            // It is there to be looked at and deleted, which is no reason to call it gone.
            (Self::Failed, transition) => Err(Error {
                code: Code::Conflict,
                ..self.refusal(transition.verb())
            }),
            (state, transition) => Err(state.refusal(transition.verb())),
        }
    }

    /// Why something cannot be done in this state.
    pub fn refusal(self, verb: &str) -> Error {
        let (code, remedy) = match self {
            Self::Paused => (Code::SandboxPaused, "resume it first"),
            Self::Stopped | Self::Stopping => (Code::SandboxStopped, "start it first"),
            Self::Failed => (Code::SandboxFailed, "delete it and make another"),
            Self::Creating | Self::Running => (Code::Conflict, "wait for its state to change"),
        };
        Error::new(
            code,
            format!("a sandbox that is {} cannot be {verb}", self.name()),
        )
        .remedy(remedy)
        .detail("state", self.name())
    }
}

impl Transition {
    fn verb(self) -> &'static str {
        match self {
            Self::Ready => "made ready",
            Self::Fail => "given up",
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Stop => "stopped",
            Self::End => "ended",
            Self::Start => "started",
        }
    }
}
