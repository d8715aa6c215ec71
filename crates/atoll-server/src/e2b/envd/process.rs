//! The service `process.Process`: commands and terminals, selected by PID or tag.

mod events;

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::{SandboxAccess, SandboxRef};
use atoll_model::runtime::ExecHandle;
use atoll_model::{Code, Error, ExecSpec, Program};
use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::AppState;
use crate::e2b::connect_rpc::{self, ConnectError, RequestStream, Unary};
use crate::serve::{Connection, IdleExemption};
use crate::websocket::clamp_size;

pub(super) use events::keepalive;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/process.Process/List", post(list))
        .route("/process.Process/Start", post(start))
        .route("/process.Process/Connect", post(connect))
        .route("/process.Process/Update", post(update))
        .route("/process.Process/SendInput", post(send_input))
        .route("/process.Process/StreamInput", post(stream_input))
        .route("/process.Process/SendSignal", post(send_signal))
        .route("/process.Process/CloseStdin", post(close_stdin))
}

/// Selects a process.
#[derive(Debug, Default, Deserialize)]
struct ProcessSelector {
    pid: Option<i32>,
    tag: Option<String>,
}

impl ProcessSelector {
    async fn find(&self, access: &SandboxAccess) -> Result<Box<dyn ExecHandle>, ConnectError> {
        let runtime = access.runtime();
        let found = match (self.pid, &self.tag) {
            (Some(pid), _) => runtime.find_exec_by_pid(access.id(), pid).await,
            (None, Some(tag)) => runtime.find_exec_by_tag(access.id(), tag).await,
            (None, None) => {
                return Err(ConnectError::new(
                    "invalid_argument",
                    "no pid and no tag was given",
                ));
            }
        };
        found.map_err(|error| match (error.code, self.pid, &self.tag) {
            (Code::ExecNotFound, Some(pid), _) => {
                ConnectError::new("not_found", format!("process with pid {pid} not found"))
            }
            (Code::ExecNotFound, None, Some(tag)) => {
                ConnectError::new("not_found", format!("process with tag '{tag}' not found"))
            }
            _ => error.into(),
        })
    }
}

#[derive(Debug, Deserialize)]
struct SelectedProcess {
    process: ProcessSelector,
}

#[derive(Debug, Default, Deserialize)]
struct ProcessConfig {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pty {
    size: Size,
}

#[derive(Debug, Deserialize)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

impl Size {
    fn of_terminal(&self) -> atoll_model::TerminalSize {
        let number = |number| u16::try_from(number).unwrap_or(u16::MAX);
        clamp_size(number(self.cols), number(self.rows))
    }
}

#[derive(Debug, Deserialize)]
struct Start {
    process: ProcessConfig,
    pty: Option<Pty>,
    tag: Option<String>,
    /// Default: true, as older clients expect.
    stdin: Option<bool>,
}

impl Start {
    fn spec(&self, headers: &HeaderMap) -> ExecSpec {
        let ProcessConfig {
            cmd,
            args,
            envs,
            cwd,
        } = &self.process;
        let mut spec = ExecSpec::argv([cmd].into_iter().chain(args));
        for (name, value) in envs {
            spec = spec.variable(name, value);
        }
        spec.directory = cwd
            .clone()
            .filter(|cwd| !cwd.is_empty())
            .map(String::into_bytes);
        spec.user = basic_auth_user(headers);
        spec.tag.clone_from(&self.tag);
        spec.deadline = deadline(headers);
        if let Some(pty) = &self.pty {
            spec = spec.terminal(pty.size.of_terminal());
        } else if self.stdin != Some(false) {
            spec = spec.piped_stdin();
        }
        spec
    }
}

/// User name in basic authentication; the password is ignored.
pub(super) fn basic_auth_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    let decoded = is_basic.then(|| STANDARD.decode(encoded.trim()).ok())??;
    let text = String::from_utf8(decoded).ok()?;
    let name = text.split(':').next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Deadline of the process: the client's timeout for the call.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let milliseconds = headers.get("connect-timeout-ms")?.to_str().ok()?;
    let milliseconds = milliseconds.parse().ok().filter(|time| *time > 0)?;
    Some(Duration::from_millis(milliseconds))
}

/// Converts an error to E2B's code and message.
fn to_e2b_error(error: Error, spec: &ExecSpec) -> ConnectError {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match error.code {
        Code::CwdNotFound => {
            let cwd = spec.directory.as_deref().map(text).unwrap_or_default();
            ConnectError::new("invalid_argument", format!("cwd '{cwd}' does not exist"))
        }
        Code::UnknownUser => {
            let user = spec.user.clone().unwrap_or_default();
            ConnectError::new("unauthenticated", format!("invalid username: '{user}'"))
        }
        _ => error.into(),
    }
}

async fn list(Extension(sandbox): Extension<SandboxRef>) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let all = access.runtime().execs(access.id()).await?.into_iter();
    let running = all.filter(|exec| exec.status.is_none());
    let processes: Vec<Value> = running
        .map(|exec| {
            let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
            let (cmd, args) = match &exec.spec.program {
                Program::Argv(argv) => {
                    let mut words = argv.iter().map(text);
                    (words.next().unwrap_or_default(), words.collect())
                }
                Program::Shell(line) => ("/bin/sh".into(), vec!["-c".into(), line.clone()]),
            };
            // Environment variables are not returned: they may contain secrets.
            let mut config = json!({ "cmd": cmd, "args": args, "envs": {} });
            if let Some(directory) = &exec.spec.directory {
                config["cwd"] = text(directory).into();
            }
            let mut process = json!({ "config": config, "pid": exec.pid });
            if let Some(tag) = &exec.spec.tag {
                process["tag"] = tag.as_str().into();
            }
            process
        })
        .collect();
    Ok(Json(json!({ "processes": processes })))
}

