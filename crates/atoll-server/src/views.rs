//! How things look on the wire: camelCase with `ID`, times in RFC 3339 with microseconds.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use atoll_core::{CommandKind, CommandRow, Event, SandboxView, SessionView};
use atoll_model::{
    Ending, EventId, ExecId, ExecInfo, ExecStatus, Key, KeyId, Network, Org, OrgId, Program,
    Reason, SandboxId, SandboxState, Scope, SessionId, Timings, Usage,
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

/// Bytes, as they are.
#[derive(Debug, ToSchema)]
#[schema(value_type = String, format = Binary)]
pub(crate) struct Raw(());

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    #[serde(rename = "sandboxID")]
    id: SandboxId,
    /// This life of it in the history.
    #[serde(rename = "sessionID")]
    session: SessionId,
    #[serde(rename = "templateID")]
    template: String,
    /// Another name for it, in paths too.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias: Option<String>,
    state: SandboxState,
    /// The same, with `failed` spelled `error`.
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    /// Why it could not be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Words of the caller's own.
    metadata: BTreeMap<String, String>,
    cpu_count: f64,
    /// In mebibytes.
    #[serde(rename = "memoryMB")]
    memory: u64,
    /// In mebibytes.
    #[serde(rename = "diskMB")]
    disk: u64,
    /// Processes and threads.
    pids: u32,
    network: Network,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    /// `null` is without end, or not while it does not run.
    end_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_at: Option<Time>,
    /// When its files are deleted, if it stays stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    delete_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted_at: Option<Time>,
    /// In seconds; 0 is without end.
    timeout: u32,
    on_timeout: Ending,
    /// In seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_timeout: Option<u32>,
    on_idle: Ending,
    /// A use of it while it is paused lets it go on.
    auto_resume: bool,
    /// Told by the request that makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Stages>,
}

/// How long the stages of a create took, in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
struct Stages {
    slot: f64,
    clone: f64,
    root: f64,
    start: f64,
    total: f64,
}

impl From<Timings> for Stages {
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

impl From<SandboxView> for Sandbox {
    fn from(view: SandboxView) -> Self {
        let row = view.row;
        let stopped = row.state == SandboxState::Stopped;
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
            pids: row.limits.pids,
            network: row.network,
            created_at: Time(row.created_at),
            started_at: row.started_at.map(Time),
            end_at: row.end_at.filter(|_| !stopped).map(Time),
            stopped_at: row.stopped_at.map(Time),
            delete_at: row.end_at.filter(|_| stopped).map(Time),
            deleted_at: row.deleted_at.map(Time),
            timeout: row.lifetime.timeout.unwrap_or(0),
            on_timeout: row.lifetime.on_timeout,
            idle_timeout: row.lifetime.idle_timeout,
            on_idle: row.lifetime.on_idle,
            auto_resume: row.lifetime.auto_resume,
            timings: view.timings.map(Stages::from),
        }
    }
}

/// How a command ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Exit {
    /// 124 after a deadline, 137 after an OOM kill, 128 + n after signal n.
    #[serde(rename = "exitCode")]
    code: i32,
    /// What ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// The kernel killed something of it for want of memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oom_killed: bool,
    /// Its deadline came first.
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

/// A command. Its variables are not told.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Command {
    #[serde(rename = "execID")]
    id: ExecId,
    /// Inside the sandbox.
    pid: i32,
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
    /// Once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// What ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// The kernel killed something of it for want of memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oom_killed: bool,
    /// Its deadline came first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
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
        let exit = info.status.map(Exit::from);
        Self {
            id: info.id,
            pid: info.pid,
            cmd,
            args,
            cwd: info.spec.directory.as_deref().map(lossy),
            user: info.spec.user,
            tag: info.spec.tag,
            state: state(info.status),
            started_at: Time(info.started_at),
            ended_at: info.ended_at.map(Time),
            exit_code: exit.as_ref().map(|exit| exit.code),
            signal: exit.as_ref().and_then(|exit| exit.signal),
            oom_killed: exit.as_ref().is_some_and(|exit| exit.oom_killed),
            timed_out: exit.is_some_and(|exit| exit.timed_out),
        }
    }
}

/// A session: a sandbox, and how much there is of its history.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Session {
    #[serde(flatten)]
    sandbox: Sandbox,
    command_count: i64,
    terminal_count: i64,
}

