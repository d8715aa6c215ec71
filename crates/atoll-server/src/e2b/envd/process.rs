//! The service `process.Process`: commands and terminals, selected by PID or tag.

mod events;
mod input;
mod start;

use atoll_core::{SandboxAccess, SandboxRef};
use atoll_model::runtime::ExecHandle;
use atoll_model::{Code, Program};
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
use crate::e2b::connect_rpc::{ConnectError, RequestStream, Unary};
use crate::serve::Connection;

pub(super) use events::keepalive;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/process.Process/List", post(list))
        .route("/process.Process/Start", post(start::start))
        .route("/process.Process/Connect", post(connect))
        .route("/process.Process/Update", post(update))
        .route("/process.Process/SendInput", post(input::send_input))
        .route("/process.Process/StreamInput", post(input::stream_input))
        .route("/process.Process/SendSignal", post(send_signal))
        .route("/process.Process/CloseStdin", post(input::close_stdin))
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
    pty: Option<start::Pty>,
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
