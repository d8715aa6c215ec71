//! Terminals: commands with a screen. `pty_X` is the command `exec_X`.

use std::collections::BTreeMap;

use atoll_core::Use;
use atoll_model::{Code, Error, ExecInfo, ExecSpec, Scope};
use atoll_worker::Control;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::commands::surrounded;
use crate::App;
use crate::answer::Answer;
use crate::body::{Body, Query};
use crate::guard::Caller;
use crate::socket::{self, Upgrade};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes/{id}/pty", post(make).get(list_or_join))
        .route("/sandboxes/{id}/pty/{pty}", get(join).delete(end))
        .route("/sandboxes/{id}/pty/{pty}/resize", post(resize))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct New {
    cols: Option<u16>,
    rows: Option<u16>,
    /// The program: a shell by default.
    shell: Option<String>,
    cwd: Option<String>,
    user: Option<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
}

impl New {
    fn spec(&self) -> ExecSpec {
        let spec = match &self.shell {
            Some(shell) => ExecSpec::argv([shell]),
            // The best there is, as a login would give.
            None => ExecSpec::shell(
                "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh; fi",
            ),
        };
        let size = socket::size(self.cols.unwrap_or(80), self.rows.unwrap_or(24));
        surrounded(
            spec.terminal(size),
            &self.envs,
            self.cwd.as_ref(),
            self.user.as_ref(),
        )
    }
}

/// What a terminal is called.
fn name(exec: &atoll_model::ExecId) -> String {
    exec.as_str().replacen("exec_", "pty_", 1)
}

fn find(used: &Use, pty: &str) -> Result<Control, Error> {
    let unknown = || {
        Error::new(Code::TerminalNotFound, "there is no such terminal")
            .remedy("GET …/pty lists those that there are")
    };
    let id = pty.strip_prefix("pty_").map(|rest| format!("exec_{rest}"));
    let id = id.and_then(|id| id.parse().ok()).ok_or_else(unknown)?;
    let exec = used
        .runtime()
        .find_exec(used.id(), &id)
        .map_err(|_| unknown())?;
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

async fn start(used: &Use, asked: &New) -> Result<Control, Error> {
    let exec = used.runtime().exec(used.id(), asked.spec()).await?;
    Ok(exec.control)
}

fn view(used: &Use, info: &ExecInfo) -> Value {
    // As it is now, not as it was made.
    let exec = used.runtime().find_exec(used.id(), &info.id);
    let joined = exec.and_then(|exec| exec.attach());
    let size = joined.map_or(info.spec.terminal.unwrap_or_default(), |joined| joined.size);
    let name = name(&info.id);
    json!({
        "ptyID": name, "sessionID": name, "sandboxID": used.id(), "pid": info.pid,
        "cols": size.columns, "rows": size.rows,
    })
}

async fn make(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<New>,
) -> Answer {
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    let exec = start(&used, &asked).await?;
    let body = Json(view(&used, &exec.info()));
    Ok((StatusCode::CREATED, body).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    cols: Option<u16>,
    rows: Option<u16>,
    /// Checked before any route.
    #[serde(rename = "api_key")]
    _api_key: Option<String>,
}

/// A list; or, for a WebSocket, a new terminal.
async fn list_or_join(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(size): Query<Size>,
    Upgrade(upgrade): Upgrade,
) -> Answer {
    let Some(upgrade) = upgrade else {
        let used = app.core.look(&caller, &id)?;
        let all: Vec<Value> = open(&used)?.iter().map(|info| view(&used, info)).collect();
        return Ok(Json(all).into_response());
    };
    let asked = New {
        cols: size.cols,
        rows: size.rows,
        ..New::default()
    };
    let joined = async {
        let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
        let exec = start(&used, &asked).await?;
        Ok((used, exec))
    };
    Ok(upgraded(upgrade, joined.await))
}

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
        (Some(upgrade), joined) => Ok(upgraded(upgrade, joined)),
        (None, Ok((used, exec))) => Ok(Json(view(&used, &exec.info())).into_response()),
        (None, Err(error)) => Err(error.into()),
    }
}

fn upgraded(upgrade: WebSocketUpgrade, joined: Result<(Use, Control), Error>) -> Response {
    upgrade.on_upgrade(|socket| async {
        match joined {
            Ok((used, exec)) => socket::terminal(socket, used, exec).await,
            Err(error) => socket::refuse(socket, &error).await,
        }
    })
}

async fn resize(
    State(app): State<App>,
    Caller(caller): Caller,
    Path((id, pty)): Path<(String, String)>,
    Body(asked): Body<New>,
) -> Answer<StatusCode> {
    let (Some(columns), Some(rows)) = (asked.cols, asked.rows) else {
        return Err(Error::invalid("cols", "cols and rows are required", "give both").into());
    };
    let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
    find(&used, &pty)?.resize(socket::size(columns, rows))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends the terminal's program and everything it started.
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
