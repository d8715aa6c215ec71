//! Terminals: commands with a PTY. The terminal `pty_X` is the command `exec_X`.

use std::collections::BTreeMap;

use atoll_core::SandboxAccess;
use atoll_model::runtime::ExecHandle;
use atoll_model::{Code, Error, ExecInfo, ExecSpec, Idempotency, Page, SandboxId, Scope};
use axum::Json;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::{cursor_of, with_context};
use crate::AppState;
use crate::api_types::terminal_name;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{IdempotencyHeader, IdempotentJson, JsonBody, Path, Query};
use crate::pagination::{self, PageResponse};
use crate::websocket::{self, StreamEndSignal, Upgrade};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(make, list))
        .routes(routes!(join, end))
        .routes(routes!(resize))
}

/// Request to create a terminal.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = NewTerminal)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateTerminal {
    /// Clamped to 1–500.
    #[schema(maximum = 65535, default = 80)]
    cols: Option<u16>,
    /// Clamped to 1–500.
    #[schema(maximum = 65535, default = 24)]
    rows: Option<u16>,
    /// Program; default: a login shell.
    shell: Option<String>,
    /// Arguments of the program.
    #[serde(default)]
    args: Vec<String>,
    /// A name for the terminal: `tag:NAME` is accepted instead of its id.
    tag: Option<String>,
    cwd: Option<String>,
    user: Option<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
}

impl CreateTerminal {
    fn spec(&self) -> Result<ExecSpec, Error> {
        let mut spec = match &self.shell {
            Some(shell) => ExecSpec::argv([shell].into_iter().chain(&self.args)),
            None if !self.args.is_empty() => {
                let message = "args without shell";
                return Err(Error::invalid("args", message, "give the program in shell"));
            }
            // A login shell: bash if it exists.
            None => ExecSpec::shell(
                "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh; fi",
            ),
        };
        if let Some(tag) = &self.tag {
            spec = spec.tag(tag);
        }
        let size = websocket::clamp_size(self.cols.unwrap_or(80), self.rows.unwrap_or(24));
        Ok(with_context(
            spec.terminal(size),
            &self.envs,
            self.cwd.as_ref(),
            self.user.as_ref(),
        ))
    }
}

async fn find(access: &SandboxAccess, pty: &str) -> Result<Box<dyn ExecHandle>, Error> {
    let unknown = || {
        Error::new(Code::TerminalNotFound, "there is no such terminal")
            .remedy("GET …/pty lists the open terminals")
    };
    let exec = if let Some(tag) = pty.strip_prefix("tag:") {
        access.runtime().find_exec_by_tag(access.id(), tag).await
    } else {
        let id = pty.strip_prefix("pty_").map(|rest| format!("exec_{rest}"));
        let id = id.and_then(|id| id.parse().ok()).ok_or_else(unknown)?;
        access.runtime().find_exec(access.id(), &id).await
    };
    let exec = exec.map_err(|_| unknown())?;
    let info = exec.info().await?;
    if info.spec.terminal.is_none() || info.status.is_some() {
        return Err(unknown());
    }
    Ok(exec)
}

async fn open_terminals(access: &SandboxAccess) -> Result<Vec<ExecInfo>, Error> {
    let all = access.runtime().execs(access.id()).await?;
    let is_open = |info: &ExecInfo| info.spec.terminal.is_some() && info.status.is_none();
    Ok(all.into_iter().filter(is_open).collect())
}

async fn start_terminal(
    access: &SandboxAccess,
    request: &CreateTerminal,
    idempotency: Option<Idempotency>,
) -> Result<Box<dyn ExecHandle>, Error> {
    let mut spec = request.spec()?;
    spec.idempotency = idempotency;
    access.runtime().exec(access.id(), spec).await
}

/// A terminal.
#[derive(Debug, Serialize, ToSchema)]
struct Terminal {
    #[serde(rename = "ptyID")]
    #[schema(pattern = "^pty_[a-z0-9]{20}$")]
    id: String,
    /// Alias of `ptyID`.
    #[serde(rename = "sessionID")]
    session: String,
    #[serde(rename = "sandboxID")]
    sandbox: SandboxId,
    /// In the sandbox's PID namespace.
    pid: i32,
    cols: u16,
    rows: u16,
}

async fn terminal_view(access: &SandboxAccess, info: &ExecInfo) -> Terminal {
    // The current size, not the initial one.
    let size = match access.runtime().find_exec(access.id(), &info.id).await {
        Ok(exec) => exec.attach().await.map(|joined| joined.size),
        Err(error) => Err(error),
    };
    let size = size.unwrap_or(info.spec.terminal.unwrap_or_default());
    let name = terminal_name(&info.id);
    Terminal {
        id: name.clone(),
        session: name,
        sandbox: access.id().clone(),
        pid: info.pid,
        cols: size.columns,
        rows: size.rows,
    }
}