async fn start(
    Extension(sandbox): Extension<SandboxRef>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match start_process(&sandbox, &headers, body).await {
        Ok((access, exec)) => events::respond(access, connection, exec, 0, &headers).await,
        Err(error) => error.stream(),
    }
}

async fn start_process(
    sandbox: &SandboxRef,
    headers: &HeaderMap,
    body: Body,
) -> Result<(SandboxAccess, Box<dyn ExecHandle>), ConnectError> {
    let request: Start = RequestStream::new(body).only().await?;
    let spec = request.spec(headers);
    let access = sandbox.open().await?;
    let started = access.runtime().exec(access.id(), spec.clone()).await;
    let exec = started.map_err(|error| to_e2b_error(error, &spec))?;
    Ok((access, exec))
}

/// Attaches to a process and streams its output from now on.
async fn connect(
    Extension(sandbox): Extension<SandboxRef>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let connected = async {
        let request: SelectedProcess = RequestStream::new(body).only().await?;
        let access = sandbox.open().await?;
        let exec = request.process.find(&access).await?;
        let now = exec.output_range().await?.1;
        Ok::<_, ConnectError>((access, exec, now))
    };
    match connected.await {
        Ok((access, exec, now)) => events::respond(access, connection, exec, now, &headers).await,
        Err(error) => error.stream(),
    }
}

#[derive(Debug, Deserialize)]
struct Update {
    process: ProcessSelector,
    pty: Option<Pty>,
}

async fn update(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<Update>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let exec = request.process.find(&access).await?;
    if let Some(pty) = request.pty {
        exec.resize(pty.size.of_terminal()).await?;
    }
    Ok(Json(json!({})))
}

/// Input for a process, in base64.
#[derive(Debug, Deserialize)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

impl Input {
    async fn write(&self, exec: &dyn ExecHandle) -> Result<(), ConnectError> {
        let data = self.stdin.as_ref().or(self.pty.as_ref());
        let bytes = STANDARD.decode(data.map_or("", String::as_str));
        let bytes =
            bytes.map_err(|_| ConnectError::new("invalid_argument", "input is not base64"))?;
        let on_terminal = exec.info().await?.spec.terminal.is_some();
        if on_terminal != self.pty.is_some() && data.is_some() {
            let message = if on_terminal {
                "the process has a terminal: send pty input"
            } else {
                "the process has no terminal: send stdin input"
            };
            return Err(ConnectError::new("internal", message));
        }
        Ok(exec.write_stdin(&bytes).await?)
    }
}

#[derive(Debug, Deserialize)]
struct SendInput {
    process: ProcessSelector,
    input: Input,
}

async fn send_input(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<SendInput>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let exec = request.process.find(&access).await?;
    request.input.write(&*exec).await?;
    Ok(Json(json!({})))
}

/// Message of an input stream.
#[derive(Debug, Deserialize)]
struct InputMessage {
    start: Option<SelectedProcess>,
    data: Option<InputData>,
    /// Keepalive; has no effect.
    #[serde(default, rename = "keepalive")]
    _keepalive: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct InputData {
    input: Input,
}

async fn stream_input(
    Extension(sandbox): Extension<SandboxRef>,
    Extension(exemption): Extension<IdleExemption>,
    body: Body,
) -> Response {
    // Interactive input may pause for any time.
    exemption.exempt();
    match take_input(&sandbox, body).await {
        Ok(()) => connect_rpc::stream(futures_util::stream::iter([
            Ok(connect_rpc::message(&json!({}))),
            Ok(connect_rpc::end_of_stream()),
        ])),
        Err(error) => error.stream(),
    }
}

async fn take_input(sandbox: &SandboxRef, body: Body) -> Result<(), ConnectError> {
    let access = sandbox.open().await?;
    let mut call = RequestStream::new(body);
    let mut process = None;
    while let Some(piece) = call.next::<InputMessage>().await? {
        access.record_activity();
        if let Some(start) = piece.start {
            process = Some(start.process.find(&access).await?);
        }
        if let Some(data) = piece.data {
            let unknown =
                || ConnectError::new("invalid_argument", "input before the start message");
            let process = process.as_ref().ok_or_else(unknown)?;
            data.input.write(&**process).await?;
        }
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct SendSignal {
    process: ProcessSelector,
    #[serde(default)]
    signal: String,
}

async fn send_signal(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<SendSignal>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let exec = request.process.find(&access).await?;
    let signal = match request.signal.as_str() {
        "SIGNAL_SIGKILL" => 9,
        "SIGNAL_SIGTERM" => 15,
        other => {
            let message =
                format!("the signal {other:?} is neither SIGNAL_SIGKILL nor SIGNAL_SIGTERM");
            return Err(ConnectError::new("invalid_argument", message));
        }
    };
    let info = exec.info().await?;
    if info.status.is_some() {
        let message = format!("process with pid {} not found", info.pid);
        return Err(ConnectError::new("not_found", message));
    }
    exec.signal(signal).await?;
    Ok(Json(json!({})))
}

async fn close_stdin(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<SelectedProcess>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let exec = request.process.find(&access).await?;
    exec.close_stdin().await?;
    Ok(Json(json!({})))
}
