//! How E2B's clients are told that something went wrong: `code`, a number, and `message`. They decide by the
//! number in the body, not by the status.

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

/// A refusal on its way out.
#[derive(Debug)]
pub(super) struct E2bError {
    status: StatusCode,
    message: String,
    retry_after: Option<u32>,
    /// The sandbox it is about does not run any more.
    sandbox_ended: bool,
}

/// On an answer: the sandbox does not run any more. Who asks something in a sandbox is told that in one way only.
#[derive(Debug, Clone, Copy)]
pub(super) struct SandboxEnded;

/// On an answer whose status does not say so: the call failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallFailed;

/// Whether a failure says that the sandbox does not run, or not any more.
pub(super) fn is_sandbox_ended(code: Code) -> bool {
    matches!(
        code,
        Code::SandboxNotFound | Code::SandboxPaused | Code::SandboxStopped | Code::SandboxFailed
    )
}

/// What a route for E2B's clients returns.
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

    /// Something that E2B has and this server does not, yet.
    pub(super) fn unsupported(what: &str) -> Self {
        let message =
            format!("Atoll does not support {what} yet: see docs/guides/e2b.md for what it does");
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }
}

/// The same refusal with the words that say what to do.
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

/// Whoever brings a key. Their clients know one number for a key that is no good.
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
