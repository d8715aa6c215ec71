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

use crate::App;
use crate::error::{Answer, Failure};
use crate::openapi::group;
use crate::middleware::Part;
use crate::{cors, e2b, middleware, openapi};
pub(crate) use commands::Encoding;
pub(crate) use files::is_link;

/// Routes below `/` and below `/api`.
fn api() -> OpenApiRouter<App> {
    group("sandboxes", sandboxes::routes())
        .merge(group("sandboxes", logs::routes()))
        .merge(group("commands", commands::routes()))
        .merge(group("files", files::routes()))
        .merge(group("terminals", terminals::routes()))
        .merge(group("ports", ports::routes()))
        .merge(group("events", events::routes()))
        .merge(group("keys", keys::routes()))
        .merge(group("keys", tickets::routes()))
        .merge(group("orgs", orgs::routes()))
        .merge(group("templates", templates::routes()))
}

/// Routes of the server itself, in both places too.
fn server() -> OpenApiRouter<App> {
    let server = OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(healthz))
        .routes(routes!(ready))
        .merge(openapi::routes());
    group("server", server)
}

/// Routes below `/` alone. `/api/sessions` is not this one.
fn own() -> OpenApiRouter<App> {
    group("sessions", sessions::routes())
}

/// What the routes say of themselves.
pub(crate) fn described() -> utoipa::openapi::OpenApi {
    api().merge(own()).merge(server()).into_openapi()
}

pub(crate) fn all(app: &App) -> Router {
    let (api, own) = (Router::from(api().merge(server())), Router::from(own()));
    let mut router = Router::new()
        .merge(own)
        .merge(api.clone())
        .nest("/api", api)
        .nest("/e2b", e2b::control())
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so);
    if !app.config.origins.is_empty() {
        router = router.layer(cors::cors(&app.config));
    }
    let router = router
        .layer(from_fn_with_state(app.clone(), middleware::check))
        .with_state(app.clone());
    // What is for a sandbox goes there before any of these routes is looked at.
    Router::new()
        .fallback_service(middleware::watched(router, app, Part::Api))
        .layer(from_fn_with_state(e2b::Edge::new(app), e2b::divert))
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
async fn ready(State(app): State<App>) -> (StatusCode, Json<Readiness>) {
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

async fn nowhere() -> Failure {
    Failure(Error::new(Code::NotFound, "there is no such route").remedy("GET /docs shows them"))
}

async fn not_so() -> Failure {
    Failure(Error::new(
        Code::MethodNotAllowed,
        "this route does not take that method",
    ))
}

/// A route that makes something.
pub(crate) type Made<T> = Answer<(StatusCode, Json<T>)>;

pub(crate) fn made<T>(made: impl Into<T>) -> (StatusCode, Json<T>) {
    (StatusCode::CREATED, Json(made.into()))
}
