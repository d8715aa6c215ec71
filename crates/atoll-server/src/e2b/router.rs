//! Sends what is for a sandbox there, if it may go.

mod access;
mod error_page;
mod target;

use std::sync::Arc;

use atoll_core::{Context, Door, Doorstep};
use atoll_model::{Error, SandboxId, SandboxState};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use serde_json::json;
use tower::ServiceExt as _;

use super::error::{Failed, Over, Refusal};
use super::{envd, ports};
use crate::middleware::{
    ClientAddress, Part, Theirs, authority, check_host, check_origin, host_of, watched,
};
use crate::sse::ended_on_notice;
use crate::{App, Config, cors};
use access::{Shown, Verdict, judge};
use target::{Astray, below, host};
pub(super) use target::{ENVD, Target};

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
            let mut admitted = router.layer(from_fn_with_state(app.clone(), admit));
            if part == Part::Port {
                admitted = admitted.layer(from_fn(error_page::for_people));
            } else if !app.config.origins.is_empty() {
                // Also before the door: what is asked before a call has none of its headers.
                admitted = admitted.layer(cors::cors(&app.config));
            }
            watched(admitted, app, part)
        };
        Self {
            config: Arc::clone(&app.config),
            envd: behind_the_door(envd::routes(app), Part::Envd),
            ports: behind_the_door(
                Router::new()
                    .fallback(ports::forward)
                    .with_state(app.clone()),
                Part::Port,
            ),
        }
    }
}

/// Sends what is for a sandbox there, before any route of ours is looked at.
pub(crate) async fn divert(State(edge): State<Edge>, mut request: Request, next: Next) -> Response {
    let target = match Target::of(&request, &edge.config.domains) {
        Ok(Some(target)) => Ok(target),
        Err(astray) => Err(astray),
        Ok(None) => {
            if host(&request).is_some_and(|host| edge.config.is_api_of_domain(&host)) {
                below_e2b(&mut request);
            }
            return next.run(request).await;
        }
    };
    let inside = match &target {
        Ok(target) if target.port != ENVD => edge.ports,
        _ => edge.envd,
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
    Extension(target): Extension<Result<Target, Astray>>,
    mut request: Request,
    next: Next,
) -> Response {
    let target = match target {
        Ok(target) => target,
        Err(Astray(message)) => {
            return Refusal::new(StatusCode::BAD_REQUEST, message).into_response();
        }
    };
    if let Err(error) = comes_rightly(&target, &request, &app.config) {
        return Refusal::from(error).into_response();
    }
    let found = match find(&app, &target, &request) {
        Ok(found) => found,
        Err(refusal) => return refusal.into_response(),
    };
    let shown = Shown::of(&app, &target, found.as_ref(), &request);
    let verdict = match judge(&app, target.port, found.as_ref(), shown).await {
        Ok(verdict) => verdict,
        Err(error) => return Refusal::from(error).into_response(),
    };
    let step = found.filter(|step| !matches!(verdict, Verdict::Unknown) && is_there(step));
    let Some(step) = step else {
        return not_found(target.sandbox.as_deref().unwrap_or_default());
    };
    let Verdict::Admitted(context) = verdict else {
        return token_missing(step.id().as_str());
    };
    tracing::Span::current().record("org", step.org().as_str());
    request.extensions_mut().insert(target);
    request.extensions_mut().insert(step.clone());
    request.extensions_mut().insert(CalledBy(context.clone()));
    let response = next.run(request).await;
    if ended_meanwhile(&step, &response) {
        return not_found(step.id().as_str());
    }
    match context {
        Some(context) => ended_on_notice(response, &app.core, &context),
        None => response,
    }
}

/// The sandbox that a request names, or whose token signed its link.
fn find(app: &App, target: &Target, request: &Request) -> Result<Option<Doorstep>, Refusal> {
    if let Some(id) = &target.sandbox {
        let id = id.parse::<SandboxId>().ok();
        return Ok(id.and_then(|id| app.core.doorstep(&id)));
    }
    let client = request.extensions().get::<ClientAddress>();
    let client = client.map(|ClientAddress(client)| *client);
    envd::signature::find(&app.core, client, request.method(), request.uri()).map(Some)
}

/// The key or ticket that admitted a request to a port; `None` where none was needed.
#[derive(Debug, Clone)]
pub(super) struct CalledBy(pub(super) Option<Context>);

/// Who does not name a sandbox by the host asks by a name of ours, as everybody does; commands and files are for pages
/// of listed origins only. Who may see what is served on a port is up to the program there.
fn comes_rightly(target: &Target, request: &Request, config: &Config) -> Result<(), Error> {
    let asked = authority(request.uri(), request.headers());
    let host = asked.as_deref().map(host_of).unwrap_or_default();
    if !target.by_host && !below("sandbox.", &host.to_ascii_lowercase(), &config.domains) {
        check_host(asked.as_deref(), config)?;
    }
    if target.port == ENVD {
        check_origin(request.headers(), asked.as_deref(), config)?;
    }
    Ok(())
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

fn token_missing(sandbox: &str) -> Response {
    let message = "the sandbox serves only those who show its traffic access token";
    let body = json!({ "sandboxId": sandbox, "message": message, "code": 403 });
    (StatusCode::FORBIDDEN, Json(body)).into_response()
}

/// Whether a request shows the token of a door.
pub(super) fn shows_token(step: &Doorstep, door: Door, headers: &HeaderMap) -> bool {
    header_value(headers, door.header()).is_some_and(|token| step.opens(door, token))
}

fn header_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
