//! What a caller is told: one form for every failure.

use atoll_model::{Code, Error, RequestId};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

/// A failure on its way out.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

/// What a route returns.
pub(crate) type Answer<T = Response> = Result<T, Failure>;

/// When to try again, in seconds, for what passes by itself.
fn retry_after(code: Code) -> Option<u32> {
    match code {
        Code::NoCapacity => Some(5),
        Code::QuotaExceeded | Code::RateLimited => Some(1),
        _ => None,
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Error {
            code,
            message,
            remedy,
            details,
        } = self.0;
        let mut body = Map::new();
        body.insert("error".into(), message.into());
        body.insert("code".into(), code.name().into());
        let category = serde_json::to_value(code.category()).unwrap_or(Value::Null);
        body.insert("category".into(), category);
        if let Some(remedy) = remedy {
            body.insert("remedy".into(), remedy.into());
        }
        if !details.is_empty() {
            let details = details
                .into_iter()
                .map(|(name, value)| (name, value.into()));
            body.insert("details".into(), Value::Object(details.collect()));
        }
        let wait = retry_after(code);
        if let Some(seconds) = wait {
            body.insert("retry_after".into(), seconds.into());
        }
        let status =
            StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(Value::Object(body.clone()))).into_response();
        if let Some(seconds) = wait {
            let value = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        // The guard adds the request's id.
        response.extensions_mut().insert(FailureBody(body));
        response
    }
}

/// A failure's body, until the request's id is known.
#[derive(Debug, Clone)]
pub(crate) struct FailureBody(Map<String, Value>);

impl FailureBody {
    /// What went wrong, by its name.
    pub(crate) fn code(&self) -> &str {
        self.text("code")
    }

    /// What its caller is told.
    pub(crate) fn message(&self) -> &str {
        self.text("error")
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Puts the request's id into a failure's body and into the headers of every answer.
pub(crate) fn sign(mut response: Response, request: &RequestId) -> Response {
    if let Some(FailureBody(mut body)) = response.extensions_mut().remove() {
        body.insert("request_id".into(), request.as_str().into());
        let (mut parts, _) = response.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        let text = Value::Object(body).to_string();
        response = Response::from_parts(parts, text.into());
    }
    if let Ok(value) = HeaderValue::from_str(request.as_str()) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}
