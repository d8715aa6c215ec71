//! The Connect protocol, as far as E2B's clients speak it: JSON, no compression.
//!
//! One call and one answer are plain JSON; a failure has the status of its code. A stream is made of envelopes: a byte
//! of flags, a length of four bytes, JSON. Its last envelope is flagged and says how it ended: a stream that fails does so
//! there, under status 200.

use std::convert::Infallible;

use atoll_model::{Category, Code, Error};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde::Serialize;
use serde_json::{Value, json};

/// The flag of the last envelope.
const LAST: u8 = 2;
/// The largest message that is taken.
pub(super) const MOST: usize = 4 << 20;
const STREAM: &str = "application/connect+json";

/// Why a call failed.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    code: &'static str,
    message: String,
}

impl Fault {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn status(&self) -> StatusCode {
        match self.code {
            "invalid_argument" | "failed_precondition" | "out_of_range" => StatusCode::BAD_REQUEST,
            "unauthenticated" => StatusCode::UNAUTHORIZED,
            "permission_denied" => StatusCode::FORBIDDEN,
            "not_found" => StatusCode::NOT_FOUND,
            "already_exists" | "aborted" => StatusCode::CONFLICT,
            "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
            "unimplemented" => StatusCode::NOT_IMPLEMENTED,
            "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "deadline_exceeded" => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn body(&self) -> Value {
        json!({ "code": self.code, "message": self.message })
    }

    /// The last envelope of a stream that ended so.
    pub(super) fn envelope(&self) -> Bytes {
        envelope(LAST, &json!({ "error": self.body(), "metadata": {} }))
    }

    /// A whole stream that never began.
    pub(super) fn stream(&self) -> Response {
        ([(header::CONTENT_TYPE, STREAM)], self.envelope()).into_response()
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let code = match error.code {
            Code::FileExists => "already_exists",
            Code::UnknownUser => "unauthenticated",
            Code::DiskFull | Code::QuotaExceeded => "resource_exhausted",
            Code::StdinClosed => "internal",
            code => match code.category() {
                Category::Validation => "invalid_argument",
                Category::Auth => "unauthenticated",
                Category::NotFound => "not_found",
                Category::Conflict => "failed_precondition",
                Category::Quota => "resource_exhausted",
                Category::Unavailable => "unavailable",
                Category::Internal => "internal",
            },
        };
        Self::new(code, error.message)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        (self.status(), Json(self.body())).into_response()
    }
}

fn envelope(flags: u8, message: &impl Serialize) -> Bytes {
    let mut bytes = vec![flags, 0, 0, 0, 0];
    let _ = serde_json::to_writer(&mut bytes, message);
    let length = u32::try_from(bytes.len() - 5).unwrap_or(u32::MAX);
    if let Some(place) = bytes.get_mut(1..5) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    bytes.into()
}

/// One message of a stream.
pub(super) fn message(message: &impl Serialize) -> Bytes {
    envelope(0, message)
}

/// The last envelope of a stream that went well.
pub(super) fn done() -> Bytes {
    envelope(LAST, &json!({}))
}

/// A stream of envelopes; its maker sends the last one.
pub(super) fn stream(envelopes: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let envelopes = futures_util::StreamExt::map(envelopes, Ok::<_, Infallible>);
    let body = Body::from_stream(envelopes);
    ([(header::CONTENT_TYPE, STREAM)], body).into_response()
}

/// Takes the first whole message off what has come, if there is one.
pub(super) fn take(buffer: &mut bytes::BytesMut) -> Result<Option<Bytes>, Fault> {
    let Some((head, _)) = buffer.split_first_chunk::<5>() else {
        return Ok(None);
    };
    let [flags, length @ ..] = *head;
    let length = u32::from_be_bytes(length) as usize;
    if length > MOST {
        return Err(Fault::new("resource_exhausted", "the message is too large"));
    }
    if flags & 1 != 0 {
        return Err(Fault::new(
            "unimplemented",
            "compressed messages are not taken",
        ));
    }
    if buffer.len() < 5 + length {
        return Ok(None);
    }
    let mut taken = buffer.split_to(5 + length);
    let _ = taken.split_to(5);
    Ok(Some(taken.freeze()))
}

/// A message, read leniently: fields that are not known are somebody's later version.
pub(super) fn read<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| Fault::new("invalid_argument", error.to_string()))
}
