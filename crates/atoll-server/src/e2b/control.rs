//! E2B's control API: sandboxes by key.

mod list;
mod logs;
mod requests;
mod responses;

use atoll_core::{Before, Context, NewSandbox, SandboxView};
use atoll_model::{Code, Error, SandboxState};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use serde_json::Value;

use super::error::{Answer, Known, Refusal};
use crate::App;
use crate::e2b::lenient::Lenient;
use requests::{Connect, Create, Pause, Refresh, Resume, Timeout};
use responses::{Detail, Domain, Sandbox};

/// Every route, below `/e2b`.
pub(crate) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes", post(create).get(list::running))
        .route("/v2/sandboxes", post(create_now).get(list::all))
        .route("/sandboxes/{id}", get(read).delete(kill))
        .route("/sandboxes/{id}/timeout", post(timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/network", put(network))
        .route("/sandboxes/metrics", get(logs::latest))
        .route("/sandboxes/{id}/metrics", get(logs::metrics))
        .route("/sandboxes/{id}/logs", get(logs::lines))
        .route("/v2/sandboxes/{id}/logs", get(logs::entries))
        .route("/sandboxes/{id}/fork", any(forks))
        .route("/sandboxes/{id}/snapshots", any(snapshots))
        .route("/snapshots", any(snapshots))
        .route("/templates", any(builds))
        .route("/templates/{*rest}", any(builds))
        .route("/v2/templates", any(builds))
        .route("/v2/templates/{*rest}", any(builds))
        .route("/v3/templates", any(builds))
        .route("/v3/templates/{*rest}", any(builds))
        .route("/volumes", any(volumes))
        .route("/volumes/{*rest}", any(volumes))
        .route("/secrets", any(secrets))
        .route("/secrets/{*rest}", any(secrets))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
}

async fn nowhere() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no such route")
}

async fn not_so() -> Refusal {
    let message = "there is no such method here";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn forks(_: Known) -> Refusal {
    Refusal::not_yet("forks")
}

async fn snapshots(_: Known) -> Refusal {
    Refusal::not_yet("snapshots")
}

async fn builds(_: Known) -> Refusal {
    Refusal::not_yet("template builds (make templates with `atoll template`, or POST /templates)")
}

async fn volumes(_: Known) -> Refusal {
    Refusal::not_yet("volumes")
}

async fn secrets(_: Known) -> Refusal {
    Refusal::not_yet("secrets")
}

/// The id alone: clients may write more behind it.
fn id_of(path: &str) -> &str {
    path.split('-').next().unwrap_or(path)
}

/// In the words that their users search for.
fn unknown(id: &str) -> Refusal {
    let message = format!("Sandbox \"{id}\" doesn't exist or you don't have access to it");
    Refusal::new(StatusCode::NOT_FOUND, message)
}

/// A failure about one sandbox.
fn about(id: &str) -> impl Fn(Error) -> Refusal {
    move |error| match error.code {
        Code::SandboxNotFound => unknown(id),
        _ => error.into(),
    }
}

/// A sandbox of the caller's that E2B's clients may know of.
fn find(app: &App, caller: &Context, id: &str) -> Answer<SandboxView> {
    let found = app.core.sandbox(caller, id).map_err(about(id))?;
    match found.row.state {
        SandboxState::Failed => Err(unknown(id)),
        _ => Ok(found),
    }
}

/// What the clients of E2B's code interpreter are made from, if nothing else is said.
const INTERPRETER: &str = "code-interpreter-v1";

type Made = Answer<(StatusCode, Json<Sandbox>)>;

/// As older clients ask: 15 seconds, if they say nothing.
async fn create(
    State(app): State<App>,
    Known(caller): Known,
    domain: Domain,
    headers: HeaderMap,
    Lenient(asked): Lenient<Create>,
) -> Made {
    let new = asked.sandbox(&headers, 15)?;
    make(&app, &caller, domain, new, asked.template()).await
}

async fn create_now(
    State(app): State<App>,
    Known(caller): Known,
    domain: Domain,
    headers: HeaderMap,
    Lenient(asked): Lenient<Create>,
) -> Made {
    let new = asked.sandbox(&headers, 300)?;
    make(&app, &caller, domain, new, asked.template()).await
}

async fn make(
    app: &App,
    caller: &Context,
    domain: Domain,
    new: NewSandbox,
    template: &str,
) -> Made {
    let made = app
        .core
        .create(caller, new)
        .await
        .map_err(|error| match error.code {
            Code::UnknownTemplate if template == INTERPRETER => {
                Refusal::not_yet("the code interpreter, whose template this is,")
            }
            Code::UnknownTemplate => {
                let message = format!("template '{template}' not found");
                Refusal::new(StatusCode::NOT_FOUND, message)
            }
            Code::IdempotencyMismatch => {
                Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.message)
            }
            _ => error.into(),
        })?;
    Ok((StatusCode::CREATED, Json(Sandbox::new(app, domain, &made))))
}

