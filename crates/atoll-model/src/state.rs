//! Lifecycle states of a sandbox and the transitions between them.
//!
//! ```text
//! creating ──▶ running ◀──▶ paused
//!    │          │  ▲          │
//!    ▼          ▼  └───────┐  ▼
//!  failed     stopping ──▶ stopped
//! ```
//!
//! [`SandboxState::next`] alone decides which transitions are legal. If the processes of a running or paused sandbox
//! exit without a request, it becomes stopped, with a [`StopReason`]: its files are kept.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Code, Error};

/// Lifecycle state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// The sandbox is being created.
    Creating,
    /// The sandbox runs and accepts execs.
    Running,
    /// All its processes are frozen.
    Paused,
    /// Its processes are being killed.
    Stopping,
    /// Its processes have exited; its files are kept.
    Stopped,
    /// The sandbox could not be created, or was lost.
    Failed,
}

/// Why a sandbox stopped without a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The host rebooted.
    HostRestart,
    /// Its PID 1 exited.
    Exited,
    /// The kernel's OOM killer ended its PID 1.
    Oom,
    /// The keeper process, the parent of all sandboxes, ended.
    KeeperLost,
    /// Its `timeout` ended.
    Timeout,
    /// Its `idleTimeout` ended.
    Idle,
}

/// A transition between states: a request or an observed event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Creation is complete: execs work.
    Ready,
    /// Creation failed.
    Fail,
    /// Freeze its processes.
    Pause,
    /// Thaw its processes.
    Resume,
    /// Kill its processes.
    Stop,
    /// Its processes have exited.
    End,
    /// Start new processes on its files.
    Start,
}

impl SandboxState {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Creating,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
    ];

    /// The state as written in responses.
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

    /// Whether the sandbox has processes: it is running or paused.
    pub fn has_processes(self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }

    /// The state after a transition, or an error with the current state and a remedy if the transition is illegal. A
    /// request for the state that the sandbox is in already is legal and changes nothing.
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
            // A failed sandbox can still be read and deleted: 409 fits better than its usual 410.
            (Self::Failed, transition) => Err(Error {
                code: Code::Conflict,
                ..self.state_error(transition.action())
            }),
            (state, transition) => Err(state.state_error(transition.action())),
        }
    }

    /// The error for an action that is impossible in this state. `action` is a past participle, such as `started`.
    pub fn state_error(self, action: &str) -> Error {
        let (code, remedy) = match self {
            Self::Paused => (Code::SandboxPaused, "resume it first"),
            Self::Stopped | Self::Stopping => (Code::SandboxStopped, "start it first"),
            Self::Failed => (Code::SandboxFailed, "delete it and create another"),
            Self::Creating | Self::Running => (Code::Conflict, "wait for its state to change"),
        };
        Error::new(
            code,
            format!("a sandbox that is {} cannot be {action}", self.name()),
        )
        .remedy(remedy)
        .detail("state", self.name())
    }
}

impl Transition {
    /// Past participle for error messages.
    fn action(self) -> &'static str {
        match self {
            Self::Ready => "made ready",
            Self::Fail => "marked as failed",
            Self::Pause => "paused",
            Self::Resume => "resumed",
            Self::Stop => "stopped",
            Self::End => "ended",
            Self::Start => "started",
        }
    }
}
