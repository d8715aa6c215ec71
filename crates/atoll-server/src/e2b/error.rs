//! Errors of the E2B interface: JSON with the number `code` and `message`. The E2B SDKs evaluate
//! the number in the body, not the status.

use atoll_core::RequestContext;
use atoll_model::{Category, Code, Error};
use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::AppState;
use crate::auth::Authenticated;
use crate::error::{ApiError, add_challenge};

/// Error response of an E2B route.
#[derive(Debug)]
pub(super) struct E2bError {
    status: StatusCode,
    message: String,
    retry_after: Option<u32>,
    /// The sandbox no longer runs.
    sandbox_ended: bool,
}

/// Marks a response: the sandbox no longer runs. The router replaces it by one uniform response.
#[derive(Debug, Clone, Copy)]
pub(super) struct SandboxEnded;

/// Marks a response of a failed call with a successful status.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallFailed;

/// Whether an error means that the sandbox does not run.
pub(super) fn is_sandbox_ended(code: Code) -> bool {
    matches!(
        code,
        Code::SandboxNotFound | Code::SandboxPaused | Code::SandboxStopped | Code::SandboxFailed
    )
}

/// Result of an E2B handler.
pub(super) type E2bResult<T = Response> = Result<T, E2bError>;

impl E2bError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after: None,
            sandbox_ended: false,
        }
    }

    /// A feature of E2B that this server does not support.
    pub(super) fn unsupported(what: &str) -> Self {
        let message =
            format!("Atoll does not support {what} yet: see docs/guides/e2b.md for what it does");
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }
}

/// Message with the remedy.
fn full_message(error: &Error) -> String {
    match &error.remedy {
        Some(remedy) => format!("{}: {remedy}", error.message),
        None => error.message.clone(),
    }
}

impl From<Error> for E2bError {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.code.status()).unwrap_or_default();
        Self {
            status,
            message: full_message(&error),
            retry_after: error.code.retry_after(),
            sandbox_ended: is_sandbox_ended(error.code),
        }
    }
}

impl IntoResponse for E2bError {
    fn into_response(self) -> Response {
        let body = json!({ "code": self.status.as_u16(), "message": self.message });
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            let value = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            add_challenge(response.headers_mut(), Code::InvalidApiKey);
        }
        if self.sandbox_ended {
            response.extensions_mut().insert(SandboxEnded);
        }
        response
    }
}

/// Extractor for the caller. Every authentication error becomes 401, which the SDKs expect.
#[derive(Debug)]
pub(super) struct E2bAuth(pub(super) RequestContext);

impl FromRequestParts<AppState> for E2bAuth {
    type Rejection = E2bError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, E2bError> {
        match Authenticated::from_request_parts(parts, app).await {
            Ok(Authenticated(context)) => Ok(Self(context)),
            Err(ApiError(error)) if error.code.category() == Category::Auth => Err(E2bError::new(
                StatusCode::UNAUTHORIZED,
                full_message(&error),
            )),
            Err(ApiError(error)) => Err(error.into()),
        }
    }
}
