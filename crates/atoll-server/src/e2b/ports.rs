//! Reverse proxy to ports of sandboxes: HTTP and upgraded connections. Access was checked before
//! ([`super::router`]).

mod credentials;

use std::future;

use atoll_core::{Core, SandboxAccess, SandboxRef};
use atoll_model::Error;
use atoll_model::runtime::PortConnection;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::error::E2bError;
use super::router::{self, PortCaller, Target};
use crate::AppState;
use crate::middleware::{FromSandbox, request_authority};
use crate::serve::{Connection, IdleExemption};

/// Hop-by-hop headers (RFC 9110).
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Forwards a request to a port and returns its response.
pub(super) async fn forward(
    State(app): State<AppState>,
    Extension(sandbox): Extension<SandboxRef>,
    Extension(Target { port, .. }): Extension<Target>,
    Extension(caller): Extension<PortCaller>,
    mut request: Request,
) -> Response {
    let id = sandbox.id().to_string();
    let connection = request.extensions().get::<Connection>().cloned();
    if let Some(connection) = &connection {
        if caller.context.is_some() || caller.by_token {
            connection.authenticate();
        } else if let Err(error) = connection.serve_visitor() {
            return E2bError::from(error).into_response();
        }
    }
    prepare_request(&sandbox, &mut request);
    let end_signal = stream_end(app.core.clone(), caller);
    let access = match sandbox.open().await {
        Ok(access) => access,
        Err(error) => return E2bError::from(error).into_response(),
    };
    let dialled = access.runtime().dial(access.id(), port).await;
    if let (Ok(stream), Some(connection)) = (&dialled, &connection)
        && let Err(error) = connection.check_descriptor(&**stream)
    {
        return E2bError::from(error).into_response();
    }
    match exchange(access, dialled, request, end_signal).await {
        Ok(mut response) => {
            response.extensions_mut().insert(FromSandbox);
            response
        }
        Err(failure) => {
            tracing::debug!(sandbox = id, port, %failure, "request to a port failed");
            router::port_closed(&id, port)
        }
    }
}

/// Completes when the caller's key becomes invalid or the server shuts down; never for callers
/// without a key.
async fn stream_end(core: Core, caller: PortCaller) {
    match caller.context {
        Some(caller) => {
            core.stream_end(&caller).await;
        }
        None => future::pending().await,
    }
}

async fn exchange(
    access: SandboxAccess,
    dialled: Result<Box<dyn PortConnection>, Error>,
    mut request: Request,
    end_signal: impl Future<Output = ()> + Send + 'static,
) -> Result<Response, String> {
    let stream = dialled.map_err(|error| error.message)?;
    let message = |error: hyper::Error| error.to_string();
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = connected.await.map_err(message)?;
    // Its errors also fail the request.
    tokio::spawn(connection.with_upgrades());
    let outside = request.extensions_mut().remove::<OnUpgrade>();
    // The program in the sandbox decides how slow a client may be.
    if let Some(exemption) = request.extensions().get::<IdleExemption>() {
        exemption.exempt();
    }
    let mut response = sender.send_request(request).await.map_err(message)?;
    let inside = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| hyper::upgrade::on(&mut response));
    strip_hop_by_hop(response.headers_mut());
    if let (Some(outside), Some(inside)) = (outside, inside) {
        tokio::spawn(async move {
            tokio::select! {
                () = copy_upgraded(access, outside, inside) => {}
                () = end_signal => {}
            }
        });
        return Ok(response.map(|_| Body::empty()));
    }
    // Each chunk counts as activity.
    Ok(response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            access.record_activity();
            frame
        }))
    }))
}

/// Converts a request for the connection to the sandbox: headers, credentials, path, version.
fn prepare_request(sandbox: &SandboxRef, request: &mut Request) {
    strip_hop_by_hop(request.headers_mut());
    // Programs expect the `Host` header, which HTTP/2 replaces by `:authority`.
    let host = request_authority(request.uri(), request.headers());
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(header::HOST, host);
    }
    credentials::strip_headers(sandbox, request.headers_mut());
    let path = request.uri().path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(credentials::strip_path(sandbox, path));
    *request.version_mut() = Version::HTTP_11;
}

/// Removes hop-by-hop headers, except an upgrade.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let upgrade = headers.get(header::UPGRADE).cloned();
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Copies an upgraded connection in both directions until either side closes.
async fn copy_upgraded(access: SandboxAccess, outside: OnUpgrade, inside: OnUpgrade) {
    let (Ok(outside), Ok(inside)) = tokio::join!(outside, inside) else {
        return;
    };
    let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
    let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
    drop(access);
}
