//! Running commands, in the foreground or background.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_core::run_to_completion;
use atoll_model::{Error, ExecId, ExecSpec, Scope};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::AppState;
use crate::api_types::Exit;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{IdempotencyHeader, IdempotentJson, Path};

/// Deadline of a foreground command without `timeout`.
const DEFAULT_DEADLINE: Duration = Duration::from_mins(1);
/// Largest stdout and stderr in a response.
const MAX_INLINE_BYTES: usize = 10 << 20;

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
pub(super) struct RunCommand {
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
pub(in crate::routes) fn with_context(
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
pub(super) struct CommandResult {
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
pub(super) struct StartedCommand {
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
pub(super) async fn run(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    IdempotentJson(request, idempotency): IdempotentJson<RunCommand>,
) -> ApiResult {
    let mut spec = request.spec()?;
    spec.idempotency = idempotency;
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    let begin = Instant::now();
    let input = (!request.background).then(|| request.stdin.unwrap_or_default());
    // Runs to completion even if the client disconnects: the command starts, and its deadline
    // applies.
    let work = async move {
        let exec = access.runtime().exec(access.id(), spec).await?;
        let (id, pid) = (exec.id().clone(), exec.info().await?.pid);
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
