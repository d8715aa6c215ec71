//! Sandboxes.

mod change;
mod create;

use atoll_core::{Context, Which};
use atoll_model::{Error, SandboxState};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::answer::Answer;
use crate::body::{Body, Nothing, Path, Query};
use crate::guard::Caller;
use crate::page::{self, Part};
use crate::views::Sandbox;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create::create, list))
        .routes(routes!(read, change::change, delete))
        .routes(routes!(timeout))
        .routes(routes!(keep_alive))
        .routes(routes!(stop))
        .routes(routes!(start))
        .routes(routes!(restart))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(change::network))
}

/// Seconds on the wire: 0 is without end.
fn seconds(field: &str, seconds: i64) -> Result<Option<u32>, Error> {
    match u32::try_from(seconds) {
        Ok(0) => Ok(None),
        // A hundred years.
        Ok(seconds) if seconds <= 3_155_760_000 => Ok(Some(seconds)),
        _ => Err(Error::invalid(
            field,
            format!("{field} is {seconds}"),
            "give seconds from 1 on, or 0 for no end",
        )),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Listed {
    #[param(minimum = 1, maximum = 100, default = 100)]
    limit: Option<u32>,
    /// The `X-Next-Cursor` of the page before.
    #[param(pattern = r"^-?[0-9]{1,18}\..*$")]
    cursor: Option<String>,
    /// Only those in this state; `error` is `failed`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    state: Option<String>,
    /// The same as `state`.
    #[param(pattern = "^(creating|running|paused|stopping|stopped|failed|error)$")]
    status: Option<String>,
}

impl Listed {
    /// The state that is asked for, by either of its names.
    fn state(&self) -> Result<Option<SandboxState>, Error> {
        let state = read_state("state", self.state.as_deref())?;
        let status = read_state("status", self.status.as_deref())?;
        if let (Some(state), Some(status)) = (state, status)
            && state != status
        {
            let message = "state and status are the same, and say different things";
            return Err(Error::invalid("status", message, "give state alone"));
        }
        Ok(state.or(status))
    }

    pub(super) async fn answer(
        &self,
        app: &App,
        caller: &Context,
        which: Which,
    ) -> Answer<Part<Sandbox>> {
        let page = page::asked(self.limit, self.cursor.as_ref())?;
        let state = self.state()?;
        let found = app.core.sandboxes(caller, which, state, &page).await?;
        Ok(page::part(found))
    }
}

/// A state by its name; `failed` has two spellings.
fn read_state(field: &str, word: Option<&str>) -> Result<Option<SandboxState>, Error> {
    let Some(word) = word else { return Ok(None) };
    let spelled = |state: &SandboxState| {
        state.name() == word || (word == "error" && *state == SandboxState::Failed)
    };
    let found = SandboxState::ALL.into_iter().find(spelled);
    found.map(Some).ok_or_else(|| {
        let known = SandboxState::ALL.map(SandboxState::name).join(", ");
        let message = format!("{word:?} is not a state");
        Error::invalid(field, message, format!("choose one of {known}"))
    })
}

/// List sandboxes
///
/// Newest first; deleted ones are not there any more.
#[utoipa::path(get, path = "/sandboxes", params(Listed),
    responses((status = 200, body = [Sandbox])))]
async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<Listed>,
) -> Answer<Part<Sandbox>> {
    asked.answer(&app, &caller, Which::Living).await
}

/// Get a sandbox
#[utoipa::path(get, path = "/sandboxes/{id}", responses((status = 200, body = Sandbox)))]
async fn read(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.sandbox(&caller, &id)?.into()))
}

/// Delete a sandbox
///
/// With its files.
#[utoipa::path(delete, path = "/sandboxes/{id}", responses((status = 204)))]
async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    app.core.delete(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Timeout {
    /// In seconds from now; 0 is without end, as far as the org allows.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: i64,
}

/// Set the timeout
///
/// How long it has from now on.
#[utoipa::path(post, path = "/sandboxes/{id}/timeout", request_body = Timeout, responses((status = 200, body = Sandbox)))]
async fn timeout(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Timeout>,
) -> Answer<Json<Sandbox>> {
    let time = seconds("timeout", asked.timeout)?;
    Ok(Json(app.core.set_timeout(&caller, &id, time).await?.into()))
}

/// Keep alive
///
/// Counts as a use: it is not idle.
#[utoipa::path(post, path = "/sandboxes/{id}/keepalive", responses((status = 200, body = Sandbox)))]
async fn keep_alive(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    _: Body<Nothing>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.keep_alive(&caller, &id)?.into()))
}

/// Stop
///
/// Its processes end, its files stay.
#[utoipa::path(post, path = "/sandboxes/{id}/stop", responses((status = 200, body = Sandbox)))]
async fn stop(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    _: Body<Nothing>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.stop(&caller, &id).await?.into()))
}

/// Start
///
/// Makes a stopped one run again.
#[utoipa::path(post, path = "/sandboxes/{id}/start", responses((status = 200, body = Sandbox)))]
async fn start(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    _: Body<Nothing>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.start(&caller, &id).await?.into()))
}

/// Restart
///
/// Stops it and starts it.
#[utoipa::path(post, path = "/sandboxes/{id}/restart", responses((status = 200, body = Sandbox)))]
async fn restart(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    _: Body<Nothing>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.restart(&caller, &id).await?.into()))
}

/// Pause
///
/// Its processes stand still, and so do its clocks.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", responses((status = 200, body = Sandbox)))]
async fn pause(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    _: Body<Nothing>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(app.core.pause(&caller, &id).await?.into()))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Resume {
    /// In seconds from now; what was left if nothing is said.
    #[schema(minimum = 0, maximum = 3_155_760_000_i64)]
    timeout: Option<i64>,
}

/// Resume
///
/// Lets a paused one go on.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", request_body = Resume, responses((status = 200, body = Sandbox)))]
async fn resume(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Body(asked): Body<Resume>,
) -> Answer<Json<Sandbox>> {
    let time = asked
        .timeout
        .map(|time| seconds("timeout", time))
        .transpose()?;
    let resumed = app.core.resume(&caller, &id, time).await?;
    Ok(Json(resumed.into()))
}
