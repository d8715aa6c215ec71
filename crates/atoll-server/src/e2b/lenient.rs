//! Lenient extractors for E2B clients: unknown fields, which newer clients may send, are accepted
//! and their names logged.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::error::E2bError;
use crate::malformed;

/// Largest body.
const MAX_BODY_BYTES: usize = 1 << 20;

/// A value, and the names of unknown fields.
#[derive(Debug)]
pub(super) struct WithUnknownFields<T> {
    value: T,
    unknown: Vec<String>,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for WithUnknownFields<T> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let mut unknown = Vec::new();
        let mut note = |field: serde_ignored::Path<'_>| unknown.push(field.to_string());
        let value = serde_ignored::deserialize(reader, &mut note)?;
        Ok(Self { value, unknown })
    }
}

impl<T> WithUnknownFields<T> {
    /// The value, without logging.
    pub(super) fn into_inner(self) -> T {
        self.value
    }

    /// The value, after logging the names of unknown fields, without their values.
    pub(super) fn log_unknown(self) -> T {
        if !self.unknown.is_empty() {
            let fields = self.unknown.join(" ");
            tracing::info!(fields, "unknown fields");
        }
        self.value
    }
}

/// JSON body; an empty body is an empty object.
#[derive(Debug)]
pub(super) struct LenientJson<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for LenientJson<T> {
    type Rejection = E2bError;

    async fn from_request(request: Request, _: &S) -> Result<Self, E2bError> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES).await;
        let bytes = bytes.map_err(|_| {
            let message = "the body is larger than 1 MiB or incomplete";
            E2bError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        })?;
        let bytes = if bytes.is_empty() { b"{}" } else { &bytes[..] };
        let body: WithUnknownFields<T> = malformed::read_json(bytes)?;
        Ok(Self(body.log_unknown()))
    }
}

/// Query parameters.
#[derive(Debug)]
pub(super) struct LenientQuery<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for LenientQuery<T> {
    type Rejection = E2bError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, E2bError> {
        let params: WithUnknownFields<T> = malformed::read_query(&parts.uri)?;
        Ok(Self(params.log_unknown()))
    }
}
