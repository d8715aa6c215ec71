//! Middleware of all routes: request log, host and origin checks, and credentials in queries.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Instant;

use atoll_model::{Code, Error, RequestId};
use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::auth::{AuthSlot, take_query_credentials};
use crate::error::{ApiError, ErrorBody, add_request_id};
use crate::sse::end_on_shutdown;
use crate::websocket::PendingUpgrade;
use crate::{AppState, Config, HttpMetrics};

/// Health checks, which are logged at debug level only.
const HEALTH: [&str; 7] = [
    "/health",
    "/healthz",
    "/readyz",
    "/api/health",
    "/api/healthz",
    "/api/readyz",
    "envd:/health",
];

/// The interface that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    /// The API of this server.
    Api,
    /// Commands and files of a sandbox, as the E2B SDKs request them.
    Envd,
    /// A port of a sandbox.
    Port,
}

/// Marks a response of a program in a sandbox. It is logged but not changed: its headers, including
/// `X-Request-ID`, belong to the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FromSandbox;

/// Adds request logging, metrics and the request id to a router.
pub(crate) fn with_request_log(router: Router, app: &AppState, surface: Surface) -> Router {
    router.layer(from_fn_with_state((app.clone(), surface), log_request))
}

/// Assigns the request id, adds it to the response, and records the request in log and metrics.
/// Neither contains query parameters, headers or bodies: they may contain secrets.
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

/// Checks host and origin of a request to the API, and moves credentials out of its query.
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
    match slot.caller() {
        Some(context) => end_on_shutdown(response, &app.core, context),
        None => response,
    }
}

/// Checks `Host` and `Origin`.
pub(crate) fn check_host_and_origin(request: &Request, config: &Config) -> Result<(), Error> {
    let host = request_authority(request.uri(), request.headers());
    check_host(host.as_deref(), config)?;
    check_origin(request.headers(), host.as_deref(), config)
}

/// Log entry of one request. Dropped without `finish`, it records that the client disconnected.
struct RequestLog {
    metrics: HttpMetrics,
    span: Span,
    surface: Surface,
    method: &'static str,
    route: String,
    started: Instant,
    finished: bool,
}

/// Status in log and metrics of a request whose client disconnected (as in nginx).
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
        // For E2B clients 502 means that a sandbox is gone or a port closed. Statuses from a port
        // are the program's own.
        let ours = status >= 500 && status != 502 && self.surface != Surface::Port;
        // Messages of client errors may repeat values of the request; messages of server errors do
        // not.
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
            // Health checks are frequent.
            _ if HEALTH.contains(&self.route.as_str()) => {
                tracing::debug!(status, ms, "request finished");
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

/// Pattern of the matched route: a bounded set, without values from the request.
fn route(surface: Surface, request: &Request) -> String {
    let matched = request.extensions().get::<MatchedPath>();
    let matched = matched.map_or("unknown", MatchedPath::as_str);
    match surface {
        Surface::Api => matched.to_owned(),
        Surface::Envd => format!("envd:{matched}"),
        Surface::Port => "port".to_owned(),
    }
}

/// Name of the method, from a bounded set.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    let found = KNOWN.into_iter().find(|name| *name == method.as_str());
    found.unwrap_or("OTHER")
}

/// Host that the client names: `:authority` in HTTP/2, the `Host` header in HTTP/1.
pub(crate) fn request_authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    if let Some(authority) = uri.authority() {
        return Some(authority.as_str().to_owned());
    }
    let host = headers.get(header::HOST)?;
    // A value that is not text matches no host name of this server.
    Some(host.to_str().unwrap_or_default().to_owned())
}

/// Host of an authority, without the port.
pub(crate) fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

/// Rejects foreign host names, against DNS rebinding. IP addresses and `localhost` cannot be
/// rebound.
pub(crate) fn check_host(authority: Option<&str>, config: &Config) -> Result<(), Error> {
    let Some(host) = authority.map(host_of) else {
        // HTTP/1.0 does not require `Host`; browsers always send it.
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

/// Rejects origins other than the server's own and the configured ones.
pub(crate) fn check_origin(
    headers: &HeaderMap,
    own: Option<&str>,
    config: &Config,
) -> Result<(), Error> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    // A value that is not text matches no configured origin.
    let origin = origin.to_str().unwrap_or_default();
    let same = origin
        .split_once("://")
        .is_some_and(|(_, host)| Some(host) == own);
    if same || config.origins.contains(origin) {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        "requests from this origin are not allowed",
    )
    .remedy("have the server's operator list the origin (setting cors-origin)"))
}

/// Rejects cross-site subresource requests (Fetch Metadata). Images, scripts and frames are
/// requested without an `Origin` header, but with `Sec-Fetch-Site`. Following a link to the server
/// is allowed.
pub(crate) fn check_fetch_metadata(request: &Request) -> Result<(), Error> {
    let headers = request.headers();
    let header_value = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
    let elsewhere = matches!(
        header_value("sec-fetch-site"),
        Some(b"cross-site" | b"same-site")
    );
    let link = request.method() == Method::GET
        && header_value("sec-fetch-mode") == Some(b"navigate")
        && header_value("sec-fetch-dest") == Some(b"document");
    if headers.contains_key(header::ORIGIN) || !elsewhere || link {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        "cross-site subresource requests are not allowed",
    )
    .remedy(
        "use fetch from a page whose origin the server's operator has listed (setting cors-origin)",
    ))
}

/// Remote IP address of a connection; behind a reverse proxy, the proxy's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Marks a request that came over the server's own TLS.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OverTls;

/// Whether a request came over TLS, to this server or to a proxy in front of it.
pub(crate) fn is_over_tls(headers: &HeaderMap, extensions: &Extensions) -> bool {
    let forwarded_proto = headers.get("x-forwarded-proto");
    extensions.get::<OverTls>().is_some() || forwarded_proto.is_some_and(|scheme| scheme == "https")
}

/// Scheme and authority under which the client reaches this server.
#[derive(Debug)]
pub(crate) struct ServerUrl(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for ServerUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let scheme = if is_over_tls(&parts.headers, &parts.extensions) {
            "https"
        } else {
            "http"
        };
        let host = request_authority(&parts.uri, &parts.headers);
        let host = host.unwrap_or_else(|| "localhost".into());
        Ok(Self(format!("{scheme}://{host}")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::AuthMode;

    #[test]
    fn only_own_and_configured_origins_are_allowed() {
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
            // Not UTF-8.
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
    async fn server_url_from_http1_http2_and_proxy() {
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
