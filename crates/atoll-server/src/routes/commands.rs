//! Commands: run, list, wait, signal, input and output.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_core::run_to_completion;
use atoll_model::{Code, Error, ExecId, ExecInfo, ExecSpec, Page, Scope};
use atoll_worker::ExecHandle;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::api_types::{BinaryBody, Command, Exit};
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{
    EmptyBody, IdempotencyHeader, IdempotentJson, JsonBody, Path, Query, RawBytes,
};
use crate::pagination::{self, PageQuery, PageResponse};
use crate::sse;
use crate::websocket::{self, StreamEndSignal, Upgrade};

/// Deadline of a foreground command without `timeout`.
const DEFAULT_DEADLINE: Duration = Duration::from_mins(1);
/// Largest stdout and stderr in a response.
const MAX_INLINE_BYTES: usize = 10 << 20;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(run, list))
        .routes(routes!(read))
        .routes(routes!(wait))
        .routes(routes!(signal))
        .routes(routes!(write))
        .routes(routes!(close))
        .routes(routes!(output))
}

/// Encoding of output in JSON.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    /// UTF-8; invalid bytes become U+FFFD.
    #[default]
    Text,
    /// Base64, lossless.
    Base64,
}

/// Request to run a command.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewCommand)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunCommand {
    /// A command line for `/bin/sh`; with `args`, a program.
    #[schema(min_length = 1, example = "make test")]
    cmd: String,
    args: Option<Vec<String>>,
    /// Environment variables, added to those of the sandbox.
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// Working directory; default: the user's home.
    cwd: Option<String>,
    /// Name or UID; default: the template's user.
    user: Option<String>,
    /// Deadline in seconds, after which the command and its descendants are killed; 0: none.
    /// Default: 60 in the foreground, none in the background.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: Option<f64>,
    /// Respond at once with the command's id.
    #[serde(default)]
    background: bool,
    /// A name for the command: `tag:NAME` is accepted instead of its id.
    tag: Option<String>,
    /// The whole input; only in the foreground.
    stdin: Option<String>,
    /// Keep stdin open for `…/stdin`.
    #[serde(default)]
    open_stdin: bool,
    #[serde(default)]
    encoding: Encoding,
}

impl RunCommand {
    fn spec(&self) -> Result<ExecSpec, Error> {
        let mut spec = match &self.args {
            Some(args) => ExecSpec::argv([&self.cmd].into_iter().chain(args)),
            None => ExecSpec::shell(&self.cmd),
        };
        if self.cmd.is_empty() {
            return Err(Error::invalid(
                "cmd",
                "cmd is required",
                "give a command line",
            ));
        }
        spec = with_context(spec, &self.envs, self.cwd.as_ref(), self.user.as_ref());
        if let Some(tag) = &self.tag {
            spec = spec.tag(tag);
        }
        if self.stdin.is_some() && self.background {
            return Err(Error::invalid(
                "stdin",
                "stdin is only for foreground commands",
                "start it with openStdin and write to …/stdin",
            ));
        }
        if self.stdin.is_some() || self.open_stdin {
            spec = spec.piped_stdin();
        }
        spec.deadline = self.deadline()?;
        Ok(spec)
    }

    fn deadline(&self) -> Result<Option<Duration>, Error> {
        let Some(seconds) = self.timeout else {
            return Ok((!self.background).then_some(DEFAULT_DEADLINE));
        };
        if seconds == 0.0 {
            return Ok(None);
        }
        let fits = seconds > 0.0 && seconds <= 3_155_760_000.0;
        let time = fits.then(|| Duration::from_secs_f64(seconds));
        time.map(Some).ok_or_else(|| {
            Error::invalid(
                "timeout",
                format!("timeout is {seconds}"),
                "give seconds above 0, or 0 for no deadline",
            )
        })
    }
}

/// Adds environment variables, directory and user to a command.
pub(super) fn with_context(
    mut spec: ExecSpec,
    envs: &BTreeMap<String, String>,
    directory: Option<&String>,
    user: Option<&String>,
) -> ExecSpec {
    for (name, value) in envs {
        spec = spec.variable(name, value);
    }
    if let Some(directory) = directory {
        spec = spec.directory(directory);
    }
    match user {
        Some(user) => spec.user(user),
        None => spec,
    }
}

/// Encodes output; returns whether bytes were replaced.
fn encode_text(bytes: Vec<u8>, encoding: Encoding) -> (String, bool) {
    match encoding {
        Encoding::Base64 => (
            base64::engine::general_purpose::STANDARD.encode(bytes),
            false,
        ),
        Encoding::Text => match String::from_utf8(bytes) {
            Ok(text) => (text, false),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), true),
        },
    }
}

