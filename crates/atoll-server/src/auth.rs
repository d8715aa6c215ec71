//! Authentication: the extractor for the caller, and credentials in headers and queries.

use std::sync::{Arc, OnceLock};

use atoll_core::RequestContext;
use atoll_model::{Code, Error, RequestId};
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use tracing::Span;

use crate::error::ApiError;
use crate::extract::take_query_params;
use crate::serve::Connection;
use crate::{AppState, AuthMode};

/// The authenticated caller, passed from the extractor back to the middleware.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuthSlot(Arc<OnceLock<RequestContext>>);

impl AuthSlot {
    /// The caller, if a handler authenticated it.
    pub(crate) fn caller(&self) -> Option<&RequestContext> {
        self.0.get()
    }
}

/// Extractor for the authenticated caller. It rejects requests without valid credentials.
#[derive(Debug)]
pub(crate) struct Authenticated(pub(crate) RequestContext);

impl FromRequestParts<AppState> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let request = parts.extensions.get::<RequestId>().cloned();
        let request = request.unwrap_or_else(RequestId::random);
        let credentials = parts.extensions.get::<QueryCredentials>();
        let key = credentials.and_then(|credentials| credentials.key.as_deref());
        let ticket = credentials.and_then(|credentials| credentials.ticket.as_deref());
        let credential = header_credential(&parts.headers).or(key);
        let (kind, context) = match (app.config.auth, credential, ticket) {
            (_, Some(key), _) => ("key", app.core.authenticate(key, request).await),
            (_, None, Some(ticket)) => ("ticket", app.core.redeem(ticket, request)),
            (AuthMode::Trusted, None, None) => ("open", app.core.operator(request).await),
            (AuthMode::ApiKeys, None, None) => (
                "none",
                Err(Error::new(Code::MissingApiKey, "the request has no API key")
                    .remedy("send the header X-API-Key: atl_…; the first key is in admin.key of the server's data directory")),
            ),
        };
        app.metrics.auth_attempt(kind, context.is_ok());
        let context = context?;
        if let Some(connection) = parts.extensions.get::<Connection>() {
            connection.authenticate();
        }
        if let Some(slot) = parts.extensions.get::<AuthSlot>() {
            let _ = slot.0.set(context.clone());
        }
        let span = Span::current();
        span.record("org", context.org.id.as_str());
        if let Some(key) = &context.key {
            span.record("key", key.as_str());
        }
        Ok(Self(context))
    }
}

/// Credentials in the query, for browser requests that cannot set headers: a key for WebSockets, a
/// ticket for WebSockets and any `GET`.
#[derive(Clone)]
struct QueryCredentials {
    key: Option<String>,
    ticket: Option<String>,
}

/// Moves credentials out of the query, so that neither routes nor logs see them.
pub(crate) fn take_query_credentials(request: &mut Request) {
    if request.method() != Method::GET {
        return;
    }
    let names: &[&str] = if is_websocket(request.headers()) {
        &["api_key", "ticket"]
    } else {
        &["ticket"]
    };
    let credentials = take_query_params(request.uri_mut(), names);
    let word = |name: &str| {
        let mut words = credentials.query()?.split('&');
        let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.map(ToOwned::to_owned)
    };
    let (key, ticket) = (word("api_key"), word("ticket"));
    if key.is_some() || ticket.is_some() {
        request
            .extensions_mut()
            .insert(QueryCredentials { key, ticket });
    }
}

/// Whether a request asks for an upgrade to WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// API key in `X-API-Key`, or a bearer token.
fn header_credential(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        // A value that is not text is an invalid key, not a missing one.
        return Some(key.to_str().map_or("", str::trim));
    }
    let bearer = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = bearer.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
