//! Bodies of E2B's clients: fields that are not known are of a later version, and are noted in the log.

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;

/// The largest body.
const MOST: usize = 1 << 20;

/// A JSON body, or none at all.
#[derive(Debug)]
pub(super) struct Lenient<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Lenient<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        let path = request.uri().path().to_owned();
        let bytes = axum::body::to_bytes(request.into_body(), MOST).await;
        let bytes = bytes.map_err(|_| {
            let message = "the body is larger than 1 MiB, or broke off";
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        })?;
        let bytes = if bytes.is_empty() { b"{}" } else { &bytes[..] };
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let mut unknown = Vec::new();
        let mut note = |field: serde_ignored::Path<'_>| unknown.push(field.to_string());
        let body = serde_ignored::deserialize(&mut reader, &mut note);
        let body = body.map_err(|error| {
            let message = format!("the body cannot be read: {error}");
            Refusal::new(StatusCode::BAD_REQUEST, message)
        })?;
        if !unknown.is_empty() {
            tracing::info!(
                path,
                fields = unknown.join(" "),
                "fields that nobody knows here"
            );
        }
        Ok(Self(body))
    }
}

/// What stands behind the question mark; what is not known there is nobody's business.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = Query::<T>::from_request_parts(parts, state).await;
        let Query(params) =
            read.map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.body_text()))?;
        Ok(Self(params))
    }
}
