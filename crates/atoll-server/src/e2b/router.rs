//! Routes requests for sandboxes, by header, host name or signature, before the routes of the API,
//! and checks access.

mod access;
mod error_page;
mod target;

use std::sync::Arc;

use atoll_core::{RequestContext, SandboxRef, TokenScope};
use atoll_model::{Error, SandboxId, SandboxState};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use serde_json::json;
use tower::ServiceExt as _;

use super::error::{CallFailed, E2bError, SandboxEnded};
use super::{envd, ports};
use crate::middleware::{
    ClientAddress, FromSandbox, Surface, check_host, check_origin, host_of, is_over_tls,
    request_authority, with_request_log,
};
use crate::sse::end_on_shutdown;
use crate::{AppState, Config, cors};
pub(crate) use access::LINK;
use access::{PresentedCredentials, Verdict, authorize};
pub(crate) use target::ENVD;
pub(super) use target::Target;
use target::{InvalidTarget, host, is_subdomain};

/// Routers of both surfaces of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct SandboxRouter {
    config: Arc<Config>,
    envd: Router,
    ports: Router,
}

impl SandboxRouter {
    pub(crate) fn new(app: &AppState) -> Self {
        let with_access_check = |router: Router, surface| {
            let mut router = router.layer(from_fn_with_state(app.clone(), resolve_target));
            if surface == Surface::Port {
                router = router.layer(from_fn(error_page::html_for_browsers));
            } else if !app.config.origins.is_empty() {
                // Outside the access check: preflight requests carry no credentials.
                router = router.layer(cors::cors(&app.config));
            }
            with_request_log(router, app, surface)
        };
        Self {
            config: Arc::clone(&app.config),
            envd: with_access_check(envd::routes(app), Surface::Envd),
            ports: with_access_check(
                Router::new()
                    .fallback(ports::forward)
                    .with_state(app.clone()),
                Surface::Port,
            ),
        }
    }
}

/// Middleware that handles requests for sandboxes and passes on all others.
pub(crate) async fn route_to_sandbox(
    State(router): State<SandboxRouter>,
    mut request: Request,
    next: Next,
) -> Response {
    let target = match Target::from_request(&request, &router.config.domains) {
        Ok(Some(target)) => Ok(target),
        Err(astray) => Err(astray),
        Ok(None) => {
            if host(&request).is_some_and(|host| router.config.is_api_of_domain(&host)) {
                rewrite_to_e2b_path(&mut request);
            }
            return next.run(request).await;
        }
    };
    let surface_router = match &target {
        Ok(target) if target.port != ENVD => router.ports,
        _ => router.envd,
    };
    request.extensions_mut().insert(target);
    surface_router.oneshot(request).await.into_response()
}

