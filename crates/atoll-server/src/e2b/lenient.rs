//! What E2B's clients send: fields that are not known are of a later version, and are noted in the log.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::error::Refusal;
use crate::malformed;

/// The largest body.
const MOST: usize = 1 << 20;

/// Something that was sent, and the names in it that nobody knows here.
#[derive(Debug)]
pub(super) struct Noted<T> {
    sent: T,
    unknown: Vec<String>,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Noted<T> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let mut unknown = Vec::new();
        let mut note = |field: serde_ignored::Path<'_>| unknown.push(field.to_string());
        let sent = serde_ignored::deserialize(reader, &mut note)?;
        Ok(Self { sent, unknown })
    }
}

impl<T> Noted<T> {
    /// What was sent, for who only looks at it.
    pub(super) fn sent(self) -> T {
        self.sent
    }

    /// What was sent, once the log has the rest: names alone, in the line of the request.
    pub(super) fn told(self) -> T {
        if !self.unknown.is_empty() {
            let fields = self.unknown.join(" ");
            tracing::info!(fields, "fields that nobody knows here");
        }
        self.sent
    }
}

/// A JSON body, or none at all.
#[derive(Debug)]
pub(super) struct Lenient<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Lenient<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let bytes = axum::body::to_bytes(request.into_body(), MOST).await;
        let bytes = bytes.map_err(|_| {
            let message = "the body is larger than 1 MiB, or broke off";
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        })?;
        let bytes = if bytes.is_empty() { b"{}" } else { &bytes[..] };
        let body: Noted<T> = malformed::read_json(bytes)?;
        Ok(Self(body.told()))
    }
}

/// What stands behind the question mark.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let params: Noted<T> = malformed::read_query(&parts.uri)?;
        Ok(Self(params.told()))
    }
}