/// Create a terminal
///
/// While the terminal's command is listed, a repeated idempotency key returns it and starts
/// nothing.
#[utoipa::path(post, path = "/sandboxes/{id}/pty", params(IdempotencyHeader), request_body = CreateTerminal, responses((status = 201, body = Terminal)))]
async fn make(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    IdempotentJson(request, idempotency): IdempotentJson<CreateTerminal>,
) -> ApiResult {
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    let exec = start_terminal(&access, &request, idempotency).await?;
    let body = Json(terminal_view(&access, &exec.info().await?).await);
    Ok((StatusCode::CREATED, body).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListTerminalsQuery {
    /// Width of the terminal that a WebSocket creates.
    #[param(maximum = 65535, default = 80)]
    cols: Option<u16>,
    /// Height of the terminal that a WebSocket creates.
    #[param(maximum = 65535, default = 24)]
    rows: Option<u16>,
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the previous page.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

/// List terminals
///
/// Newest first. As a WebSocket: creates a terminal and attaches to it.
#[utoipa::path(get, path = "/sandboxes/{id}/pty", params(ListTerminalsQuery),
    responses((status = 200, body = [Terminal]), (status = 101, description = "A new terminal, as a WebSocket")))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<ListTerminalsQuery>,
    Upgrade(upgrade): Upgrade,
) -> ApiResult {
    let page = pagination::parse_page(query.limit, query.cursor.as_ref())?;
    let Some(upgrade) = upgrade else {
        let access = app.access.peek(&caller, &id).await?;
        let mut terminals = Vec::new();
        for info in open_terminals(&access).await? {
            let view = terminal_view(&access, &info).await;
            terminals.push((cursor_of(&info), view));
        }
        let slice = Page::from_unsorted(terminals, &page, |(cursor, _)| cursor.clone());
        let part: PageResponse<Terminal> = pagination::page_response(slice.map(|(_, view)| view));
        return Ok(part.into_response());
    };
    let request = CreateTerminal {
        cols: query.cols,
        rows: query.rows,
        ..CreateTerminal::default()
    };
    let joined = async {
        let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
        let exec = start_terminal(&access, &request, None).await?;
        Ok((access, exec))
    };
    Ok(upgrade_to_terminal(
        upgrade,
        joined.await,
        StreamEndSignal::new(&app, &caller),
    ))
}

/// Get a terminal
///
/// As a WebSocket: attaches to the terminal. The server first sends the current screen, then
/// output. Binary frames are input and output; the text frame `{"type": "resize", "cols": 100,
/// "rows": 30}` changes the size.
#[utoipa::path(get, path = "/sandboxes/{id}/pty/{pty}",
    responses((status = 200, body = Terminal), (status = 101, description = "The terminal, as a WebSocket")))]
async fn join(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, pty)): Path<(String, String)>,
    Upgrade(upgrade): Upgrade,
) -> ApiResult {
    let joined = async {
        let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
        let exec = find(&access, &pty).await?;
        Ok((access, exec))
    };
    match (upgrade, joined.await) {
        (Some(upgrade), joined) => Ok(upgrade_to_terminal(
            upgrade,
            joined,
            StreamEndSignal::new(&app, &caller),
        )),
        (None, Ok((access, exec))) => {
            let view = terminal_view(&access, &exec.info().await?).await;
            Ok(Json(view).into_response())
        }
        (None, Err(error)) => Err(error.into()),
    }
}

fn upgrade_to_terminal(
    upgrade: WebSocketUpgrade,
    joined: Result<(SandboxAccess, Box<dyn ExecHandle>), Error>,
    end_signal: StreamEndSignal,
) -> Response {
    upgrade.on_upgrade(|socket| async {
        match joined {
            Ok((access, exec)) => websocket::terminal(socket, access, exec, end_signal).await,
            Err(error) => websocket::close_with_error(socket, &error).await,
        }
    })
}

/// Size of a terminal.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = TerminalSize)]
#[serde(deny_unknown_fields)]
struct ResizeRequest {
    /// Clamped to 1–500.
    #[schema(maximum = 65535)]
    cols: u16,
    /// Clamped to 1–500.
    #[schema(maximum = 65535)]
    rows: u16,
}

/// Resize
#[utoipa::path(post, path = "/sandboxes/{id}/pty/{pty}/resize", request_body = ResizeRequest, responses((status = 204)))]
async fn resize(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, pty)): Path<(String, String)>,
    JsonBody(request): JsonBody<ResizeRequest>,
) -> ApiResult<StatusCode> {
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    let exec = find(&access, &pty).await?;
    let size = websocket::clamp_size(request.cols, request.rows);
    exec.resize(size).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Close a terminal
///
/// Kills its program and all its descendants.
#[utoipa::path(delete, path = "/sandboxes/{id}/pty/{pty}", responses((status = 204)))]
async fn end(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, pty)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    let exec = find(&access, &pty).await?;
    exec.kill().await?;
    exec.wait().await?;
    Ok(StatusCode::NO_CONTENT)
}
