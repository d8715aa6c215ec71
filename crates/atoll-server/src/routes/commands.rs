//! Commands: run, list, wait, signal, input and output.

mod run;
mod stdio;

use std::time::Duration;

use atoll_model::runtime::ExecHandle;
use atoll_model::{Code, Error, ExecInfo, Page, Scope};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::api_types::Command;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{JsonBody, Path, Query};
use crate::pagination::{self, PageQuery, PageResponse};
pub(crate) use run::Encoding;
pub(super) use run::with_context;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(run::run, list))
        .routes(routes!(read))
        .routes(routes!(wait))
        .routes(routes!(signal))
        .routes(routes!(stdio::write))
        .routes(routes!(stdio::close))
        .routes(routes!(stdio::output))
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
    let access = app.access.peek(&caller, &id).await?;
    let all = access.runtime().execs(access.id()).await?;
    Ok(pagination::page_response(Page::from_unsorted(
        all, &page, cursor_of,
    )))
}

/// Pagination key of a command.
pub(super) fn cursor_of(info: &ExecInfo) -> (i64, String) {
    (info.started_at, info.id.to_string())
}

/// Finds a command by id, `pid:N` or `tag:NAME`.
async fn find(
    access: &atoll_core::SandboxAccess,
    name: &str,
) -> Result<Box<dyn ExecHandle>, Error> {
    let runtime = access.runtime();
    if let Some(pid) = name.strip_prefix("pid:").and_then(|pid| pid.parse().ok()) {
        return runtime.find_exec_by_pid(access.id(), pid).await;
    }
    if let Some(tag) = name.strip_prefix("tag:") {
        return runtime.find_exec_by_tag(access.id(), tag).await;
    }
    let unknown = |_| {
        Error::new(Code::ExecNotFound, "there is no such command")
            .remedy("list the sandbox's commands: the oldest exited ones are removed")
    };
    let id = name.parse().map_err(unknown)?;
    runtime.find_exec(access.id(), &id).await
}

/// Get a command
#[utoipa::path(get, path = "/sandboxes/{id}/commands/{exec}", responses((status = 200, body = Command)))]
async fn read(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
) -> ApiResult<Json<Command>> {
    let access = app.access.peek(&caller, &id).await?;
    let exec = find(&access, &exec).await?;
    Ok(Json(Command::read(&*exec).await?))
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
    let access = app.access.observe(&caller, &id).await?;
    let exec = find(&access, &exec).await?;
    let seconds = query.timeout.unwrap_or(60.0);
    if !(0.0..=3600.0).contains(&seconds) {
        let message = format!("timeout is {seconds}");
        return Err(Error::invalid("timeout", message, "give 0 to 3600 seconds").into());
    }
    let _ = tokio::time::timeout(Duration::from_secs_f64(seconds), exec.wait()).await;
    Ok(Json(Command::read(&*exec).await?))
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
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    let exec = find(&access, &exec).await?;
    if request.signal == 9 {
        exec.kill().await?;
    } else {
        exec.signal(request.signal).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}