/// A command that has exited.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CommandResult {
    #[serde(rename = "execID")]
    id: ExecId,
    #[serde(flatten)]
    exit: Exit,
    /// At most 10 MiB.
    stdout: String,
    /// At most 10 MiB.
    stderr: String,
    /// In milliseconds.
    #[serde(rename = "durationMs")]
    duration: f64,
    /// Output contained invalid UTF-8, which was replaced; request base64 instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lossy: bool,
    /// Output was truncated; `…/output` has all of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// A command that runs in the background.
#[derive(Debug, Serialize, ToSchema)]
struct StartedCommand {
    #[serde(rename = "execID")]
    id: ExecId,
    /// In the sandbox's PID namespace.
    pid: i32,
}

/// Run a command
///
/// Waits until the command exits and returns its output. In the background, responds at once. While
/// the command is listed, a repeated idempotency key returns it and starts nothing.
#[utoipa::path(post, path = "/sandboxes/{id}/commands", params(IdempotencyHeader), request_body = RunCommand,
    responses((status = 200, description = "The command has exited", body = CommandResult), (status = 202, description = "The command runs in the background", body = StartedCommand)))]
async fn run(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    IdempotentJson(request, idempotency): IdempotentJson<RunCommand>,
) -> ApiResult {
    let mut spec = request.spec()?;
    spec.idempotency = idempotency;
    let access = app
        .core
        .open_sandbox(&caller, &id, Scope::Sandboxes)
        .await?;
    let begin = Instant::now();
    let input = (!request.background).then(|| request.stdin.unwrap_or_default());
    // Runs to completion even if the client disconnects: the command starts, and its deadline
    // applies.
    let work = async move {
        let exec = access.runtime().exec(access.id(), spec).await?;
        let (id, pid) = (exec.handle.id().clone(), exec.handle.info().pid);
        let finished = match input {
            Some(input) => Some(exec.finish(input.as_bytes(), MAX_INLINE_BYTES).await?),
            None => None,
        };
        drop(access);
        Ok::<_, Error>((id, pid, finished))
    };
    let (id, pid, finished) = run_to_completion(work).await?;
    let Some(finished) = finished else {
        return Ok((StatusCode::ACCEPTED, Json(StartedCommand { id, pid })).into_response());
    };
    let (stdout, stdout_lossy) = encode_text(finished.stdout, request.encoding);
    let (stderr, stderr_lossy) = encode_text(finished.stderr, request.encoding);
    let body = CommandResult {
        id,
        exit: finished.status.into(),
        stdout,
        stderr,
        duration: begin.elapsed().as_secs_f64() * 1e3,
        lossy: stdout_lossy || stderr_lossy,
        truncated: finished.truncated,
    };
    Ok(Json(body).into_response())
}

/// List commands
///
/// Running commands and the most recent ones that have exited, newest first.
#[utoipa::path(get, path = "/sandboxes/{id}/commands", params(PageQuery), responses((status = 200, body = [Command])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> ApiResult<PageResponse<Command>> {
    let page = query.page()?;
    let access = app.core.peek(&caller, &id)?;
    let all = access.runtime().execs(access.id())?;
    Ok(pagination::page_response(Page::from_unsorted(
        all, &page, cursor_of,
    )))
}

/// Pagination key of a command.
pub(super) fn cursor_of(info: &ExecInfo) -> (i64, String) {
    (info.started_at, info.id.to_string())
}

/// Finds a command by id, `pid:N` or `tag:NAME`.
fn find(access: &atoll_core::SandboxAccess, name: &str) -> Result<ExecHandle, Error> {
    let runtime = access.runtime();
    if let Some(pid) = name.strip_prefix("pid:").and_then(|pid| pid.parse().ok()) {
        return runtime.find_exec_by_pid(access.id(), pid);
    }
    if let Some(tag) = name.strip_prefix("tag:") {
        return runtime.find_exec_by_tag(access.id(), tag);
    }
    let unknown = |_| {
        Error::new(Code::ExecNotFound, "there is no such command")
            .remedy("list the sandbox's commands: the oldest exited ones are removed")
    };
    runtime.find_exec(access.id(), &name.parse().map_err(unknown)?)
}