async fn read(
    State(app): State<App>,
    Known(caller): Known,
    domain: Domain,
    Path(id): Path<String>,
) -> Answer<Json<Detail>> {
    let found = find(&app, &caller, id_of(&id))?;
    Ok(Json(Detail::new(&app, domain, &found)))
}

async fn kill(
    State(app): State<App>,
    Known(caller): Known,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    app.core.delete(&caller, id).await.map_err(about(id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn timeout(
    State(app): State<App>,
    Known(caller): Known,
    Path(id): Path<String>,
    Lenient(asked): Lenient<Timeout>,
) -> Answer<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let seconds = asked.seconds()?;
    let changed = app.core.set_timeout(&caller, id, Some(seconds)).await;
    changed.map_err(about(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Never shortens.
async fn refresh(
    State(app): State<App>,
    Known(caller): Known,
    Path(id): Path<String>,
    Lenient(asked): Lenient<Refresh>,
) -> Answer<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let seconds = asked.seconds()?;
    let extended = app.core.extend(&caller, id, seconds).await;
    extended.map_err(about(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes it run if it does not; never shortens its life.
async fn connect(
    State(app): State<App>,
    Known(caller): Known,
    domain: Domain,
    Path(id): Path<String>,
    Lenient(asked): Lenient<Connect>,
) -> Made {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let connected = app.core.connect(&caller, id, asked.meant()?).await;
    let (sandbox, before) = connected.map_err(about(id))?;
    let status = match before {
        Before::Ran => StatusCode::OK,
        Before::Slept => StatusCode::CREATED,
    };
    Ok((status, Json(Sandbox::new(&app, domain, &sandbox))))
}

/// As older clients connect.
async fn resume(
    State(app): State<App>,
    Known(caller): Known,
    domain: Domain,
    Path(id): Path<String>,
    Lenient(asked): Lenient<Resume>,
) -> Made {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let resumed = app.core.connect(&caller, id, asked.meant()?).await;
    let (sandbox, _) = resumed.map_err(about(id))?;
    let sandbox = Sandbox::new(&app, domain, &sandbox);
    Ok((StatusCode::CREATED, Json(sandbox)))
}

/// With its memory it is paused; without, it is stopped.
async fn pause(
    State(app): State<App>,
    Known(caller): Known,
    Path(id): Path<String>,
    Lenient(asked): Lenient<Pause>,
) -> Answer<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let slept = app.core.put_to_sleep(&caller, id, asked.meant()).await;
    match slept.map_err(about(id))? {
        Before::Ran => Ok(StatusCode::NO_CONTENT),
        Before::Slept => {
            let message = format!("Error pausing sandbox - sandbox '{id}' is already paused");
            Err(Refusal::new(StatusCode::CONFLICT, message))
        }
    }
}

/// Replaces everything: what is not named is cleared.
async fn network(
    State(app): State<App>,
    Known(caller): Known,
    Path(id): Path<String>,
    Lenient(asked): Lenient<requests::Network>,
) -> Answer<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let (network, policy) = asked.parse_change()?;
    let changed = app.core.set_network(&caller, id, Some(network), policy);
    changed.await.map_err(about(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// What is asked for and cannot be had is refused, not ignored.
fn refuse_if_given(value: Option<&Value>, what: &str) -> Answer<()> {
    let empty = match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Array(all)) => all.is_empty(),
        Some(Value::Object(all)) => all.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if empty {
        return Ok(());
    }
    let message = format!("Atoll does not support {what} yet: leave it out");
    Err(Refusal::new(StatusCode::BAD_REQUEST, message))
}
