//! What is checked before any route: that the request is meant for us, that a browser sends it from a page
//! that may, and who the caller is.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use atoll_core::Context;
use atoll_model::{Code, Error, RequestId};
use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::cors::check_fetch_metadata;
use crate::error::{ApiError, ErrorBody, add_request_id};
use crate::extract::take_query_params;
use crate::serve::Connection;
use crate::sse::end_on_shutdown;
use crate::websocket::PendingUpgrade;
use crate::{AppState, AuthMode, Config, HttpMetrics};

/// Routes that are for everybody and tell nothing.
const HEALTH: [&str; 7] = [
    "/health",
    "/healthz",
    "/readyz",
    "/api/health",
    "/api/healthz",
    "/api/readyz",
    "envd:/health",
];

/// Whom a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    /// This server.
    Api,
    /// A sandbox's commands and files, as E2B's clients ask for them.
    Envd,
    /// What listens in a sandbox.
    Port,
}

/// An answer of a program in a sandbox. It is told of, and not signed: its headers are its own, and many servers
/// name their requests by the same one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FromSandbox;

/// Has every request of these routes watched.
pub(crate) fn with_request_log(router: Router, app: &AppState, surface: Surface) -> Router {
    router.layer(from_fn_with_state((app.clone(), surface), log_request))
}

/// Names the request, signs the answer, and tells of it: one line in the log, and what is counted. Neither has anything
/// of what stands behind the question mark, in headers or in bodies: all of them may be secrets.
async fn log_request(
    State((app, surface)): State<(AppState, Surface)>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::random();
    request.extensions_mut().insert(id.clone());
    let log = RequestLog::new(&app, &id, surface, &request);
    let response = next.run(request).instrument(log.span.clone()).await;
    log.finish(&response);
    if response.extensions().get::<FromSandbox>().is_some() {
        return response;
    }
    add_request_id(response, &id)
}

/// Checks where a request for this server comes from.
pub(crate) async fn check_request(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let checked =
        check_host_and_origin(&request, &app.config).and_then(|()| check_fetch_metadata(&request));
    take_query_credentials(&mut request);
    if let Err(error) = checked {
        return ApiError(error).into_response();
    }
    let slot = AuthSlot::default();
    request.extensions_mut().insert(slot.clone());
    let upgrade = PendingUpgrade::from_request(&request);
    let response = next.run(request).await;
    if let Some(upgrade) = upgrade {
        return upgrade.reject(response).await;
    }
    match slot.0.get() {
        Some(context) => end_on_shutdown(response, &app.core, context),
        None => response,
    }
}

/// Who asks, for who sees the answer.
#[derive(Debug, Clone, Default)]
struct AuthSlot(Arc<OnceLock<Context>>);

/// The request is for this server, and from a page that may ask.
pub(crate) fn check_host_and_origin(request: &Request, config: &Config) -> Result<(), Error> {
    let host = request_authority(request.uri(), request.headers());
    check_host(host.as_deref(), config)?;
    check_origin(request.headers(), host.as_deref(), config)
}

/// A request that is told of, also if its caller goes away before there is an answer.
struct RequestLog {
    metrics: HttpMetrics,
    span: Span,
    surface: Surface,
    method: &'static str,
    route: String,
    started: Instant,
    finished: bool,
}

/// What is told of a caller who went away.
const CLIENT_CLOSED_REQUEST: u16 = 499;

impl RequestLog {
    fn new(app: &AppState, id: &RequestId, surface: Surface, request: &Request) -> Self {
        let method = method(request.method());
        let route = route(surface, request);
        let span =
            tracing::info_span!("request", request = %id, method, route, org = Empty, key = Empty);
        Self {
            metrics: app.metrics.clone(),
            span,
            surface,
            method,
            route,
            started: Instant::now(),
            finished: false,
        }
    }

    fn finish(mut self, response: &Response) {
        self.finished = true;
        self.record(response.status().as_u16(), response.extensions().get());
    }

    fn record(&self, status: u16, failure: Option<&ErrorBody>) {
        let elapsed = self.started.elapsed();
        self.metrics
            .request_finished(self.method, &self.route, status, elapsed);
        let _entered = self.span.enter();
        let ms = (elapsed.as_secs_f64() * 1e6).round() / 1e3;
        let code = failure.map(ErrorBody::code);
        // E2B's clients are told by 502 that a sandbox is gone or a port closed, and what programs answer is theirs.
        let ours = status >= 500 && status != 502 && self.surface != Surface::Port;
        // What a caller is told of its own mistake may repeat its words; of ours, not.
        match failure {
            Some(failure) if ours => {
                tracing::error!(
                    status,
                    ms,
                    code,
                    error = failure.message(),
                    "request finished"
                );
            }
            _ if ours => tracing::error!(status, ms, "request finished"),
            // Asked all the time by those who only want to know whether there is anybody.
            _ if HEALTH.contains(&self.route.as_str()) => {
                tracing::debug!(status, ms, "request finished")
            }
            _ => tracing::info!(status, ms, code, "request finished"),
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if !self.finished {
            self.record(CLIENT_CLOSED_REQUEST, None);
        }
    }
}

/// The pattern of a route: there are as many as we wrote, and no caller's word is in them.
fn route(surface: Surface, request: &Request) -> String {
    let matched = request.extensions().get::<MatchedPath>();
    let matched = matched.map_or("unknown", MatchedPath::as_str);
    match surface {
        Surface::Api => matched.to_owned(),
        Surface::Envd => format!("envd:{matched}"),
        Surface::Port => "port".to_owned(),
    }
}

/// A method by its name; there are as many as we know.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let found = KNOWN.into_iter().find(|name| *name == method.as_str());
    found.unwrap_or("OTHER")
}

