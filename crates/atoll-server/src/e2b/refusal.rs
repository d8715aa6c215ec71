//! How E2B's clients are told that something went wrong: `code`, a number, and `message`. They decide by the
//! number in the body, not by the status.

use atoll_model::{Category, Code, Error};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refusal on its way out.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    message: String,
    retry_after: Option<u32>,
}

/// What a route for E2B's clients returns.
pub(super) type Answer<T = Response> = Result<T, Refusal>;

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after: None,
        }
    }

    /// Something that E2B has and this server does not, yet.
    pub(super) fn not_yet(what: &str) -> Self {
        let message =
            format!("Atoll does not support {what} yet: see docs/e2b.md for what it does");
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
        let status = match (error.code, error.code.category()) {
            // Their clients know one word for a key that is no good.
            (_, Category::Auth) if error.code != Code::PermissionDenied => StatusCode::UNAUTHORIZED,
            _ => StatusCode::from_u16(error.code.status()).unwrap_or_default(),
        };
        Self {
            status,
            message: sentence(&error),
            retry_after: (status == StatusCode::TOO_MANY_REQUESTS).then_some(1),
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
        response
    }
}
