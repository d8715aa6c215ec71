//! Types for commands in a sandbox: what a caller requests, the state of a running exec, and its result.

use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Code, Error, ExecId};

/// The program of an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// Program and arguments, executed directly. The first element is looked up in `PATH`.
    Argv(Vec<Vec<u8>>),
    /// Command line for `/bin/sh -c`.
    Shell(String),
}

/// Source of standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Stdin {
    /// `/dev/null`.
    #[default]
    Null,
    /// A pipe that the caller writes to.
    #[serde(rename = "Open")]
    Piped,
}

/// Request to run a command. Stored as JSON in `execs/records`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// Program and arguments, or a shell line.
    pub program: Program,
    /// Environment variables; they override the sandbox's. Never stored, because they may be secrets.
    #[serde(
        default,
        serialize_with = "empty_list",
        deserialize_with = "ignore_value"
    )]
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory. `None`: the user's home directory.
    pub directory: Option<Vec<u8>>,
    /// User name or number. `None`: the template's default user.
    pub user: Option<String>,
    /// Source of standard input. Written as `input`.
    #[serde(rename = "input")]
    pub stdin: Stdin,
    /// Time from the start after which all processes of the exec are killed. Time spent paused does not count.
    pub deadline: Option<Duration>,
    /// Label chosen by the caller, to look the exec up by.
    pub tag: Option<String>,
    /// Initial size of the PTY that is standard input and output. `None`: pipes instead of a PTY.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Idempotency key and request fingerprint. Written as `again`.
    #[serde(default, rename = "again", skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Idempotency>,
}

/// Serializes variables as an empty list, which earlier versions require.
fn empty_list<S: Serializer>(_: &[(Vec<u8>, Vec<u8>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq([(); 0])
}

/// Discards the variables that earlier versions stored.
fn ignore_value<'de, D: Deserializer<'de>, T: Default>(deserializer: D) -> Result<T, D::Error> {
    IgnoredAny::deserialize(deserializer)?;
    Ok(T::default())
}

/// Identifies a request that a client may send more than once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// Idempotency key, chosen by the client.
    pub key: String,
    /// Hash of the request. A repeated key with another fingerprint is an error.
    pub fingerprint: String,
}

impl Idempotency {
    /// The error for a key that was used before with a different request.
    pub fn mismatch_error() -> Error {
        Error::new(
            Code::IdempotencyMismatch,
            "this Idempotency-Key was used before with a different request",
        )
        .remedy("use a new key for a new request")
    }
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Height.
    pub rows: u16,
    /// Width.
    pub columns: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self {
            rows: 24,
            columns: 80,
        }
    }
}

impl ExecSpec {
    /// A program with arguments; all other fields have their defaults.
    pub fn argv<S: AsRef<[u8]>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv
            .into_iter()
            .map(|word| word.as_ref().to_vec())
            .collect();
        Self::new(Program::Argv(argv))
    }

    /// A command line for `/bin/sh -c`; all other fields have their defaults.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Program::Shell(line.into()))
    }

    fn new(program: Program) -> Self {
        Self {
            program,
            environment: Vec::new(),
            directory: None,
            user: None,
            stdin: Stdin::Null,
            deadline: None,
            tag: None,
            terminal: None,
            idempotency: None,
        }
    }

    /// Estimated memory of this request in bytes. Each string counts with an overhead of 64 bytes.
    pub fn memory_estimate(&self) -> usize {
        const STRING_OVERHEAD: usize = 64;
        let words = match &self.program {
            Program::Shell(line) => line.len(),
            Program::Argv(argv) => argv.iter().map(|word| word.len() + STRING_OVERHEAD).sum(),
        };
        let variables = self.environment.iter();
        let variables =
            variables.map(|(name, value)| name.len() + value.len() + 2 * STRING_OVERHEAD);
        let directory = self.directory.as_ref().map_or(0, Vec::len);
        let names = [&self.user, &self.tag].into_iter().flatten();
        words + variables.sum::<usize>() + directory + names.map(String::len).sum::<usize>()
    }

    /// Sets the user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<[u8]>) -> Self {
        self.directory = Some(directory.as_ref().to_vec());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn variable(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.environment
            .push((name.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the tag.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Allocates a PTY.
    #[must_use]
    pub fn terminal(mut self, size: TerminalSize) -> Self {
        self.terminal = Some(size);
        self
    }

    /// Connects standard input to a pipe that the caller writes to.
    #[must_use]
    pub fn piped_stdin(mut self) -> Self {
        self.stdin = Stdin::Piped;
        self
    }
}

/// State of an exec, running or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecInfo {
    /// Exec id.
    #[serde(rename = "execID")]
    pub id: ExecId,
    /// Process id in the sandbox's PID namespace.
    pub pid: i32,
    /// The request.
    pub spec: Arc<ExecSpec>,
    /// Start time in microseconds since 1970.
    pub started_at: i64,
    /// Exit status. `None` while the exec runs.
    pub status: Option<ExecStatus>,
    /// End time in microseconds since 1970. `None` while it runs, or if the end was not observed.
    pub ended_at: Option<i64>,
}

/// Output stream of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Item of an output stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputChunk {
    /// Bytes of one stream.
    Data {
        /// The stream that the bytes belong to.
        stream: Stream,
        /// Byte offset of the first byte in the output log, which contains both streams.
        position: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A range of the output log was dropped.
    Gap {
        /// Offset of the first dropped byte.
        from: u64,
        /// Offset of the first available byte after the gap.
        to: u64,
    },
    /// The command has exited, and all its output up to the exit was delivered. Output of processes that it left
    /// running may follow.
    Exit(ExecStatus),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecStatus {
    /// Exit code. `None` if a signal ended it.
    pub code: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
    /// The kernel's OOM killer ended at least one of its processes.
    pub oom_killed: bool,
    /// The deadline expired before it exited.
    pub timed_out: bool,
}

impl ExecStatus {
    /// Exit code by the shell's conventions: 124 after a deadline, 137 after an OOM kill, 128 + n after signal n.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self {
                timed_out: true, ..
            } => 124,
            Self {
                oom_killed: true, ..
            } => 137,
            Self {
                signal: Some(signal),
                ..
            } => 128 + signal,
            Self { code, .. } => code.unwrap_or(0),
        }
    }

    /// Whether it exited with code 0.
    pub fn success(&self) -> bool {
        self.exit_code() == 0
    }
}
