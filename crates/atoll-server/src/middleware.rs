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

use crate::error::{Failure, FailureBody, sign};
use crate::extract::split_query;
use crate::cors::check_site;
use crate::serve::Connection;
use crate::websocket::Door;
use crate::sse::ended_on_notice;
use crate::{Access, App, Config, Meters};

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
pub(crate) enum Part {
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
pub(crate) struct Theirs;

/// Has every request of these routes watched.
pub(crate) fn watched(router: Router, app: &App, part: Part) -> Router {
    router.layer(from_fn_with_state((app.clone(), part), watch))
}

/// Names the request, signs the answer, and tells of it: one line in the log, and what is counted. Neither has anything
/// of what stands behind the question mark, in headers or in bodies: all of them may be secrets.
async fn watch(
    State((app, part)): State<(App, Part)>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::random();
    request.extensions_mut().insert(id.clone());
    let told = Told::new(&app, &id, part, &request);
    let response = next.run(request).instrument(told.span.clone()).await;
    told.answered(&response);
    if response.extensions().get::<Theirs>().is_some() {
        return response;
    }
    sign(response, &id)
}

/// Checks where a request for this server comes from.
pub(crate) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let checked = meant_for_us(&request, &app.config).and_then(|()| check_site(&request));
    take_shown(&mut request);
    if let Err(error) = checked {
        return Failure(error).into_response();
    }
    let known = Known::default();
    request.extensions_mut().insert(known.clone());
    let door = Door::of(&request);
    let response = next.run(request).await;
    if let Some(door) = door {
        return door.refuse(response).await;
    }
    match known.0.get() {
        Some(context) => ended_on_notice(response, &app.core, context),
        None => response,
    }
}

/// Who asks, for who sees the answer.
#[derive(Debug, Clone, Default)]
struct Known(Arc<OnceLock<Context>>);

/// The request is for this server, and from a page that may ask.
pub(crate) fn meant_for_us(request: &Request, config: &Config) -> Result<(), Error> {
    let host = authority(request.uri(), request.headers());
    check_host(host.as_deref(), config)?;
    check_origin(request.headers(), host.as_deref(), config)
}

/// A request that is told of, also if its caller goes away before there is an answer.
struct Told {
    meters: Meters,
    span: Span,
    part: Part,
    method: &'static str,
    route: String,
    begin: Instant,
    over: bool,
}

/// What is told of a caller who went away.
const GONE: u16 = 499;

impl Told {
    fn new(app: &App, id: &RequestId, part: Part, request: &Request) -> Self {
        let method = method(request.method());
        let route = route(part, request);
        let span =
            tracing::info_span!("request", request = %id, method, route, org = Empty, key = Empty);
        Self {
            meters: app.meters.clone(),
            span,
            part,
            method,
            route,
            begin: Instant::now(),
            over: false,
        }
    }

    fn answered(mut self, response: &Response) {
        self.over = true;
        self.tell(response.status().as_u16(), response.extensions().get());
    }

    fn tell(&self, status: u16, failure: Option<&FailureBody>) {
        let took = self.begin.elapsed();
        self.meters.answered(self.method, &self.route, status, took);
        let _entered = self.span.enter();
        let ms = (took.as_secs_f64() * 1e6).round() / 1e3;
        let code = failure.map(FailureBody::code);
        // E2B's clients are told by 502 that a sandbox is gone or a port closed, and what programs answer is theirs.
        let ours = status >= 500 && status != 502 && self.part != Part::Port;
        // What a caller is told of its own mistake may repeat its words; of ours, not.
        match failure {
            Some(failure) if ours => {
                tracing::error!(status, ms, code, error = failure.message(), "answered");
            }
            _ if ours => tracing::error!(status, ms, "answered"),
            // Asked all the time by those who only want to know whether there is anybody.
            _ if HEALTH.contains(&self.route.as_str()) => tracing::debug!(status, ms, "answered"),
            _ => tracing::info!(status, ms, code, "answered"),
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if !self.over {
            self.tell(GONE, None);
        }
    }
}

/// The pattern of a route: there are as many as we wrote, and no caller's word is in them.
fn route(part: Part, request: &Request) -> String {
    let matched = request.extensions().get::<MatchedPath>();
    let matched = matched.map_or("unknown", MatchedPath::as_str);
    match part {
        Part::Api => matched.to_owned(),
        Part::Envd => format!("envd:{matched}"),
        Part::Port => "port".to_owned(),
    }
}

/// A method by its name; there are as many as we know.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let known = KNOWN.into_iter().find(|name| *name == method.as_str());
    known.unwrap_or("OTHER")
}

