//! Which requests are for a sandbox and not for us, for which one, and for which of its ports.

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_core::{Door, Doorstep};
use atoll_model::{SandboxId, SandboxState};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use serde_json::json;
use tower::ServiceExt as _;

use super::refusal::{Failed, Over};
use super::{envd, ports};
use crate::guard::{Part, Theirs, authority, host_of, watched};
use crate::{App, Config};

/// Where E2B's own daemon listens: here it is this server.
pub(super) const ENVD: u16 = 49983;

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Nothing if only a signature tells.
    sandbox: Option<String>,
    pub(super) port: u16,
}

impl Target {
    /// By headers, by a host name `PORT-ID.…` of one of our domains, or by a signature.
    fn of(request: &Request, domains: &BTreeSet<String>) -> Option<Self> {
        let headers = request.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(sandbox) = text("e2b-sandbox-id") {
            let port = text("e2b-sandbox-port").map_or(Some(ENVD), |port| port.parse().ok());
            // What is not a port is none that is open.
            return Some(Self::new(sandbox, port.unwrap_or(0)));
        }
        let named = || {
            let host = host(request)?;
            let (label, domain) = host.split_once('.')?;
            let (port, sandbox) = label.split_once('-')?;
            let known = domains.contains(domain);
            known.then(|| Some(Self::new(sandbox, port.parse().ok()?)))?
        };
        let signed = || {
            envd::signature::is_there(request.uri()).then_some(Self {
                sandbox: None,
                port: ENVD,
            })
        };
        named().or_else(signed)
    }

    /// Older clients write more behind the id.
    fn new(sandbox: &str, port: u16) -> Self {
        let sandbox = sandbox.split('-').next().unwrap_or_default();
        Self {
            sandbox: Some(sandbox.to_owned()),
            port,
        }
    }
}

/// The name by which a server is asked for, without its port.
fn host(request: &Request) -> Option<String> {
    let asked = authority(request.uri(), request.headers())?;
    Some(host_of(&asked).to_ascii_lowercase())
}

/// What stands before every route.
#[derive(Debug, Clone)]
pub(crate) struct Edge {
    config: Arc<Config>,
    envd: Router,
    ports: Router,
}

impl Edge {
    pub(crate) fn new(app: &App) -> Self {
        let behind_the_door = |router: Router, part| {
            let admitted = router.layer(from_fn_with_state(app.clone(), admit));
            watched(admitted, app, part)
        };
        Self {
            config: Arc::clone(&app.config),
            envd: behind_the_door(envd::routes(app), Part::Envd),
            ports: behind_the_door(Router::new().fallback(ports::forward), Part::Port),
        }
    }
}

/// Sends what is for a sandbox there, before any route of ours is looked at.
pub(crate) async fn divert(State(edge): State<Edge>, mut request: Request, next: Next) -> Response {
    let Some(target) = Target::of(&request, &edge.config.domains) else {
        if host(&request).is_some_and(|host| edge.config.is_api_of_domain(&host)) {
            below_e2b(&mut request);
        }
        return next.run(request).await;
    };
    let inside = if target.port == ENVD {
        edge.envd
    } else {
        edge.ports
    };
    request.extensions_mut().insert(target);
    inside.oneshot(request).await.into_response()
}

/// At `api.DOMAIN` E2B's control API is the only one.
fn below_e2b(request: &mut Request) {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let Ok(path) = format!("/e2b{path}").parse() else {
        return;
    };
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.path_and_query = Some(path);
    // Only the path is another.
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// Finds the sandbox a request is for: one that is there, or going to be because of this.
async fn admit(
    State(app): State<App>,
    Extension(target): Extension<Target>,
    mut request: Request,
    next: Next,
) -> Response {
    let found = match &target.sandbox {
        Some(id) => {
            let id = id.parse::<SandboxId>().ok();
            id.and_then(|id| app.core.doorstep(&id))
        }
        None => match envd::signature::find(&app.core, request.method(), request.uri()) {
            Ok(step) => Some(step),
            Err(refusal) => return refusal.into_response(),
        },
    };
    let Some(step) = found else {
        return not_found(&target.sandbox.unwrap_or_default());
    };
    if !is_there(&step) {
        return not_found(step.id().as_str());
    }
    tracing::Span::current().record("org", step.org().as_str());
    request.extensions_mut().insert(step.clone());
    let response = next.run(request).await;
    if ended_meanwhile(&step, &response) {
        return not_found(step.id().as_str());
    }
    response
}

/// Whether a call failed because its sandbox went away under it: then that is what failed, whatever was noticed first.
fn ended_meanwhile(step: &Doorstep, response: &Response) -> bool {
    let (status, marks) = (response.status(), response.extensions());
    if marks.get::<Theirs>().is_some() {
        return false;
    }
    let failed = status.is_client_error() || status.is_server_error();
    let failed = failed || marks.get::<Failed>().is_some();
    marks.get::<Over>().is_some() || failed && !is_there(step)
}

/// Running, or going to run because of this.
fn is_there(step: &Doorstep) -> bool {
    match step.state() {
        _ if step.is_deleted() => false,
        SandboxState::Running | SandboxState::Creating => true,
        SandboxState::Paused | SandboxState::Stopped => step.wakes(),
        SandboxState::Stopping | SandboxState::Failed => false,
    }
}

/// Read by the SDKs: words and number.
pub(super) fn not_found(sandbox: &str) -> Response {
    let body = json!({ "sandboxId": sandbox, "message": "The sandbox was not found", "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// Read by the SDKs: words and number.
pub(super) fn port_closed(sandbox: &str, port: u16) -> Response {
    let body = json!({
        "sandboxId": sandbox,
        "message": "The sandbox is running but port is not open",
        "port": port,
        "code": 502,
    });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// Whether a request shows the token of a door.
pub(super) fn shows_token(step: &Doorstep, door: Door, headers: &HeaderMap) -> bool {
    let name = match door {
        Door::Agent => "x-access-token",
        Door::Ports => "e2b-traffic-access-token",
    };
    let token = headers.get(name).and_then(|token| token.to_str().ok());
    token.is_some_and(|token| step.opens(door, token))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    /// What a request for an address, with these headers, is for.
    fn target(address: &str, headers: &[(&str, &str)]) -> Option<(String, u16)> {
        let mut request = Request::builder().uri(address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        let domains = BTreeSet::from(["box.test".to_owned()]);
        let found = Target::of(&request, &domains)?;
        Some((found.sandbox?, found.port))
    }

    #[test]
    fn a_sandbox_is_named_by_headers_by_host_or_by_the_address_of_http_2() {
        let there = |port| Some(("iabc".to_owned(), port));
        assert_eq!(target("/", &[("e2b-sandbox-id", "iabc")]), there(ENVD));
        let both = [("e2b-sandbox-id", "iabc-old"), ("e2b-sandbox-port", "80")];
        assert_eq!(target("/", &both), there(80));
        assert_eq!(target("/", &[("host", "80-IABC.box.test:8443")]), there(80));
        assert_eq!(target("https://80-iabc.box.test:8443/", &[]), there(80));
        for other in [
            "80-iabc.evil.test",
            "box.test",
            "x-iabc.box.test",
            "80.box.test",
        ] {
            assert_eq!(target("/", &[("host", other)]), None, "{other}");
        }
    }
}
