//! Terminals: commands with a screen. `pty_X` is the command `exec_X`.

use std::collections::BTreeMap;

use atoll_core::{Again, Slice, Use};
use atoll_model::{Code, Error, ExecInfo, ExecSpec, SandboxId, Scope};
use atoll_worker::ExecHandle;
use axum::Json;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::{place, surrounded};
use crate::App;
use crate::error::Answer;
use crate::extract::{Body, Key, Path, Query, Repeatable};
use crate::middleware::Caller;
use crate::pagination::{self, Part};
use crate::websocket::{self, Ends, Upgrade};
use crate::api_types::terminal_name;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(make, list))
        .routes(routes!(join, end))
        .routes(routes!(resize))
}

/// A terminal as it is asked for.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = NewTerminal)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct New {
    /// 1 to 500; what is beyond is taken for that.
    #[schema(maximum = 65535, default = 80)]
    cols: Option<u16>,
    /// 1 to 500; what is beyond is taken for that.
    #[schema(maximum = 65535, default = 24)]
    rows: Option<u16>,
    /// The program: a shell by default.
    shell: Option<String>,
    /// The program's arguments.
    #[serde(default)]
    args: Vec<String>,
    /// A name to find it by: `tag:NAME` stands for its id.
    tag: Option<String>,
    cwd: Option<String>,
    user: Option<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
}

impl New {
    fn spec(&self) -> Result<ExecSpec, Error> {
        let mut spec = match &self.shell {
            Some(shell) => ExecSpec::argv([shell].into_iter().chain(&self.args)),
            None if !self.args.is_empty() => {
                let message = "args are those of a program";
                return Err(Error::invalid("args", message, "name it: shell"));
            }
            // The best there is, as a login would give.
            None => ExecSpec::shell(
                "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh; fi",
            ),
        };
        if let Some(tag) = &self.tag {
            spec = spec.tag(tag);
        }
        let size = websocket::size(self.cols.unwrap_or(80), self.rows.unwrap_or(24));
        Ok(surrounded(
            spec.terminal(size),
            &self.envs,
            self.cwd.as_ref(),
            self.user.as_ref(),
        ))
    }
}

fn find(used: &Use, pty: &str) -> Result<ExecHandle, Error> {
    let unknown = || {
        Error::new(Code::TerminalNotFound, "there is no such terminal")
            .remedy("GET …/pty lists those that there are")
    };
    let exec = if let Some(tag) = pty.strip_prefix("tag:") {
        used.runtime().find_exec_by_tag(used.id(), tag)
    } else {
        let id = pty.strip_prefix("pty_").map(|rest| format!("exec_{rest}"));
        let id = id.and_then(|id| id.parse().ok()).ok_or_else(unknown)?;
        used.runtime().find_exec(used.id(), &id)
    };
    let exec = exec.map_err(|_| unknown())?;
    let info = exec.info();
    if info.spec.terminal.is_none() || info.status.is_some() {
        return Err(unknown());
    }
    Ok(exec)
}

fn open(used: &Use) -> Result<Vec<ExecInfo>, Error> {
    let all = used.runtime().execs(used.id())?;
    let open = |info: &ExecInfo| info.spec.terminal.is_some() && info.status.is_none();
    Ok(all.into_iter().filter(open).collect())
}

async fn start(used: &Use, asked: &New, again: Option<Again>) -> Result<ExecHandle, Error> {
    let mut spec = asked.spec()?;
    spec.again = again;
    let exec = used.runtime().exec(used.id(), spec).await?;
    Ok(exec.control)
}

/// A terminal.
#[derive(Debug, Serialize, ToSchema)]
struct Terminal {
    #[serde(rename = "ptyID")]
    #[schema(pattern = "^pty_[a-z0-9]{20}$")]
    id: String,
    /// The same as `ptyID`.
    #[serde(rename = "sessionID")]
    session: String,
    #[serde(rename = "sandboxID")]
    sandbox: SandboxId,
    /// Inside the sandbox.
    pid: i32,
    cols: u16,
    rows: u16,
}

fn view(used: &Use, info: &ExecInfo) -> Terminal {
    // As it is now, not as it was made.
    let exec = used.runtime().find_exec(used.id(), &info.id);
    let joined = exec.and_then(|exec| exec.attach());
    let size = joined.map_or(info.spec.terminal.unwrap_or_default(), |joined| joined.size);
    let name = terminal_name(&info.id);
    Terminal {
        id: name.clone(),
        session: name,
        sandbox: used.id().clone(),
        pid: info.pid,
        cols: size.columns,
        rows: size.rows,
    }
}

