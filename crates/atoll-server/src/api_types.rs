//! JSON types that several routes return: camelCase with `ID`, times in RFC 3339 with microseconds.

use std::collections::BTreeMap;

use atoll_core::SandboxView;
use atoll_model::runtime::ExecHandle;
use atoll_model::{
    CommandKind, CommandRow, Error, ExecId, ExecInfo, ExecStatus, ExpiryAction, Network, Program,
    SandboxId, SandboxState, SessionId, StopReason, Timings,
};
use serde::Serialize;
use utoipa::ToSchema;

/// A time: RFC 3339 with microseconds.
#[derive(Debug, Clone, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2027-01-31T12:00:00.000000Z")]
pub(crate) struct Time(i64);

impl Time {
    pub(crate) fn new(microseconds: i64) -> Self {
        Self(microseconds)
    }
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => serializer.collect_str(&format_args!("{time:.6}")),
            Err(_) => serializer.serialize_none(),
        }
    }
}

/// Raw bytes.
#[derive(Debug, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(crate) struct BinaryBody(());

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    #[serde(rename = "sandboxID")]
    id: SandboxId,
    /// The session of this sandbox in the history.
    #[serde(rename = "sessionID")]
    session: SessionId,
    #[serde(rename = "templateID")]
    template: String,
    /// A second name, accepted in paths instead of the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    state: SandboxState,
    /// The same as `state`, except that `failed` is spelled `error`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<StopReason>,
    /// Why the create failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Key-value pairs of the caller.
    metadata: BTreeMap<String, String>,
    cpu_count: f64,
    /// In mebibytes.
    #[serde(rename = "memoryMB")]
    memory: u64,
    /// In mebibytes.
    #[serde(rename = "diskMB")]
    disk: u64,
    /// The kernel enforces `diskMB`. `false`: `diskMB` is advisory, because the server's storage has no quotas.
    disk_enforced: bool,
    /// Processes and threads.
    pids: u32,
    network: Network,
    /// `fsync` in the sandbox waits for the disk.
    durable: bool,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    /// When the timeout ends; `null` if there is none or the sandbox does not run.
    end_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_at: Option<Time>,
    /// When a stopped sandbox is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    delete_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_at: Option<Time>,
    /// In seconds; 0: no timeout.
    timeout: u32,
    on_timeout: ExpiryAction,
    /// In seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_timeout: Option<u32>,
    on_idle: ExpiryAction,
    /// Activity resumes the sandbox while it is paused.
    auto_resume: bool,
    /// Only in the response of the request that creates the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<CreateTimings>,
}

/// Durations of the stages of a create, in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
struct CreateTimings {
    slot: f64,
    clone: f64,
    root: f64,
    start: f64,
    total: f64,
}

impl From<Timings> for CreateTimings {
    fn from(timings: Timings) -> Self {
        let milliseconds = |time: std::time::Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        Self {
            slot: milliseconds(timings.slot),
            clone: milliseconds(timings.clone),
            root: milliseconds(timings.root),
            start: milliseconds(timings.start),
            total: milliseconds(timings.total()),
        }
    }
}

impl Sandbox {
    pub(crate) fn new(view: SandboxView, disk_enforced: bool) -> Self {
        let row = view.row;
        let stopped = row.state == SandboxState::Stopped;
        let has_processes = matches!(row.state, SandboxState::Running | SandboxState::Paused);
        Self {
            id: row.id,
            session: row.session,
            template: row.template,
            alias: row.alias,
            state: row.state,
            status: match row.state {
                SandboxState::Failed => "error",
                state => state.name(),
            },
            reason: row.reason,
            error: row.error,
            metadata: row.metadata,
            cpu_count: f64::from(row.limits.cpus.0) / 1000.0,
            memory: row.limits.memory.0 >> 20,
            disk: row.limits.disk.0 >> 20,
            disk_enforced,
            pids: row.limits.pids,
            network: row.network,
            durable: row.durable,
            created_at: Time(row.created_at),
            started_at: row.started_at.map(Time),
            end_at: row.end_at.filter(|_| !stopped).map(Time),
            // A paused sandbox has a stop time, but has not stopped.
            stopped_at: row.stopped_at.filter(|_| !has_processes).map(Time),
            delete_at: row.end_at.filter(|_| stopped).map(Time),
            deleted_at: row.deleted_at.map(Time),
            timeout: row.lifetime.timeout.unwrap_or(0),
            on_timeout: row.lifetime.on_timeout,
            idle_timeout: row.lifetime.idle_timeout,
            on_idle: row.lifetime.on_idle,
            auto_resume: row.lifetime.auto_resume,
            timings: view.timings.map(CreateTimings::from),
        }
    }
}

