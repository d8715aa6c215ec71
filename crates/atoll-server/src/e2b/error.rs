//! How E2B's clients are told that something went wrong: `code`, a number, and `message`. They decide by the
//! number in the body, not by the status.

use atoll_core::Context;
use atoll_model::{Category, Code, Error};
use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::App;
use crate::error::{Failure, add_challenge};
use crate::middleware::Caller;

/// A refusal on its way out.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    retry_after: Option<u32>,
    /// The sandbox it is about does not run any more.
    over: bool,
}

/// On an answer: the sandbox does not run any more. Who asks something in a sandbox is told that in one way only.
#[derive(Debug, Clone, Copy)]
pub(super) struct Over;

/// On an answer whose status does not say so: the call failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failed;

/// Whether a failure says that the sandbox does not run, or not any more.
pub(super) fn is_over(code: Code) -> bool {
    matches!(
        code,
        Code::SandboxNotFound | Code::SandboxPaused | Code::SandboxStopped | Code::SandboxFailed
    )
}

/// What a route for E2B's clients returns.
pub(super) type Answer<T = Response> = Result<T, Refusal>;

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after: None,
            over: false,
        }
    }

    /// Something that E2B has and this server does not, yet.
    pub(super) fn not_yet(what: &str) -> Self {
        let message =
            format!("Atoll does not support {what} yet: see docs/guides/e2b.md for what it does");
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }
}

/// The same refusal with the words that say what to do.
fn sentence(error: &Error) -> String {
    match &error.remedy {
        Some(remedy) => format!("{}: {remedy}", error.message),
        None => error.message.clone(),
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = StatusCode::from_u16(error.code.status()).unwrap_or_default();
        Self {
            status,
            message: sentence(&error),
            retry_after: (status == StatusCode::TOO_MANY_REQUESTS).then_some(1),
            over: is_over(error.code),
        }
    }
}

impl IntoResponse for Refusal {
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
        if self.over {
            response.extensions_mut().insert(Over);
        }
        response
    }
}

/// Whoever brings a key. Their clients know one number for a key that is no good.
#[derive(Debug)]
pub(super) struct Known(pub(super) Context);

impl FromRequestParts<App> for Known {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        match Caller::from_request_parts(parts, app).await {
            Ok(Caller(context)) => Ok(Self(context)),
            Err(Failure(error)) if error.code.category() == Category::Auth => {
                Err(Refusal::new(StatusCode::UNAUTHORIZED, sentence(&error)))
            }
            Err(Failure(error)) => Err(error.into()),
        }
    }
}
