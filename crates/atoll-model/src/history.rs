//! Records of a session's history: commands and events.

use crate::{EventId, ExecId, ExecStatus, SandboxId};

/// Kind of an exec in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandKind {
    /// A command without a PTY.
    Command,
    /// A terminal: a command with a PTY.
    Terminal,
}

/// History record of a command or terminal. It contains neither environment variables nor input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRow {
    /// Exec id.
    pub id: ExecId,
    /// Command or terminal.
    pub kind: CommandKind,
    /// The program, or the command line for the shell.
    pub command: String,
    /// Arguments of the program. Empty for a shell line.
    pub args: Vec<String>,
    /// Whether `command` and `args` were shortened.
    pub truncated: bool,
    /// Requested working directory. `None`: the user's home directory.
    pub cwd: Option<String>,
    /// Requested user. `None`: the template's default user.
    pub user: Option<String>,
    /// Label chosen by the caller.
    pub tag: Option<String>,
    /// Start time in microseconds since 1970.
    pub started_at: i64,
    /// End time in microseconds since 1970, and exit status. `None` while the command runs.
    pub ended: Option<(i64, ExecStatus)>,
    /// Size of its output at the end.
    pub output_bytes: i64,
}

/// A change of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Position in the order of all events. Readers continue after it. The API calls it `number`.
    pub sequence: i64,
    /// Event id.
    pub id: EventId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// `created`, `running`, `paused`, `stopped`, `failed`, `deleted`, `changed` or `held`.
    pub kind: String,
    /// State, reason, error, alias and template of the sandbox after the change.
    pub payload: serde_json::Value,
    /// Time in microseconds since 1970.
    pub occurred_at: i64,
}
