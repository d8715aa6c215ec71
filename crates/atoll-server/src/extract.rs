//! axum extractors for bodies, paths and queries. They are strict: an error names the invalid
//! field.

use atoll_model::{Code, Error, Idempotency};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use base64::Engine as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use utoipa::IntoParams;

use crate::error::ApiError;
use crate::malformed;

/// Largest JSON body.
const MAX_JSON_BYTES: usize = 1 << 20;

/// JSON object from a request body.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        Ok(Self(malformed::read_object(
            &read_json_bytes(request).await?,
        )?))
    }
}

/// The header of an idempotent request, for OpenAPI.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "the description of what `Repeatable` reads")]
pub(crate) struct IdempotencyHeader {
    /// A random id chosen by the client. For a day, also across restarts, a repeated key with the
    /// same body returns the first result.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255)]
    key: Option<String>,
}

/// JSON object, with the idempotency key and the fingerprint of the body.
#[derive(Debug)]
pub(crate) struct IdempotentJson<T>(pub(crate) T, pub(crate) Option<Idempotency>);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for IdempotentJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let key = request.headers().get("idempotency-key").map(|key| {
            let key = key
                .to_str()
                .ok()
                .filter(|key| (1..=255).contains(&key.len()));
            key.map(ToOwned::to_owned).ok_or_else(|| {
                Error::invalid(
                    "Idempotency-Key",
                    "the Idempotency-Key is empty, longer than 255 characters or not text",
                    "use a random id for each request",
                )
            })
        });
        let key = key.transpose()?;
        let bytes = read_json_bytes(request).await?;
        let idempotency = key.map(|key| Idempotency {
            key,
            fingerprint: fingerprint(&bytes),
        });
        Ok(Self(malformed::read_object(&bytes)?, idempotency))
    }
}

/// SHA-256 of a body, in base64.
pub(crate) fn fingerprint(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(Sha256::digest(bytes))
}

/// Reads the whole body of a JSON route. An empty body is an empty object, whatever its content
/// type.
async fn read_json_bytes(request: Request) -> Result<axum::body::Bytes, ApiError> {
    let has_json_type = is_json(request.headers());
    let bytes = axum::body::to_bytes(request.into_body(), MAX_JSON_BYTES).await;
    let bytes = bytes.map_err(|_| {
        Error::new(
            Code::TooLarge,
            "the body is larger than 1 MiB or incomplete",
        )
        .remedy("upload files with PUT …/files")
    })?;
    if bytes.is_empty() {
        return Ok(axum::body::Bytes::from_static(b"{}"));
    }
    if !has_json_type {
        return Err(Error::new(
            Code::UnsupportedMediaType,
            "Content-Type is not application/json",
        )
        .remedy("send the header Content-Type: application/json")
        .into());
    }
    Ok(bytes)
}

/// Whether the content type is `application/json`.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json")
    })
}

/// Body of a route without parameters: empty, or an empty object.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

/// Largest body of one write to stdin.
const MAX_INPUT_BYTES: usize = 2 << 20;

/// Body as raw bytes.
#[derive(Debug)]
pub(crate) struct RawBytes(pub(crate) axum::body::Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = axum::body::to_bytes(request.into_body(), MAX_INPUT_BYTES).await;
        let bytes = bytes.map_err(|_| {
            Error::new(
                Code::TooLarge,
                "the body is larger than 2 MiB or incomplete",
            )
            .remedy("send it in chunks, each with its offset")
        })?;
        Ok(Self(bytes))
    }
}

/// Path parameters.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        let axum::extract::Path(path) = path.map_err(|rejection| malformed::path(&rejection))?;
        Ok(Self(path))
    }
}

/// Query parameters.
#[derive(Debug)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self(malformed::read_query(&parts.uri)?))
    }
}

/// Moves the named parameters out of a query and returns a URI with only them. Of several with one
/// name the first is moved; the parser of the remaining query rejects the others.
pub(crate) fn take_query_params(uri: &mut Uri, names: &[&str]) -> Uri {
    let (mut taken, mut left, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    for word in uri.query().unwrap_or_default().split('&') {
        let name = word.split('=').next().unwrap_or_default();
        if names.contains(&name) && !seen.contains(&name) {
            seen.push(name);
            taken.push(word);
        } else if !word.is_empty() {
            left.push(word);
        }
    }
    let (taken, left) = (with_query(uri, &taken), with_query(uri, &left));
    *uri = left;
    taken
}

/// Replaces the query of a URI.
pub(crate) fn with_query(uri: &Uri, words: &[&str]) -> Uri {
    let text = match words {
        [] => uri.path().to_owned(),
        words => format!("{}?{}", uri.path(), words.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = text.parse().ok();
    // Cannot fail: the parts come from a valid URI.
    Uri::from_parts(parts).unwrap_or_default()
}

/// Checks a `limit` parameter.
pub(crate) fn checked_limit(requested: Option<u32>, default: u32, max: u32) -> Result<u32, Error> {
    let limit = requested.unwrap_or(default);
    if (1..=max).contains(&limit) {
        return Ok(limit);
    }
    let message = format!("limit is {limit}");
    Err(Error::invalid("limit", message, format!("give 1 to {max}")))
}

/// Distinguishes `null` from a missing field.
pub(crate) fn double_option<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}
