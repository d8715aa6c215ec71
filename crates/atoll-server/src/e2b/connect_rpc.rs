//! The Connect RPC protocol, as far as the E2B SDKs use it: JSON without compression.
//!
//! A unary call has a plain JSON request and response; an error has the status of its code. A
//! stream consists of envelopes: one byte of flags, four bytes of length, JSON. The last envelope
//! is flagged and contains the result: a stream that fails reports the error there, with status
//! 200.

use atoll_core::SandboxAccess;
use atoll_model::{Category, Code, Error};
use axum::Json;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures_util::{Stream, StreamExt as _};
use http_body_util::LengthLimitError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::{CallFailed, SandboxEnded, is_sandbox_ended};
use super::lenient::WithUnknownFields;
use crate::malformed;
use crate::serve::Connection;

/// Flag of the last envelope.
const END_OF_STREAM_FLAG: u8 = 2;
/// Largest message that is accepted.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
const STREAM_CONTENT_TYPE: &str = "application/connect+json";

/// Error of a call.
#[derive(Debug, Clone)]
pub(super) struct ConnectError {
    code: &'static str,
    message: String,
    /// The sandbox no longer runs.
    sandbox_ended: bool,
}

impl ConnectError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            sandbox_ended: false,
        }
    }

    /// The sandbox no longer runs, with the message that the SDKs recognize.
    pub(super) fn sandbox_ended() -> Self {
        Self {
            sandbox_ended: true,
            ..Self::new("unavailable", "The sandbox was not found")
        }
    }

    fn status(&self) -> StatusCode {
        match self.code {
            "invalid_argument" | "failed_precondition" | "out_of_range" | "canceled" => {
                StatusCode::BAD_REQUEST
            }
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

    /// Last envelope of a stream that failed.
    pub(super) fn envelope(&self) -> Bytes {
        envelope(
            END_OF_STREAM_FLAG,
            &json!({ "error": self.body(), "metadata": {} }),
        )
    }

    /// Response for a stream that fails before its first message.
    pub(super) fn stream(&self) -> Response {
        let response = (
            [(header::CONTENT_TYPE, STREAM_CONTENT_TYPE)],
            self.envelope(),
        )
            .into_response();
        self.with_markers(response)
    }

    /// Error response in the form of the request, unary or stream.
    pub(super) fn for_request(self, headers: &HeaderMap) -> Response {
        let kind = headers.get(header::CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/connect+"));
        if streams {
            return self.stream();
        }
        self.into_response()
    }

    fn with_markers(&self, mut response: Response) -> Response {
        response.extensions_mut().insert(CallFailed);
        if self.sandbox_ended {
            response.extensions_mut().insert(SandboxEnded);
        }
        response
    }
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        let code = match error.code {
            code if is_sandbox_ended(code) => return Self::sandbox_ended(),
            Code::FileExists => "already_exists",
            Code::UnknownUser => "unauthenticated",
            // The SDKs report `resource_exhausted` as a rate limit.
            Code::StdinClosed | Code::DiskFull => "internal",
            Code::TooLarge => "invalid_argument",
            code => match code.category() {
                Category::Validation => "invalid_argument",
                Category::Auth => "unauthenticated",
                Category::NotFound => "not_found",
                Category::Conflict => "failed_precondition",
                Category::Quota | Category::RateLimit => "resource_exhausted",
                _ if code == Code::NoCapacity => "resource_exhausted",
                Category::ProviderUnavailable | Category::ProviderTimeout => "unavailable",
                Category::Internal => "internal",
            },
        };
        Self::new(code, error.message)
    }
}

impl IntoResponse for ConnectError {
    fn into_response(self) -> Response {
        let response = (self.status(), Json(self.body())).into_response();
        self.with_markers(response)
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

/// Envelope with a message.
pub(super) fn message(message: &impl Serialize) -> Bytes {
    envelope(0, message)
}

/// Last envelope of a successful stream.
pub(super) fn end_of_stream() -> Bytes {
    envelope(END_OF_STREAM_FLAG, &json!({}))
}

/// The next envelope of a stream.
pub(super) type Envelope = Result<Bytes, SandboxGone>;

/// Aborts a stream whose sandbox is gone. The E2B SDKs then request `/health`; on 502 they report
/// that the sandbox was killed or has expired. After a last envelope they would report a timeout.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox is gone")]
pub(super) struct SandboxGone;

/// End of a stream whose sandbox has ended. If the sandbox is gone, the connection is reset.
/// Otherwise returns the last envelope, because `/health` responds with 204 for a sandbox that a
/// request can resume.
pub(super) async fn end_with(sandbox: &SandboxAccess, connection: &Connection) -> Envelope {
    if sandbox.is_gone().await {
        connection.reset_at_close();
        // Lets hyper send buffered data first.
        tokio::task::yield_now().await;
        return Err(SandboxGone);
    }
    Ok(ConnectError::sandbox_ended().envelope())
}

/// Stream response; the stream must include the last envelope.
pub(super) fn stream(envelopes: impl Stream<Item = Envelope> + Send + 'static) -> Response {
    let body = Body::from_stream(envelopes);
    ([(header::CONTENT_TYPE, STREAM_CONTENT_TYPE)], body).into_response()
}

/// Deserializes a message. Unknown fields are logged: newer clients may send them.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ConnectError> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    let read: WithUnknownFields<T> = malformed::read_json(bytes)?;
    Ok(read.log_unknown())
}

/// Message of a unary call.
#[derive(Debug)]
pub(super) struct Unary<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Unary<T> {
    type Rejection = ConnectError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ConnectError> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_MESSAGE_BYTES).await;
        let bytes = bytes.map_err(|error| {
            let cause = error.into_inner();
            if cause.is::<LengthLimitError>() {
                return too_large();
            }
            ConnectError::new("canceled", cause.to_string())
        })?;
        read(&bytes).map(Self)
    }
}

