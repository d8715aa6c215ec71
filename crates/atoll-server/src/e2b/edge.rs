//! Which requests are for a sandbox and not for us, for which one, and for which of its ports.

use std::collections::BTreeSet;

use atoll_core::{Door, Doorstep};
use atoll_model::{SandboxId, SandboxState};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use tower::ServiceExt as _;

use super::{envd, ports};
use crate::App;
use crate::guard::authority;

/// Where E2B's own daemon listens: here it is this server.
pub(super) const ENVD: u16 = 49983;

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    sandbox: String,
    port: u16,
}

impl Target {
    /// By headers, or by a host name `PORT-ID.…` of one of our domains.
    fn of(request: &Request, domains: &BTreeSet<String>) -> Option<Self> {
        let headers = request.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(sandbox) = text("e2b-sandbox-id") {
            let port = text("e2b-sandbox-port").map_or(Some(ENVD), |port| port.parse().ok());
            // What is not a port is none that is open.
            return Some(Self::new(sandbox, port.unwrap_or(0)));
        }
        let host = authority(request.uri(), headers)?.to_ascii_lowercase();
        let host = host.split(':').next()?;
        let (label, domain) = host.split_once('.')?;
        let (port, sandbox) = label.split_once('-')?;
        let known = domains.contains(domain);
        known.then(|| Some(Self::new(sandbox, port.parse().ok()?)))?
    }

    /// Older clients write more behind the id.
    fn new(sandbox: &str, port: u16) -> Self {
        let sandbox = sandbox.split('-').next().unwrap_or_default();
        Self {
            sandbox: sandbox.to_owned(),
            port,
        }
    }
}

/// What stands before every route.
#[derive(Debug, Clone)]
pub(crate) struct Edge {
    app: App,
    envd: Router,
}

impl Edge {
    pub(crate) fn new(app: &App) -> Self {
        Self {
            app: app.clone(),
            envd: envd::routes(app),
        }
    }
}

/// Sends what is for a sandbox there, before any route of ours is looked at.
pub(crate) async fn divert(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    let Edge { app, envd } = edge;
    let Some(target) = Target::of(&request, &app.config.domains) else {
        let signed = envd::signature::find(&app.core, request.method(), request.uri());
        return match signed {
            Some(Ok(step)) if is_there(&step) => enter(envd, step, request).await,
            Some(Ok(step)) => not_found(step.id().as_str()),
            Some(Err(refusal)) => refusal.into_response(),
            None => next.run(request).await,
        };
    };
    let id = target.sandbox.parse::<SandboxId>();
    let found = id.ok().and_then(|id| app.core.doorstep(&id));
    let Some(step) = found.filter(is_there) else {
        return not_found(&target.sandbox);
    };
    if target.port == ENVD {
        return enter(envd, step, request).await;
    }
    ports::forward(step, target.port, request).await
}

async fn enter(envd: Router, step: Doorstep, mut request: Request) -> Response {
    request.extensions_mut().insert(step);
    envd.oneshot(request).await.into_response()
}

/// Running, or going to run because of this.
fn is_there(step: &Doorstep) -> bool {
    match step.state() {
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
        Some((found.sandbox, found.port))
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
