//! E2B's control API: sandboxes, authenticated by API key.

mod list;
mod logs;
mod metrics;
mod requests;
mod responses;

use atoll_core::{NewSandbox, PriorState, RequestContext, SandboxView};
use atoll_model::{Code, Error, SandboxState};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use serde_json::Value;

use super::error::{E2bAuth, E2bError, E2bResult};
use crate::AppState;
use crate::e2b::lenient::LenientJson;
use requests::{Connect, CreateSandbox, Pause, Refresh, Resume, Timeout};
use responses::{Domain, Sandbox, SandboxDetail};

/// All routes, mounted at `/e2b`.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/sandboxes", post(create).get(list::running))
        .route("/v2/sandboxes", post(create_v2).get(list::all))
        .route("/sandboxes/{id}", get(read).delete(kill))
        .route("/sandboxes/{id}/timeout", post(timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/network", put(network))
        .route("/sandboxes/metrics", get(metrics::latest))
        .route("/sandboxes/{id}/metrics", get(metrics::metrics))
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
        .fallback(route_not_found)
        .method_not_allowed_fallback(method_not_allowed)
}

async fn route_not_found() -> E2bError {
    E2bError::new(StatusCode::NOT_FOUND, "there is no such route")
}

async fn method_not_allowed() -> E2bError {
    let message = "method not allowed";
    E2bError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn forks(_: E2bAuth) -> E2bError {
    E2bError::unsupported("forks")
}

async fn snapshots(_: E2bAuth) -> E2bError {
    E2bError::unsupported("snapshots")
}

async fn builds(_: E2bAuth) -> E2bError {
    E2bError::unsupported(
        "template builds (make templates with `atoll template`, or POST /templates)",
    )
}

async fn volumes(_: E2bAuth) -> E2bError {
    E2bError::unsupported("volumes")
}

async fn secrets(_: E2bAuth) -> E2bError {
    E2bError::unsupported("secrets")
}

/// The sandbox id; older clients append a client id after a hyphen.
fn id_of(path: &str) -> &str {
    path.split('-').next().unwrap_or(path)
}

/// 404 with E2B's message.
fn not_found(id: &str) -> E2bError {
    let message = format!("Sandbox \"{id}\" doesn't exist or you don't have access to it");
    E2bError::new(StatusCode::NOT_FOUND, message)
}

/// Converts errors about one sandbox.
fn for_sandbox(id: &str) -> impl Fn(Error) -> E2bError {
    move |error| match error.code {
        Code::SandboxNotFound => not_found(id),
        _ => error.into(),
    }
}

/// Finds a sandbox of the caller. Failed ones are hidden from E2B clients.
async fn find(app: &AppState, caller: &RequestContext, id: &str) -> E2bResult<SandboxView> {
    let found = app
        .core
        .sandbox(caller, id)
        .await
        .map_err(for_sandbox(id))?;
    match found.row.state {
        SandboxState::Failed => Err(not_found(id)),
        _ => Ok(found),
    }
}

/// Default template of E2B's code interpreter SDK.
const INTERPRETER: &str = "code-interpreter-v1";

type Created = E2bResult<(StatusCode, Json<Sandbox>)>;

/// Version 1: the default timeout is 15 seconds.
async fn create(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    domain: Domain,
    headers: HeaderMap,
    LenientJson(request): LenientJson<CreateSandbox>,
) -> Created {
    let new = request.sandbox(&headers, 15)?;
    create_sandbox(&app, &caller, domain, new, request.template()).await
}

async fn create_v2(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    domain: Domain,
    headers: HeaderMap,
    LenientJson(request): LenientJson<CreateSandbox>,
) -> Created {
    let new = request.sandbox(&headers, 300)?;
    create_sandbox(&app, &caller, domain, new, request.template()).await
}

async fn create_sandbox(
    app: &AppState,
    caller: &RequestContext,
    domain: Domain,
    new: NewSandbox,
    template: &str,
) -> Created {
    let created = app
        .core
        .create(caller, new)
        .await
        .map_err(|error| match error.code {
            Code::UnknownTemplate if template == INTERPRETER => {
                E2bError::unsupported("the code interpreter, whose template this is,")
            }
            Code::UnknownTemplate => {
                let message = format!("template '{template}' not found");
                E2bError::new(StatusCode::NOT_FOUND, message)
            }
            Code::IdempotencyMismatch => {
                E2bError::new(StatusCode::UNPROCESSABLE_ENTITY, error.message)
            }
            _ => error.into(),
        })?;
    Ok((
        StatusCode::CREATED,
        Json(Sandbox::new(app, domain, &created)),
    ))
}

async fn read(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    domain: Domain,
    Path(id): Path<String>,
) -> E2bResult<Json<SandboxDetail>> {
    let found = find(&app, &caller, id_of(&id)).await?;
    Ok(Json(SandboxDetail::new(&app, domain, &found)))
}

async fn kill(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
) -> E2bResult<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    app.core
        .delete(&caller, id)
        .await
        .map_err(for_sandbox(id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn timeout(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientJson(request): LenientJson<Timeout>,
) -> E2bResult<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let seconds = request.seconds()?;
    let changed = app.core.set_timeout(&caller, id, Some(seconds)).await;
    changed.map_err(for_sandbox(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Extends the timeout; never shortens it.
async fn refresh(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientJson(request): LenientJson<Refresh>,
) -> E2bResult<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let seconds = request.seconds()?;
    let extended = app.core.extend(&caller, id, seconds).await;
    extended.map_err(for_sandbox(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts or resumes the sandbox; never shortens its timeout.
async fn connect(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    domain: Domain,
    Path(id): Path<String>,
    LenientJson(request): LenientJson<Connect>,
) -> Created {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let connected = app.core.connect(&caller, id, request.to_core()?).await;
    let (sandbox, before) = connected.map_err(for_sandbox(id))?;
    let status = match before {
        PriorState::Running => StatusCode::OK,
        PriorState::Suspended => StatusCode::CREATED,
    };
    Ok((status, Json(Sandbox::new(&app, domain, &sandbox))))
}

/// Older form of `connect`.
async fn resume(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    domain: Domain,
    Path(id): Path<String>,
    LenientJson(request): LenientJson<Resume>,
) -> Created {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let resumed = app.core.connect(&caller, id, request.to_core()?).await;
    let (sandbox, _) = resumed.map_err(for_sandbox(id))?;
    let sandbox = Sandbox::new(&app, domain, &sandbox);
    Ok((StatusCode::CREATED, Json(sandbox)))
}

/// Pauses with memory, or stops without.
async fn pause(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientJson(request): LenientJson<Pause>,
) -> E2bResult<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let paused = app.core.suspend(&caller, id, request.to_core()).await;
    match paused.map_err(for_sandbox(id))? {
        PriorState::Running => Ok(StatusCode::NO_CONTENT),
        PriorState::Suspended => {
            let message = format!("Error pausing sandbox - sandbox '{id}' is already paused");
            Err(E2bError::new(StatusCode::CONFLICT, message))
        }
    }
}

/// Replaces all rules; omitted ones are cleared.
async fn network(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientJson(request): LenientJson<requests::Network>,
) -> E2bResult<StatusCode> {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let (network, policy) = request.parse_change()?;
    let changed = app.core.set_network(&caller, id, Some(network), policy);
    changed.await.map_err(for_sandbox(id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Rejects an unsupported option instead of ignoring it.
fn refuse_if_given(value: Option<&Value>, what: &str) -> E2bResult<()> {
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
    Err(E2bError::new(StatusCode::BAD_REQUEST, message))
}