fn too_large() -> ConnectError {
    let message = format!("a message has at most {} MiB", MAX_MESSAGE_BYTES >> 20);
    ConnectError::new("invalid_argument", message)
}

/// Messages of a streaming request.
pub(super) struct RequestStream {
    body: BodyDataStream,
    buffer: BytesMut,
}

impl RequestStream {
    pub(super) fn new(body: Body) -> Self {
        Self {
            body: body.into_data_stream(),
            buffer: BytesMut::new(),
        }
    }

    /// The first message, which must exist.
    pub(super) async fn only<T: DeserializeOwned>(mut self) -> Result<T, ConnectError> {
        let first = self.next().await?;
        first.ok_or_else(|| ConnectError::new("invalid_argument", "the call has no message"))
    }

    /// The next message; `None` at the end.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ConnectError> {
        loop {
            if let Some((flags, message)) = self.take_envelope()? {
                return match flags {
                    END_OF_STREAM_FLAG => Ok(None),
                    _ => read(&message).map(Some),
                };
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(error)) => return Err(ConnectError::new("canceled", error.to_string())),
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    return Err(ConnectError::new(
                        "invalid_argument",
                        "the request is incomplete",
                    ));
                }
            }
        }
    }

    /// Splits the first complete envelope off the buffer.
    fn take_envelope(&mut self) -> Result<Option<(u8, Bytes)>, ConnectError> {
        let Some(([flags, length @ ..], _)) = self.buffer.split_first_chunk::<5>() else {
            return Ok(None);
        };
        let (flags, length) = (*flags, u32::from_be_bytes(*length) as usize);
        if length > MAX_MESSAGE_BYTES {
            return Err(too_large());
        }
        if flags & 1 != 0 {
            let message = "compressed messages are not supported";
            return Err(ConnectError::new("unimplemented", message));
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        let message = self.buffer.split_to(5 + length).freeze().slice(5..);
        Ok(Some((flags, message)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_map_to_connect_codes() {
        for (code, expected) in [
            (Code::InvalidRequest, "invalid_argument"),
            (Code::CwdNotFound, "invalid_argument"),
            (Code::UnknownUser, "unauthenticated"),
            (Code::FileNotFound, "not_found"),
            (Code::ExecNotFound, "not_found"),
            (Code::FileExists, "already_exists"),
            (Code::StdinClosed, "internal"),
            // Only a rate limit is `resource_exhausted`.
            (Code::RateLimited, "resource_exhausted"),
            (Code::DiskFull, "internal"),
            (Code::TooLarge, "invalid_argument"),
            // The sandbox no longer runs.
            (Code::SandboxNotFound, "unavailable"),
            (Code::SandboxPaused, "unavailable"),
            (Code::SandboxStopped, "unavailable"),
            (Code::SandboxFailed, "unavailable"),
        ] {
            let error = ConnectError::from(Error::new(code, "why"));
            assert_eq!(error.code, expected, "{code:?}");
            assert_eq!(error.sandbox_ended, expected == "unavailable", "{code:?}");
        }
    }

    #[tokio::test]
    async fn too_large_message_is_invalid_argument() {
        let body = || Body::from(vec![b' '; MAX_MESSAGE_BYTES + 1]);
        let request = Request::new(body());
        let unary = Unary::<Value>::from_request(request, &()).await;
        assert_eq!(
            unary.map_err(|error| error.code).err(),
            Some("invalid_argument")
        );
        let mut envelope = vec![0];
        envelope.extend(u32::MAX.to_be_bytes());
        let streamed = RequestStream::new(Body::from(envelope))
            .only::<Value>()
            .await;
        assert_eq!(
            streamed.map_err(|error| error.code).err(),
            Some("invalid_argument")
        );
    }
}
