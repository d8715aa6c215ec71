//! Every route. Each stands once below `/` and once below `/api`.

mod commands;
mod events;
mod files;
mod keys;
mod orgs;
mod sandboxes;
mod terminals;
mod tickets;

use atoll_model::{Code, Error};
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::App;
use crate::answer::{Answer, Failure};
use crate::{e2b, guard};
pub(crate) use commands::Encoding;

pub(crate) fn all(app: &App) -> Router {
    let api = sandboxes::routes()
        .merge(commands::routes())
        .merge(events::routes())
        .merge(files::routes())
        .merge(terminals::routes())
        .merge(keys::routes())
        .merge(tickets::routes())
        .merge(orgs::routes());
    // `/api/sessions` is not this one.
    let history = Router::new().route("/sessions", get(sandboxes::sessions));
    let health = Router::new()
        .route("/health", get(health))
        .route("/healthz", get(health))
        .route("/readyz", get(ready));
    Router::new()
        .merge(health)
        .merge(history)
        .merge(api.clone())
        .nest("/api", api)
        .nest("/e2b", e2b::control())
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(from_fn_with_state(app.clone(), guard::watch))
        .layer(from_fn_with_state(e2b::Edge::new(app), e2b::divert))
        .with_state(app.clone())
}

/// The server is there.
async fn health() -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// The server can do its work.
async fn ready(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let (warm, embryos) = app.core.runtime().ready();
    let pool = json!({ "warm": warm, "embryos": embryos });
    match app.core.is_ready().await {
        Ok(()) => (
            StatusCode::OK,
            Json(json!({ "status": "ready", "pool": pool })),
        ),
        Err(error) => {
            let body = json!({ "status": "not_ready", "error": error.message, "pool": pool });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body))
        }
    }
}

async fn nowhere() -> Failure {
    Failure(Error::new(Code::NotFound, "there is no such route").remedy("docs/api.md lists them"))
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