/// What server the client means: HTTP/2 says it in the place of the address, HTTP/1 in a header.
pub(crate) fn request_authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(authority) = uri.authority() {
        return Some(authority.as_str().to_owned());
    }
    let host = headers.get(header::HOST)?;
    // Something that is no text is no name of ours.
    Some(host.to_str().unwrap_or_default().to_owned())
}

/// The host part of an authority.
pub(crate) fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

/// A page elsewhere can make a browser believe that its own name leads here. Addresses cannot be taken over
/// like that.
pub(crate) fn check_host(authority: Option<&str>, config: &Config) -> Result<(), Error> {
    let Some(host) = authority.map(host_of) else {
        // In HTTP/1.0 there need not be one; browsers always send it.
        return Ok(());
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let ours = host == "localhost"
        || host.parse::<IpAddr>().is_ok()
        || config.hosts.contains(&host)
        || config.is_api_of_domain(&host);
    if ours {
        return Ok(());
    }
    Err(Error::new(
        Code::Misdirected,
        format!("{host} is not a name of this server"),
    )
    .remedy(
        "use the server's address in the URL, or have its operator list the name (setting host)",
    ))
}

/// Browsers say from which page a request comes.
pub(crate) fn check_origin(
    headers: &HeaderMap,
    own: Option<&str>,
    config: &Config,
) -> Result<(), Error> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    // Something that is no text is no origin of ours.
    let origin = origin.to_str().unwrap_or_default();
    let same = origin
        .split_once("://")
        .is_some_and(|(_, host)| Some(host) == own);
    if same || config.origins.contains(origin) {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        "pages of this origin may not use this server",
    )
    .remedy("have the server's operator list the origin (setting cors-origin)"))
}

/// The caller, as a route sees it: whoever is not known does not get there.
#[derive(Debug)]
pub(crate) struct Authenticated(pub(crate) Context);

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

/// What is shown behind the question mark, by browsers that can send no headers of their own: a key with a
/// WebSocket, a ticket with that or with anything that is got.
#[derive(Clone)]
struct QueryCredentials {
    key: Option<String>,
    ticket: Option<String>,
}

/// Takes it out of the address: it is in no route's way, and in nothing that is written down.
fn take_query_credentials(request: &mut Request) {
    if request.method() != Method::GET {
        return;
    }
    let names: &[&str] = if is_websocket(request.headers()) {
        &["api_key", "ticket"]
    } else {
        &["ticket"]
    };
    let taken = take_query_params(request.uri_mut(), names);
    let word = |name: &str| {
        let mut words = taken.query()?.split('&');
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

/// Whether a request is to become a WebSocket.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// Address that a request came from over the network; of a reverse proxy, that of the proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// A request came over TLS of our own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverTls;

/// Where the caller found this server.
#[derive(Debug)]
pub(crate) struct ServerUrl(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for ServerUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let forwarded_proto = parts.headers.get("x-forwarded-proto");
        let encrypted = parts.extensions.get::<OverTls>().is_some();
        let scheme = if encrypted || forwarded_proto.is_some_and(|scheme| scheme == "https") {
            "https"
        } else {
            "http"
        };
        let host = request_authority(&parts.uri, &parts.headers);
        let host = host.unwrap_or_else(|| "localhost".into());
        Ok(Self(format!("{scheme}://{host}")))
    }
}

fn header_credential(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        // Something that is no text is no key, but it is not nothing either.
        return Some(key.to_str().map_or("", str::trim));
    }
    let bearer = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = bearer.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_pages_and_listed_ones_may_ask() {
        let config = Config {
            auth: AuthMode::Trusted,
            hosts: ["box.example".to_owned()].into(),
            origins: ["https://friend.example".to_owned()].into(),
            domains: std::collections::BTreeSet::new(),
        };
        for (origin, may) in [
            (b"http://box.example:80".as_slice(), true),
            (b"https://friend.example", true),
            (b"http://friend.example", false),
            (b"https://friend.example.evil.example", false),
            (b"http://box.example", false),
            (b"box.example:80", false),
            (b"null", false),
            (b"", false),
            // No text at all.
            (b"http://box.example:80\xff", false),
        ] {
            let request = Request::get("/").header("host", "box.example:80");
            let request = request.header("origin", origin);
            let request = request.body(axum::body::Body::empty()).unwrap();
            let checked = check_host_and_origin(&request, &config);
            assert_eq!(checked.is_ok(), may, "{}", origin.escape_ascii());
        }
    }

    #[tokio::test]
    async fn links_lead_to_where_the_caller_found_us_by_either_http() {
        let by_two = Request::get("https://box.example/tickets?ticket=x").extension(OverTls);
        let by_one = Request::get("/").header("host", "box.example:80");
        let forwarded_proto = Request::get("/")
            .header("host", "box.example")
            .header("x-forwarded-proto", "https");
        for (request, expected) in [
            (by_two, "https://box.example"),
            (by_one, "http://box.example:80"),
            (forwarded_proto, "https://box.example"),
        ] {
            let mut request = request.body(axum::body::Body::empty()).unwrap();
            take_query_credentials(&mut request);
            let (mut parts, _) = request.into_parts();
            let Ok(ServerUrl(origin)) = ServerUrl::from_request_parts(&mut parts, &()).await;
            assert_eq!(origin, expected);
        }
    }
}