/// Exit status of a command.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Exit {
    /// 124 after a deadline, 137 after an OOM kill, 128 + n after signal n.
    #[serde(rename = "exitCode")]
    code: i32,
    /// The signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// The kernel killed one of its processes because memory ran out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oom_killed: bool,
    /// Its deadline was exceeded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
}

impl From<ExecStatus> for Exit {
    fn from(status: ExecStatus) -> Self {
        Self {
            code: status.exit_code(),
            signal: status.signal,
            oom_killed: status.oom_killed,
            timed_out: status.timed_out,
        }
    }
}

/// A command, with its exit status once it has exited.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CommandSummary {
    cmd: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[schema(pattern = "^(running|exited)$")]
    state: &'static str,
    started_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Time>,
    /// Only after it has exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// The kernel killed one of its processes because memory ran out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oom_killed: bool,
    /// Its deadline was exceeded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
}

impl CommandSummary {
    /// A summary without program, directory and user.
    fn new(started_at: i64, ended_at: Option<i64>, status: Option<ExecStatus>) -> Self {
        let exit = status.map(Exit::from);
        Self {
            cmd: String::new(),
            args: Vec::new(),
            cwd: None,
            user: None,
            tag: None,
            state: if exit.is_some() { "exited" } else { "running" },
            started_at: Time(started_at),
            ended_at: ended_at.map(Time),
            exit_code: exit.as_ref().map(|exit| exit.code),
            signal: exit.as_ref().and_then(|exit| exit.signal),
            oom_killed: exit.as_ref().is_some_and(|exit| exit.oom_killed),
            timed_out: exit.is_some_and(|exit| exit.timed_out),
        }
    }
}

/// A command, without its environment variables.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Command {
    #[serde(rename = "execID")]
    id: ExecId,
    /// In the sandbox's PID namespace.
    pid: i32,
    #[serde(flatten)]
    summary: CommandSummary,
    /// Position of the first byte of output that is still stored, if earlier output was discarded.
    #[serde(rename = "truncatedBefore", skip_serializing_if = "Option::is_none")]
    truncated_before: Option<u64>,
}

impl Command {
    /// The current state of a command.
    pub(crate) async fn read(exec: &dyn ExecHandle) -> Result<Self, Error> {
        let (whole, _) = exec.output_range().await?;
        Ok(Self {
            truncated_before: (whole > 0).then_some(whole),
            ..exec.info().await?.into()
        })
    }
}

impl From<ExecInfo> for Command {
    fn from(info: ExecInfo) -> Self {
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (cmd, args) = match &info.spec.program {
            Program::Shell(line) => (line.clone(), Vec::new()),
            Program::Argv(argv) => {
                let mut words = argv.iter().map(|word| lossy(word));
                (words.next().unwrap_or_default(), words.collect())
            }
        };
        let summary = CommandSummary {
            cmd,
            args,
            cwd: info.spec.directory.as_deref().map(lossy),
            user: info.spec.user.clone(),
            tag: info.spec.tag.clone(),
            ..CommandSummary::new(info.started_at, info.ended_at, info.status)
        };
        Self {
            id: info.id,
            pid: info.pid,
            summary,
            truncated_before: None,
        }
    }
}

/// A command or a terminal in a session's history.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandHistory {
    /// Only for commands.
    #[serde(rename = "execID", skip_serializing_if = "Option::is_none")]
    exec: Option<ExecId>,
    /// Only for terminals.
    #[serde(rename = "ptyID", skip_serializing_if = "Option::is_none")]
    pty: Option<String>,
    #[serde(flatten)]
    summary: CommandSummary,
    /// The command line was truncated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    /// Size of its output when it exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<i64>,
}

impl From<CommandRow> for CommandHistory {
    fn from(row: CommandRow) -> Self {
        let terminal = row.kind == CommandKind::Terminal;
        let (ended_at, status) = row.ended.unzip();
        let summary = CommandSummary {
            cmd: row.command,
            args: row.args,
            cwd: row.cwd,
            user: row.user,
            tag: row.tag,
            ..CommandSummary::new(row.started_at, ended_at, status)
        };
        Self {
            pty: terminal.then(|| terminal_name(&row.id)),
            exec: (!terminal).then_some(row.id),
            summary,
            cut: row.truncated,
            output_bytes: ended_at.map(|_| row.output_bytes),
        }
    }
}

/// Id of the terminal that runs as this command.
pub(crate) fn terminal_name(exec: &ExecId) -> String {
    exec.as_str().replacen("exec_", "pty_", 1)
}
