//! What E2B runs inside each of its sandboxes, and this server does from outside: commands and files by the
//! sandbox's token.

mod files;
mod filesystem;
mod process;
pub(super) mod signature;
mod system;
mod target;

use atoll_core::{Door, Doorstep};
use atoll_model::Error;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};

use super::connect_rpc::Fault;
use super::router;
use super::error::Refusal;
use crate::App;
use crate::serve::Connection;

/// Every route of port 49983.
pub(super) fn routes(app: &App) -> Router {
    let closed = process::routes()
        .merge(filesystem::routes())
        .merge(system::routes())
        .layer(from_fn(with_token));
    Router::new()
        .route("/health", get(health))
        .merge(files::routes())
        .merge(closed)
        .fallback(nowhere)
        .method_not_allowed_fallback(nowhere)
        .with_state(app.clone())
}

async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Also for what their daemon does for its own machinery (`/init`, `/freeze` and others), which nobody outside may.
async fn nowhere() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no such route")
}

/// A refusal in the form of what was called: calls of services fail otherwise than routes do.
fn refused(error: Error, request: &Request) -> Response {
    let path = request.uri().path();
    if path.starts_with("/process.") || path.starts_with("/filesystem.") {
        return Fault::from(error).answer(request.headers());
    }
    Refusal::from(error).into_response()
}

/// Lets only those in who show the sandbox's token.
async fn with_token(
    Extension(step): Extension<Doorstep>,
    request: Request,
    next: Next,
) -> Response {
    if router::shows_token(&step, Door::Agent, request.headers()) {
        if let Some(connection) = request.extensions().get::<Connection>() {
            connection.authenticate();
        }
        return match step.count() {
            Ok(()) => next.run(request).await,
            Err(error) => refused(error, &request),
        };
    }
    let message =
        "unauthorized access, please provide a valid access token or method signing if supported";
    Refusal::new(StatusCode::UNAUTHORIZED, message).into_response()
}