/// Make a terminal
///
/// Asked for again by the same key it is the same terminal, for as long as that is remembered.
#[utoipa::path(post, path = "/sandboxes/{id}/pty", params(Key), request_body = New, responses((status = 201, body = Terminal)))]
async fn make(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Repeatable(asked, again): Repeatable<New>,
) -> Answer {
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let exec = start(&used, &asked, again).await?;
    let body = Json(view(&used, &exec.info()));
    Ok((StatusCode::CREATED, body).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Listed {
    /// Of the new terminal of a WebSocket.
    #[param(maximum = 65535, default = 80)]
    cols: Option<u16>,
    /// Of the new terminal of a WebSocket.
    #[param(maximum = 65535, default = 24)]
    rows: Option<u16>,
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the page before.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
}

/// List terminals
///
/// Newest first. As a WebSocket: makes a terminal and joins it.
#[utoipa::path(get, path = "/sandboxes/{id}/pty", params(Listed),
    responses((status = 200, body = [Terminal]), (status = 101, description = "A new terminal, as a WebSocket")))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(listed): Query<Listed>,
    Upgrade(upgrade): Upgrade,
) -> Answer {
    let page = pagination::asked(listed.limit, listed.cursor.as_ref())?;
    let Some(upgrade) = upgrade else {
        let used = app.core.look(&caller, &id)?;
        let slice = Slice::of_all(open(&used)?, &page, place);
        let part: Part<Terminal> = pagination::part(slice.map(|info| view(&used, &info)));
        return Ok(part.into_response());
    };
    let asked = New {
        cols: listed.cols,
        rows: listed.rows,
        ..New::default()
    };
    let joined = async {
        let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
        let exec = start(&used, &asked, None).await?;
        Ok((used, exec))
    };
    Ok(upgraded(upgrade, joined.await, Ends::of(&app, &caller)))
}

/// Get a terminal
///
/// As a WebSocket: joins it. First comes what its screen shows, then what it writes; binary frames are keys and output, the text
/// `{"type": "resize", "cols": 100, "rows": 30}` changes its size.
#[utoipa::path(get, path = "/sandboxes/{id}/pty/{pty}",
    responses((status = 200, body = Terminal), (status = 101, description = "The terminal, as a WebSocket")))]
async fn join(
    State(app): State<App>,
    Caller(caller): Caller,
    Path((id, pty)): Path<(String, String)>,
    Upgrade(upgrade): Upgrade,
) -> Answer {
    let joined = async {
        let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
        let exec = find(&used, &pty)?;
        Ok((used, exec))
    };
    match (upgrade, joined.await) {
        (Some(upgrade), joined) => Ok(upgraded(upgrade, joined, Ends::of(&app, &caller))),
        (None, Ok((used, exec))) => Ok(Json(view(&used, &exec.info())).into_response()),
        (None, Err(error)) => Err(error.into()),
    }
}

fn upgraded(
    upgrade: WebSocketUpgrade,
    joined: Result<(Use, ExecHandle), Error>,
    ends: Ends,
) -> Response {
    upgrade.on_upgrade(|socket| async {
        match joined {
            Ok((used, exec)) => websocket::terminal(socket, used, exec, ends).await,
            Err(error) => websocket::refuse(socket, &error).await,
        }
    })
}

/// A terminal's size.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = TerminalSize)]
#[serde(deny_unknown_fields)]
struct Resize {
    /// 1 to 500; what is beyond is taken for that.
    #[schema(maximum = 65535)]
    cols: u16,
    /// 1 to 500; what is beyond is taken for that.
    #[schema(maximum = 65535)]
    rows: u16,
}

/// Resize
#[utoipa::path(post, path = "/sandboxes/{id}/pty/{pty}/resize", request_body = Resize, responses((status = 204)))]
async fn resize(
    State(app): State<App>,
    Caller(caller): Caller,
    Path((id, pty)): Path<(String, String)>,
    Body(asked): Body<Resize>,
) -> Answer<StatusCode> {
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    find(&used, &pty)?.resize(websocket::size(asked.cols, asked.rows))?;
    Ok(StatusCode::NO_CONTENT)
}

/// End a terminal
///
/// Its program ends, with everything that it started.
#[utoipa::path(delete, path = "/sandboxes/{id}/pty/{pty}", responses((status = 204)))]
async fn end(
    State(app): State<App>,
    Caller(caller): Caller,
    Path((id, pty)): Path<(String, String)>,
) -> Answer<StatusCode> {
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let exec = find(&used, &pty)?;
    exec.kill()?;
    exec.wait().await;
    Ok(StatusCode::NO_CONTENT)
}
