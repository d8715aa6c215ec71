//! E2B's daemon (envd), emulated by the server: commands and files of a sandbox, authenticated by
//! its access token.

mod files;
mod filesystem;
mod process;
pub(super) mod signature;
mod system;
mod target;

use atoll_core::{SandboxRef, TokenScope};
use atoll_model::Error;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};

use super::connect_rpc::ConnectError;
use super::error::E2bError;
use super::router;
use crate::AppState;
use crate::serve::Connection;

/// All routes of port 49983.
pub(super) fn routes(app: &AppState) -> Router {
    let closed = process::routes()
        .merge(filesystem::routes())
        .merge(system::routes())
        .layer(from_fn(require_token));
    Router::new()
        .route("/health", get(health))
        .merge(files::routes())
        .merge(closed)
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(app.clone())
}

async fn health() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Also for envd's internal routes, such as `/init` and `/freeze`.
async fn not_found() -> E2bError {
    E2bError::new(StatusCode::NOT_FOUND, "there is no such route")
}

/// Error response in the form of the route: services use Connect RPC errors.
fn error_response(error: Error, request: &Request) -> Response {
    let path = request.uri().path();
    if path.starts_with("/process.") || path.starts_with("/filesystem.") {
        return ConnectError::from(error).for_request(request.headers());
    }
    E2bError::from(error).into_response()
}

/// Middleware that requires the sandbox's access token.
async fn require_token(
    Extension(sandbox): Extension<SandboxRef>,
    request: Request,
    next: Next,
) -> Response {
    if router::presents_token(&sandbox, TokenScope::Data, request.headers()) {
        if let Some(connection) = request.extensions().get::<Connection>() {
            connection.authenticate();
        }
        return match sandbox.check_rate() {
            Ok(()) => next.run(request).await,
            Err(error) => error_response(error, &request),
        };
    }
    let message =
        "unauthorized access, please provide a valid access token or method signing if supported";
    E2bError::new(StatusCode::UNAUTHORIZED, message).into_response()
}