/// What server the client means: HTTP/2 says it in the place of the address, HTTP/1 in a header.
pub(crate) fn authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
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
        .is_some_and(|(_, place)| Some(place) == own);
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
pub(crate) struct Caller(pub(crate) Context);

impl FromRequestParts<App> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let request = parts.extensions.get::<RequestId>().cloned();
        let request = request.unwrap_or_else(RequestId::random);
        let shown = parts.extensions.get::<Shown>();
        let key = shown.and_then(|shown| shown.key.as_deref());
        let ticket = shown.and_then(|shown| shown.ticket.as_deref());
        let given = secret(&parts.headers).or(key);
        let (kind, context) = match (app.config.access, given, ticket) {
            (_, Some(secret), _) => ("key", app.core.authenticate(secret, request).await),
            (_, None, Some(ticket)) => ("ticket", app.core.redeem(ticket, request)),
            (Access::Open, None, None) => ("open", app.core.operator(request).await),
            (Access::Keys, None, None) => (
                "none",
                Err(Error::new(Code::MissingApiKey, "the request has no API key")
                    .remedy("send the header X-API-Key: atl_…; the first key is in admin.key of the server's data directory")),
            ),
        };
        app.meters.asked_in(kind, context.is_ok());
        let context = context?;
        if let Some(connection) = parts.extensions.get::<Connection>() {
            connection.authenticate();
        }
        if let Some(known) = parts.extensions.get::<Known>() {
            let _ = known.0.set(context.clone());
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
struct Shown {
    key: Option<String>,
    ticket: Option<String>,
}

/// Takes it out of the address: it is in no route's way, and in nothing that is written down.
fn take_shown(request: &mut Request) {
    if request.method() != Method::GET {
        return;
    }
    let names: &[&str] = if is_websocket(request.headers()) {
        &["api_key", "ticket"]
    } else {
        &["ticket"]
    };
    let taken = split_query(request.uri_mut(), names);
    let word = |name: &str| {
        let mut words = taken.query()?.split('&');
        let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.map(ToOwned::to_owned)
    };
    let (key, ticket) = (word("api_key"), word("ticket"));
    if key.is_some() || ticket.is_some() {
        request.extensions_mut().insert(Shown { key, ticket });
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
pub(crate) struct Encrypted;

/// Where the caller found this server.
#[derive(Debug)]
pub(crate) struct Origin(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for Origin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let before_us = parts.headers.get("x-forwarded-proto");
        let encrypted = parts.extensions.get::<Encrypted>().is_some();
        let scheme = if encrypted || before_us.is_some_and(|scheme| scheme == "https") {
            "https"
        } else {
            "http"
        };
        let host = authority(&parts.uri, &parts.headers);
        let host = host.unwrap_or_else(|| "localhost".into());
        Ok(Self(format!("{scheme}://{host}")))
    }
}

fn secret(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        // Something that is no text is no key, but it is not nothing either.
        return Some(key.to_str().map_or("", str::trim));
    }
    let bearer = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = bearer.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_pages_and_listed_ones_may_ask() {
        let config = Config {
            access: Access::Open,
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
            let checked = meant_for_us(&request, &config);
            assert_eq!(checked.is_ok(), may, "{}", origin.escape_ascii());
        }
    }

    #[tokio::test]
    async fn links_lead_to_where_the_caller_found_us_by_either_http() {
        let by_two = Request::get("https://box.example/tickets?ticket=x").extension(Encrypted);
        let by_one = Request::get("/").header("host", "box.example:80");
        let before_us = Request::get("/")
            .header("host", "box.example")
            .header("x-forwarded-proto", "https");
        for (request, expected) in [
            (by_two, "https://box.example"),
            (by_one, "http://box.example:80"),
            (before_us, "https://box.example"),
        ] {
            let mut request = request.body(axum::body::Body::empty()).unwrap();
            take_shown(&mut request);
            let (mut parts, _) = request.into_parts();
            let Ok(Origin(origin)) = Origin::from_request_parts(&mut parts, &()).await;
            assert_eq!(origin, expected);
        }
    }
}
