//! A command in a sandbox, as it is asked for and as it ended.

use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Code, Error, ExecId};

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// A program and its arguments.
    Argv(Vec<Vec<u8>>),
    /// A line for `/bin/sh -c`.
    Shell(String),
}

/// Where its standard input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Input {
    /// `/dev/null`.
    #[default]
    Null,
    /// The caller writes it.
    Open,
}

/// A command as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// What to run.
    pub program: Program,
    /// Variables that win over the sandbox's. They may be secrets, and no record contains them: the program has them from
    /// its start.
    #[serde(default, serialize_with = "nothing", deserialize_with = "ignored")]
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Working directory; `None` is the user's home.
    pub directory: Option<Vec<u8>>,
    /// Name or number; `None` is the template's user.
    pub user: Option<String>,
    /// Standard input.
    pub input: Input,
    /// When everything it started is killed, counted from its start; while the sandbox is paused, time
    /// stands still.
    pub deadline: Option<Duration>,
    /// A name of the caller's choice to find it by.
    pub tag: Option<String>,
    /// It runs on a terminal of this size, which is its standard input and output.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// The request may come again, and means this command then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

/// Variables as they are written: an empty list, which earlier versions expect.
fn nothing<S: Serializer>(_: &[(Vec<u8>, Vec<u8>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq([(); 0])
}

/// Earlier versions wrote them; nothing needs them.
fn ignored<'de, D: Deserializer<'de>, T: Default>(deserializer: D) -> Result<T, D::Error> {
    IgnoredAny::deserialize(deserializer)?;
    Ok(T::default())
}

/// By which a request is known when it is said again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// The caller's key.
    pub key: String,
    /// What was asked for, in short.
    pub fingerprint: String,
}

impl Again {
    /// The key came before with another request.
    pub fn mismatch() -> Error {
        Error::new(
            Code::IdempotencyMismatch,
            "this Idempotency-Key came before with another request",
        )
        .remedy("use a new key for a new request")
    }
}

/// Rows and columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// How many rows.
    pub rows: u16,
    /// How many columns.
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
    /// A program with arguments, everything else by default.
    pub fn argv<S: AsRef<[u8]>>(argv: impl IntoIterator<Item = S>) -> Self {
        let argv = argv
            .into_iter()
            .map(|word| word.as_ref().to_vec())
            .collect();
        Self::new(Program::Argv(argv))
    }

    /// A shell line, everything else by default.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Program::Shell(line.into()))
    }

    fn new(program: Program) -> Self {
        Self {
            program,
            environment: Vec::new(),
            directory: None,
            user: None,
            input: Input::Null,
            deadline: None,
            tag: None,
            terminal: None,
            again: None,
        }
    }

    /// About how much memory it takes: many short words take more than one long one.
    pub fn weight(&self) -> usize {
        const WORD: usize = 64;
        let words = match &self.program {
            Program::Shell(line) => line.len(),
            Program::Argv(argv) => argv.iter().map(|word| word.len() + WORD).sum(),
        };
        let variables = self.environment.iter();
        let variables = variables.map(|(name, value)| name.len() + value.len() + 2 * WORD);
        let directory = self.directory.as_ref().map_or(0, Vec::len);
        let names = [&self.user, &self.tag].into_iter().flatten();
        words + variables.sum::<usize>() + directory + names.map(String::len).sum::<usize>()
    }

    /// Runs it as another user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Runs it in another directory.
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<[u8]>) -> Self {
        self.directory = Some(directory.as_ref().to_vec());
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn variable(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.environment
            .push((name.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    /// Kills it after a while.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Names it, to be found again.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Runs it on a terminal.
    #[must_use]
    pub fn terminal(mut self, size: TerminalSize) -> Self {
        self.terminal = Some(size);
        self
    }

    /// Lets the caller write its standard input.
    #[must_use]
    pub fn open_input(mut self) -> Self {
        self.input = Input::Open;
        self
    }
}

/// A command as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecInfo {
    /// Its id.
    #[serde(rename = "execID")]
    pub id: ExecId,
    /// Its pid inside the sandbox.
    pub pid: i32,
    /// What was asked for.
    pub spec: Arc<ExecSpec>,
    /// When it began: microseconds since 1970.
    pub started_at: i64,
    /// How it ended, once it has.
    pub status: Option<ExecStatus>,
    /// When it ended, if somebody saw that.
    pub ended_at: Option<i64>,
}

/// One of the two streams a command writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// What a reader of a command's output gets next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes of one stream. Positions count the bytes of both streams together.
    Data {
        /// Which.
        stream: Stream,
        /// The position of the first byte.
        position: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes from one position to another are not kept any more.
    Gap {
        /// The first that is lost.
        from: u64,
        /// The first that is there again.
        to: u64,
    },
    /// The command has ended, and everything it wrote until then has been told. What its children go on
    /// to write may follow.
    Exit(ExecStatus),
}

/// How a command ended: the truth, not its encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecStatus {
    /// What it returned, if it returned.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The kernel killed something of it for want of memory.
    pub oom_killed: bool,
    /// Its deadline came first.
    pub timed_out: bool,
}

impl ExecStatus {
    /// The one number a shell would show: 124 after a deadline, 137 after an OOM kill, 128 + n after
    /// a signal.
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

    /// It returned 0 by itself.
    pub fn success(&self) -> bool {
        self.exit_code() == 0
    }
}
