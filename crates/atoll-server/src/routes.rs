//! Every route. Each stands once below `/` and once below `/api`, but `/sessions`, whose other place is another's.

mod commands;
mod events;
mod files;
mod keys;
mod logs;
mod orgs;
mod ports;
mod sandboxes;
mod sessions;
mod templates;
mod terminals;
mod tickets;

use atoll_model::{Code, Error};
use atoll_worker::JournalHealth;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::{Json, Router};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::error::{ApiError, ApiResult};
use crate::middleware::Surface;
use crate::openapi::with_tag;
use crate::{cors, e2b, middleware};
pub(crate) use commands::Encoding;
pub(crate) use files::is_signed_url;

/// Routes below `/` and below `/api`.
fn api() -> OpenApiRouter<AppState> {
    with_tag("sandboxes", sandboxes::routes())
        .merge(with_tag("sandboxes", logs::routes()))
        .merge(with_tag("commands", commands::routes()))
        .merge(with_tag("files", files::routes()))
        .merge(with_tag("terminals", terminals::routes()))
        .merge(with_tag("ports", ports::routes()))
        .merge(with_tag("events", events::routes()))
        .merge(with_tag("keys", keys::routes()))
        .merge(with_tag("keys", tickets::routes()))
        .merge(with_tag("orgs", orgs::routes()))
        .merge(with_tag("templates", templates::routes()))
}

/// Routes of the server itself, in both places too.
fn server() -> OpenApiRouter<AppState> {
    let server = OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(healthz))
        .routes(routes!(ready))
        .merge(crate::openapi::routes());
    with_tag("server", server)
}

/// Routes below `/` alone. `/api/sessions` is not this one.
fn root_only() -> OpenApiRouter<AppState> {
    with_tag("sessions", sessions::routes())
}

/// What the routes say of themselves.
pub(crate) fn openapi() -> utoipa::openapi::OpenApi {
    api().merge(root_only()).merge(server()).into_openapi()
}

pub(crate) fn all(app: &AppState) -> Router {
    let (api, root_only) = (
        Router::from(api().merge(server())),
        Router::from(root_only()),
    );
    let mut router = Router::new()
        .merge(root_only)
        .merge(api.clone())
        .nest("/api", api)
        .nest("/e2b", e2b::control())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed);
    if !app.config.origins.is_empty() {
        router = router.layer(cors::cors(&app.config));
    }
    let router = router
        .layer(from_fn_with_state(app.clone(), middleware::check_request))
        .with_state(app.clone());
    // What is for a sandbox goes there before any of these routes is looked at.
    Router::new()
        .fallback_service(middleware::with_request_log(router, app, Surface::Api))
        .layer(from_fn_with_state(
            e2b::SandboxRouter::new(app),
            e2b::route_to_sandbox,
        ))
}

#[derive(Debug, Serialize, ToSchema)]
struct Health {
    status: &'static str,
    version: &'static str,
}

/// Health
///
/// The server is there.
#[utoipa::path(get, path = "/health", security(()), responses((status = 200, body = Health)))]
async fn health() -> Json<Health> {
    Json(Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// Health, by another name
#[utoipa::path(get, path = "/healthz", security(()), responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
    health().await
}

#[derive(Debug, Serialize, ToSchema)]
struct Readiness {
    /// `ready` or `not_ready`.
    status: &'static str,
    /// What is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    pool: PoolStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    journals: Option<JournalStatus>,
}

/// How much of the history of commands is not written yet.
#[derive(Debug, Serialize, ToSchema)]
struct JournalStatus {
    /// Sandboxes with something to be written.
    behind: usize,
    /// What could not be written, and was tried again.
    failures: u64,
    /// Commands that were forgotten before they could be written.
    lost: u64,
}

impl From<JournalHealth> for JournalStatus {
    fn from(health: JournalHealth) -> Self {
        Self {
            behind: health.behind,
            failures: health.failures,
            lost: health.lost,
        }
    }
}

/// Sandboxes that are prepared in advance.
#[derive(Debug, Serialize, ToSchema)]
struct PoolStatus {
    /// Whole sandboxes.
    warm: usize,
    /// Half-made ones.
    embryos: usize,
}

/// Readiness
///
/// The server can do its work.
#[utoipa::path(get, path = "/readyz", security(()),
    responses((status = 200, body = Readiness), (status = 503, description = "Not now", body = Readiness)))]
async fn ready(State(app): State<AppState>) -> (StatusCode, Json<Readiness>) {
    let (warm, embryos) = app.core.runtime().pool_sizes();
    let error = app.core.is_ready().await.err();
    let (code, status) = match error {
        None => (StatusCode::OK, "ready"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
    };
    let body = Readiness {
        status,
        error: error.map(|error| error.message),
        pool: PoolStatus { warm, embryos },
        journals: app.core.runtime().journal_health().map(JournalStatus::from),
    };
    (code, Json(body))
}

async fn not_found() -> ApiError {
    ApiError(
        Error::new(Code::NotFound, "there is no such route").remedy("GET /docs lists the routes"),
    )
}

async fn method_not_allowed() -> ApiError {
    ApiError(Error::new(
        Code::MethodNotAllowed,
        "the route does not support this method",
    ))
}

/// A route that makes something.
pub(crate) type Created<T> = ApiResult<(StatusCode, Json<T>)>;

pub(crate) fn created<T>(created: impl Into<T>) -> (StatusCode, Json<T>) {
    (StatusCode::CREATED, Json(created.into()))
}