/// Get a command
#[utoipa::path(get, path = "/sandboxes/{id}/commands/{exec}", responses((status = 200, body = Command)))]
async fn read(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
) -> ApiResult<Json<Command>> {
    let access = app.core.peek(&caller, &id)?;
    Ok(Json(Command::from(&find(&access, &exec)?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// Maximum time to wait, in seconds.
    #[param(minimum = 0, maximum = 3600, default = 60)]
    timeout: Option<f64>,
}

/// Wait for a command
///
/// Returns when the command exits or the timeout expires, with its current state.
#[utoipa::path(get, path = "/sandboxes/{id}/commands/{exec}/wait", params(WaitQuery), responses((status = 200, body = Command)))]
async fn wait(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<WaitQuery>,
) -> ApiResult<Json<Command>> {
    let access = app.core.observe(&caller, &id)?;
    let exec = find(&access, &exec)?;
    let seconds = query.timeout.unwrap_or(60.0);
    if !(0.0..=3600.0).contains(&seconds) {
        let message = format!("timeout is {seconds}");
        return Err(Error::invalid("timeout", message, "give 0 to 3600 seconds").into());
    }
    let _ = tokio::time::timeout(Duration::from_secs_f64(seconds), exec.wait()).await;
    Ok(Json(Command::from(&exec)))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Signal {
    #[schema(minimum = 1, maximum = 64)]
    signal: i32,
}

/// Send a signal
///
/// Signal 9 kills the command and all its descendants.
#[utoipa::path(post, path = "/sandboxes/{id}/commands/{exec}/signal", request_body = Signal, responses((status = 204)))]
async fn signal(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    JsonBody(request): JsonBody<Signal>,
) -> ApiResult<StatusCode> {
    if !(1..=64).contains(&request.signal) {
        let message = format!("signal is {}", request.signal);
        return Err(Error::invalid("signal", message, "give a number from 1 to 64").into());
    }
    let access = app
        .core
        .open_sandbox(&caller, &id, Scope::Sandboxes)
        .await?;
    let exec = find(&access, &exec)?;
    if request.signal == 9 {
        exec.kill()?;
    } else {
        exec.signal(request.signal).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StdinQuery {
    /// Number of input bytes before this body.
    #[serde(default)]
    offset: u64,
}

/// Progress of stdin.
#[derive(Debug, Serialize, ToSchema)]
struct StdinOffset {
    /// Number of input bytes accepted so far: the next `offset`.
    taken: u64,
}

/// Write input
///
/// Writes from an offset on. Bytes that were accepted before are skipped; the response says how
/// many are accepted in total.
#[utoipa::path(post, path = "/sandboxes/{id}/commands/{exec}/stdin", params(StdinQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = StdinOffset)))]
async fn write(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<StdinQuery>,
    RawBytes(bytes): RawBytes,
) -> ApiResult<Json<StdinOffset>> {
    let access = app
        .core
        .open_sandbox(&caller, &id, Scope::Sandboxes)
        .await?;
    let taken = find(&access, &exec)?.write_stdin_at(query.offset, &bytes)?;
    Ok(Json(StdinOffset { taken }))
}

/// Close stdin
#[utoipa::path(post, path = "/sandboxes/{id}/commands/{exec}/stdin/close", responses((status = 204)))]
async fn close(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<StatusCode> {
    let access = app
        .core
        .open_sandbox(&caller, &id, Scope::Sandboxes)
        .await?;
    find(&access, &exec)?.close_stdin()?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutputQuery {
    /// Start position, in bytes of both streams together.
    #[serde(default)]
    after: u64,
    #[serde(default)]
    encoding: Encoding,
}

/// Follow the output
///
/// Server-sent events `stdout`, `stderr`, `exit`, `gap` and `ping`. The `id` of an event is the
/// position after it; the header `Last-Event-ID` overrides `after`. As a WebSocket, the first byte
/// of a binary frame is its type: 0 input, 1 stdout, 2 stderr, 3 exit status, 4 all earlier output
/// has been sent.
#[utoipa::path(get, path = "/sandboxes/{id}/commands/{exec}/output", params(OutputQuery),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 101, description = "Upgraded to a WebSocket")))]
async fn output(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
    Upgrade(upgrade): Upgrade,
    headers: axum::http::HeaderMap,
) -> ApiResult<Response> {
    let found = || {
        let access = app.core.observe(&caller, &id)?;
        let exec = find(&access, &exec)?;
        Ok((access, exec))
    };
    if let Some(upgrade) = upgrade {
        // The WebSocket also accepts input.
        let found = caller.require(Scope::Sandboxes).and_then(|()| found());
        let end_signal = StreamEndSignal::new(&app, &caller);
        return Ok(upgrade.on_upgrade(move |socket| async move {
            match found {
                Ok((access, exec)) => {
                    websocket::output(socket, access, exec, query.after, end_signal).await
                }
                Err(error) => websocket::close_with_error(socket, &error).await,
            }
        }));
    }
    let (access, exec) = found()?;
    // `EventSource` sends the last id when it reconnects.
    let last = headers
        .get("last-event-id")
        .and_then(|last| last.to_str().ok()?.parse().ok());
    let after = last.unwrap_or(query.after);
    Ok(sse::output_events(access, &exec, after, query.encoding))
}