/// At `api.DOMAIN` only E2B's control API is served.
fn rewrite_to_e2b_path(request: &mut Request) {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let Ok(path) = format!("/e2b{path}").parse() else {
        return;
    };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.path_and_query = Some(path);
    // Cannot fail: only the path changes.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// Finds the sandbox of a request and checks access. The sandbox must run, or resume on requests.
async fn resolve_target(
    State(app): State<AppState>,
    Extension(target): Extension<Result<Target, InvalidTarget>>,
    mut request: Request,
    next: Next,
) -> Response {
    let target = match target {
        Ok(target) => target,
        Err(InvalidTarget(message)) => {
            return E2bError::new(StatusCode::BAD_REQUEST, message).into_response();
        }
    };
    if let Err(error) = check_host_and_origin(&target, &request, &app.config) {
        return E2bError::from(error).into_response();
    }
    let found = match find_sandbox(&app, &target, &request) {
        Ok(Some(found)) => found.caught_up().await,
        Ok(None) => None,
        Err(refusal) => return refusal.into_response(),
    };
    let shown = PresentedCredentials::from_request(&app, &target, found.as_ref(), &request);
    let by_token = shown.token;
    // Only for a host name that contains the port: cookies are scoped to hosts.
    let link = shown.link.clone().filter(|_| target.by_host);
    let is_over_tls = is_over_tls(request.headers(), request.extensions());
    let verdict = match authorize(&app, target.port, found.as_ref(), shown).await {
        Ok(verdict) => verdict,
        Err(error) => return E2bError::from(error).into_response(),
    };
    let sandbox =
        found.filter(|sandbox| !matches!(verdict, Verdict::Unknown) && is_available(sandbox));
    let Some(sandbox) = sandbox else {
        return not_found(target.sandbox.as_deref().unwrap_or_default());
    };
    let Verdict::Admitted(context) = verdict else {
        return token_missing(sandbox.id().as_str());
    };
    tracing::Span::current().record("org", sandbox.org().as_str());
    request.extensions_mut().insert(target);
    request.extensions_mut().insert(sandbox.clone());
    request.extensions_mut().insert(PortCaller {
        context: context.clone(),
        by_token,
    });
    let mut response = next.run(request).await;
    if let Some(cookie) = link.and_then(|link| access::cookie(&link, is_over_tls)) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    if ended_during_call(&sandbox, &response) {
        return not_found(sandbox.id().as_str());
    }
    match context {
        Some(context) => end_on_shutdown(response, &app.core, &context),
        None => response,
    }
}

/// The sandbox that a request names, or whose token signed its URL.
fn find_sandbox(
    app: &AppState,
    target: &Target,
    request: &Request,
) -> Result<Option<SandboxRef>, E2bError> {
    if let Some(id) = &target.sandbox {
        let id = id.parse::<SandboxId>().ok();
        return Ok(id.and_then(|id| app.core.lookup_unauthenticated(&id)));
    }
    let client = request.extensions().get::<ClientAddress>();
    let client = client.map(|ClientAddress(client)| *client);
    envd::signature::find_sandbox(&app.core, client, request.method(), request.uri()).map(Some)
}

/// The credential that admitted a request to a port.
#[derive(Debug, Clone)]
pub(super) struct PortCaller {
    /// The caller, for a key or a ticket.
    pub(super) context: Option<RequestContext>,
    /// Admitted by the sandbox's token or a signed URL.
    pub(super) by_token: bool,
}

/// Checks the host, unless it names the sandbox, and, for commands and files, the origin. Requests
/// to ports may come from any origin: the program there decides.
fn check_host_and_origin(target: &Target, request: &Request, config: &Config) -> Result<(), Error> {
    let authority = request_authority(request.uri(), request.headers());
    let host = authority.as_deref().map(host_of).unwrap_or_default();
    if !target.by_host && !is_subdomain("sandbox.", &host.to_ascii_lowercase(), &config.domains) {
        check_host(authority.as_deref(), config)?;
    }
    if target.port == ENVD {
        check_origin(request.headers(), authority.as_deref(), config)?;
    }
    Ok(())
}

/// Whether a call failed because its sandbox ended during the call. Then every error is reported as
/// that.
fn ended_during_call(sandbox: &SandboxRef, response: &Response) -> bool {
    let (status, markers) = (response.status(), response.extensions());
    if markers.get::<FromSandbox>().is_some() {
        return false;
    }
    let failed = status.is_client_error() || status.is_server_error();
    let failed = failed || markers.get::<CallFailed>().is_some();
    markers.get::<SandboxEnded>().is_some() || failed && !is_available(sandbox)
}

/// Whether the sandbox runs or resumes on requests.
fn is_available(sandbox: &SandboxRef) -> bool {
    match sandbox.state() {
        _ if sandbox.is_deleted() => false,
        SandboxState::Running | SandboxState::Creating => true,
        SandboxState::Paused | SandboxState::Stopped => sandbox.auto_resumes(),
        SandboxState::Stopping | SandboxState::Failed => false,
    }
}

/// The SDKs evaluate message and number.
pub(super) fn not_found(sandbox: &str) -> Response {
    let body = json!({ "sandboxId": sandbox, "message": "The sandbox was not found", "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// The SDKs evaluate message and number.
pub(super) fn port_closed(sandbox: &str, port: u16) -> Response {
    let body = json!({
        "sandboxId": sandbox,
        "message": "The sandbox is running but port is not open",
        "port": port,
        "code": 502,
    });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

fn token_missing(sandbox: &str) -> Response {
    let message = "this port requires the sandbox's traffic access token";
    let body = json!({ "sandboxId": sandbox, "message": message, "code": 403 });
    (StatusCode::FORBIDDEN, Json(body)).into_response()
}

/// Whether a request has the sandbox's token for a scope.
pub(super) fn presents_token(sandbox: &SandboxRef, scope: TokenScope, headers: &HeaderMap) -> bool {
    header_value(headers, scope.header()).is_some_and(|token| sandbox.verify_token(scope, token))
}

fn header_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
