//! Error responses. Every failure of the API has the same JSON form.

use std::borrow::Cow;
use std::collections::BTreeMap;

use atoll_model::{Category, Code, Error, RequestId};
use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::remedy;

/// Error that a handler returns.
#[derive(Debug)]
pub(crate) struct ApiError(pub(crate) Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

/// Result of a handler.
pub(crate) type ApiResult<T = Response> = Result<T, ApiError>;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let remedy = remedy::for_http(&self.0).map(Cow::into_owned);
        let Error {
            code,
            message,
            remedy: own,
            details,
        } = self.0;
        let body = ErrorBody {
            error: message,
            code,
            category: code.category(),
            remedy: remedy.or(own),
            details,
            retry_after: code.retry_after(),
            request_id: None,
        };
        let status =
            StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&body)).into_response();
        if let Some(seconds) = body.retry_after {
            let value = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        if status == StatusCode::UNAUTHORIZED {
            add_challenge(response.headers_mut(), code);
        }
        // The request log middleware adds the request id.
        response.extensions_mut().insert(body);
        response
    }
}

/// Adds the `WWW-Authenticate` header, which a 401 requires. Browsers show no dialog for this
/// scheme.
pub(crate) fn add_challenge(headers: &mut HeaderMap, code: Code) {
    let challenge = match code {
        Code::MissingApiKey => "Bearer realm=\"atoll\"",
        _ => "Bearer realm=\"atoll\", error=\"invalid_token\"",
    };
    let challenge = HeaderValue::from_static(challenge);
    headers.insert(header::WWW_AUTHENTICATE, challenge);
}

/// JSON body of an error response.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Failure)]
pub(crate) struct ErrorBody {
    /// Message for people.
    error: String,
    code: Code,
    category: Category,
    /// How to resolve the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Values for programs, such as the `field` of a request or the `state` of a sandbox.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    details: BTreeMap<String, String>,
    /// Seconds until a retry may succeed; only for temporary errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u32>,
    /// The same as in the header `X-Request-ID` and in the server's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<RequestId>,
}

impl ErrorBody {
    /// Name of the error code.
    pub(crate) fn code(&self) -> &'static str {
        self.code.name()
    }

    /// Close code for WebSockets.
    pub(crate) fn close_code(&self) -> u16 {
        self.code.close_code()
    }

    /// Message for people.
    pub(crate) fn message(&self) -> &str {
        &self.error
    }
}

/// Adds the request id to an error body and to the response headers.
pub(crate) fn add_request_id(mut response: Response, request: &RequestId) -> Response {
    if let Some(mut body) = response.extensions_mut().remove::<ErrorBody>() {
        body.request_id = Some(request.clone());
        let (mut parts, _) = response.into_parts();
        parts.headers.remove(header::CONTENT_LENGTH);
        let text = Json(body).into_response().into_body();
        response = Response::from_parts(parts, text);
    }
    if let Ok(value) = HeaderValue::from_str(request.as_str()) {
        response.headers_mut().insert("x-request-id", value);
    }
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}
