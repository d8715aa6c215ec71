//! Sandboxes: lifecycle and timeouts.

mod change;
mod create;
mod list;

use atoll_model::Error;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use list::read_states;

use crate::AppState;
use crate::api_types::Sandbox;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{EmptyBody, JsonBody, Path};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create::create, list::list))
        .routes(routes!(read, change::change, delete))
        .routes(routes!(timeout))
        .routes(routes!(keep_alive))
        .routes(routes!(stop))
        .routes(routes!(start))
        .routes(routes!(restart))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(change::read_network, change::network))
}

/// Parses seconds; 0 means no timeout.
fn parse_seconds(field: &str, seconds: i64) -> Result<Option<u32>, Error> {
    match u32::try_from(seconds) {
        Ok(0) => Ok(None),
        // 100 years.
        Ok(seconds) if seconds <= 3_155_760_000 => Ok(Some(seconds)),
        _ => Err(Error::invalid(
            field,
            format!("{field} is {seconds}"),
            "give at least 1 second, or 0 for no timeout",
        )),
    }
}

/// Get a sandbox
#[utoipa::path(get, path = "/sandboxes/{id}", responses((status = 200, body = Sandbox)))]
async fn read(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(app.sandbox(app.core.sandbox(&caller, &id).await?)))
}

/// Delete a sandbox
///
/// Deletes its files too.
#[utoipa::path(delete, path = "/sandboxes/{id}", responses((status = 204)))]
async fn delete(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<StatusCode> {
    app.core.delete(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Timeout {
    /// In seconds from now; 0: no timeout, if the org permits that.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: i64,
}

/// Set the timeout
///
/// Counts from now.
#[utoipa::path(post, path = "/sandboxes/{id}/timeout", request_body = Timeout, responses((status = 200, body = Sandbox)))]
async fn timeout(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<Timeout>,
) -> ApiResult<Json<Sandbox>> {
    let time = parse_seconds("timeout", request.timeout)?;
    let changed = app.core.set_timeout(&caller, &id, time).await?;
    Ok(Json(app.sandbox(changed)))
}

/// Keep alive
///
/// Counts as activity: resets the idle timer.
#[utoipa::path(post, path = "/sandboxes/{id}/keepalive", responses((status = 200, body = Sandbox)))]
async fn keep_alive(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(app.sandbox(app.core.keep_alive(&caller, &id).await?)))
}

/// Stop
///
/// Ends all processes; files are kept.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", responses((status = 200, body = Sandbox)))]
async fn stop(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(app.sandbox(app.core.stop(&caller, &id).await?)))
}

/// Start
///
/// Starts a stopped sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/start", responses((status = 200, body = Sandbox)))]
async fn start(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(app.sandbox(app.core.start(&caller, &id).await?)))
}

/// Restart
///
/// Stops and starts the sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/restart", responses((status = 200, body = Sandbox)))]
async fn restart(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(app.sandbox(app.core.restart(&caller, &id).await?)))
}

/// Pause
///
/// Freezes all processes; memory is kept and the timeout is suspended.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", responses((status = 200, body = Sandbox)))]
async fn pause(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<Json<Sandbox>> {
    Ok(Json(app.sandbox(app.core.pause(&caller, &id).await?)))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// In seconds from now; default: the remaining time.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: Option<i64>,
}

/// Resume
///
/// Resumes a paused sandbox.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", request_body = Resume, responses((status = 200, body = Sandbox)))]
async fn resume(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<Resume>,
) -> ApiResult<Json<Sandbox>> {
    let time = request
        .timeout
        .map(|time| parse_seconds("timeout", time))
        .transpose()?;
    let resumed = app.core.resume(&caller, &id, time).await?;
    Ok(Json(app.sandbox(resumed)))
}