impl From<SessionView> for Session {
    fn from(view: SessionView) -> Self {
        Self {
            sandbox: SandboxView::from(view.row).into(),
            command_count: view.commands,
            terminal_count: view.terminals,
        }
    }
}

/// A command or a terminal as history has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PastCommand {
    #[serde(rename = "execID", skip_serializing_if = "Option::is_none")]
    exec: Option<String>,
    #[serde(rename = "ptyID", skip_serializing_if = "Option::is_none")]
    pty: Option<String>,
    cmd: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    args: Vec<String>,
    /// The line was longer than is kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    state: &'static str,
    started_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Time>,
    #[serde(flatten)]
    exit: Option<Exit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_bytes: Option<i64>,
}

impl From<CommandRow> for PastCommand {
    fn from(row: CommandRow) -> Self {
        let terminal = row.kind == CommandKind::Terminal;
        let (ended_at, status) = row.ended.unzip();
        Self {
            pty: terminal.then(|| terminal_name(&row.id)),
            exec: (!terminal).then(|| row.id.to_string()),
            cmd: row.command,
            args: row.args,
            cut: row.cut,
            cwd: row.cwd,
            user: row.user,
            tag: row.tag,
            state: state(status),
            started_at: Time(row.started_at),
            ended_at: ended_at.map(Time),
            exit: status.map(Exit::from),
            output_bytes: ended_at.map(|_| row.output_bytes),
        }
    }
}

/// What a terminal is called.
pub(crate) fn terminal_name(exec: &ExecId) -> String {
    exec.as_str().replacen("exec_", "pty_", 1)
}

/// What a command does.
fn state(status: Option<ExecStatus>) -> &'static str {
    match status {
        Some(_) => "exited",
        None => "running",
    }
}

/// A key, and its secret when it is made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyView {
    #[serde(rename = "keyID")]
    id: KeyId,
    #[serde(rename = "orgID")]
    org: OrgId,
    name: String,
    /// The first characters of its secret, to tell it by.
    prefix: String,
    scope: Scope,
    created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Time>,
    /// The secret: told once, by the request that makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl KeyView {
    pub(crate) fn new(key: Key, secret: Option<String>) -> Self {
        Self {
            id: key.id,
            org: key.org,
            name: key.name,
            prefix: key.prefix,
            scope: key.scope,
            created_at: Time(key.created_at),
            expires_at: key.expires_at.map(Time),
            last_used_at: key.last_used_at.map(Time),
            revoked_at: key.revoked_at.map(Time),
            key: secret,
        }
    }
}

/// An org.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Org)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OrgView {
    #[serde(rename = "orgID")]
    id: OrgId,
    name: String,
    /// At once; `null` is as many as the machine holds.
    max_sandboxes: Option<u32>,
    /// The longest lifetime in seconds; `null` is no end.
    max_timeout: Option<u32>,
    created_at: Time,
}

impl From<Org> for OrgView {
    fn from(org: Org) -> Self {
        Self {
            id: org.id,
            name: org.name,
            max_sandboxes: org.max_sandboxes,
            max_timeout: org.max_timeout,
            created_at: Time(org.created_at),
        }
    }
}

/// Something that happened to a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventView {
    #[serde(rename = "eventID")]
    id: EventId,
    /// Counts up: `after` goes on behind it.
    number: i64,
    /// Such as `sandbox.created`.
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "sandboxID")]
    sandbox: SandboxId,
    at: Time,
    /// What there is to say about it.
    #[schema(value_type = Object)]
    data: serde_json::Value,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            id: event.id,
            number: event.number,
            kind: format!("sandbox.{}", event.kind),
            sandbox: event.sandbox,
            at: Time(event.at),
            data: event.payload,
        }
    }
}

/// Something that listens in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Port {
    port: u16,
    #[schema(value_type = String)]
    address: IpAddr,
}

impl From<SocketAddr> for Port {
    fn from(at: SocketAddr) -> Self {
        Self {
            port: at.port(),
            address: at.ip(),
        }
    }
}

/// What a sandbox uses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Usage)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UsageView {
    cpu_seconds: f64,
    memory_bytes: u64,
    pids: u64,
}

impl From<Usage> for UsageView {
    fn from(usage: Usage) -> Self {
        Self {
            cpu_seconds: usage.cpu.as_secs_f64(),
            memory_bytes: usage.memory.0,
            pids: usage.pids,
        }
    }
}
