//! The router: all routes, below `/` and below `/api`. `/sessions` exists only below `/`;
//! `/api/sessions` is not part of this API.

mod commands;
mod events;
mod files;
mod keys;
mod logs;
mod metrics;
mod orgs;
mod ports;
mod sandboxes;
mod sessions;
mod templates;
mod terminals;
mod tickets;

use atoll_model::{Code, Error, runtime};
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
        .merge(with_tag("sandboxes", metrics::routes()))
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

/// Routes about the server itself, below `/` and below `/api`.
fn server() -> OpenApiRouter<AppState> {
    let server = OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(healthz))
        .routes(routes!(ready))
        .merge(crate::openapi::routes());
    with_tag("server", server)
}

/// Routes below `/` only.
fn root_only() -> OpenApiRouter<AppState> {
    with_tag("sessions", sessions::routes())
}

/// The OpenAPI declarations of all routes.
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
    // Requests for sandboxes are routed before the routes of the API.
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
/// Returns 200 while the server runs.
#[utoipa::path(get, path = "/health", security(()), responses((status = 200, body = Health)))]
async fn health() -> Json<Health> {
    Json(Health {
        status: "ok",
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// Health (alias)
#[utoipa::path(get, path = "/healthz", security(()), responses((status = 200, body = Health)))]
async fn healthz() -> Json<Health> {
    health().await
}

#[derive(Debug, Serialize, ToSchema)]
struct Readiness {
    /// `ready` or `not_ready`.
    status: &'static str,
    /// Why the server is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    pool: PoolStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    journals: Option<JournalStatus>,
}

/// State of the asynchronous write of the command history.
#[derive(Debug, Serialize, ToSchema)]
struct JournalStatus {
    /// Sandboxes with entries that are not written yet.
    behind: usize,
    /// Failed writes; each was retried.
    failures: u64,
    /// Commands that were discarded before they were written.
    lost: u64,
}

impl From<runtime::JournalStatus> for JournalStatus {
    fn from(status: runtime::JournalStatus) -> Self {
        Self {
            behind: status.behind,
            failures: status.failures,
            lost: status.lost,
        }
    }
}

/// Sizes of the warm pool.
#[derive(Debug, Serialize, ToSchema)]
struct PoolStatus {
    /// Complete sandboxes without an owner.
    warm: usize,
    /// Unconfigured init processes.
    embryos: usize,
}

/// Readiness
///
/// Returns 200 if the server can create sandboxes and reach its database.
#[utoipa::path(get, path = "/readyz", security(()),
    responses((status = 200, body = Readiness), (status = 503, description = "Not ready", body = Readiness)))]
async fn ready(State(app): State<AppState>) -> (StatusCode, Json<Readiness>) {
    let runtime = app.core.runtime().status();
    let error = app.core.is_ready().await.err();
    let (code, status) = match error {
        None => (StatusCode::OK, "ready"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
    };
    let body = Readiness {
        status,
        error: error.map(|error| error.message),
        pool: PoolStatus {
            warm: runtime.warm,
            embryos: runtime.embryos,
        },
        journals: runtime.journal.map(JournalStatus::from),
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

/// Result of a route that creates a resource.
pub(crate) type Created<T> = ApiResult<(StatusCode, Json<T>)>;

pub(crate) fn created<T>(created: impl Into<T>) -> (StatusCode, Json<T>) {
    (StatusCode::CREATED, Json(created.into()))
}
