//! What listens on a port of a sandbox, for whoever asks: HTTP as it comes, and whatever it is upgraded to.

use atoll_core::{Door, Doorstep, Use};
use atoll_model::Error;
use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

use super::edge::{self, Target};
use super::refusal::Refusal;
use crate::guard::{Theirs, authority};
use crate::listen::{Connection, Silence};

/// What is said between two ends of one connection, and not to those behind.
const HOP: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// What is said to us: a sandbox must not learn it.
const OURS: [&str; 4] = [
    "e2b-traffic-access-token",
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "x-api-key",
];

/// Hands a request to a port, and its answer back.
pub(super) async fn forward(
    Extension(step): Extension<Doorstep>,
    Extension(Target { port, .. }): Extension<Target>,
    request: Request,
) -> Response {
    let id = step.id().to_string();
    let has_token = edge::shows_token(&step, Door::Ports, request.headers());
    if !step.serves_everybody() && !has_token {
        let message = "the sandbox serves only those who show its traffic access token";
        let body = json!({ "sandboxId": id, "message": message, "code": 403 });
        return (StatusCode::FORBIDDEN, Json(body)).into_response();
    }
    let connection = request.extensions().get::<Connection>().cloned();
    if let Some(connection) = &connection {
        if has_token {
            connection.authenticate();
        } else {
            connection.visit();
        }
    }
    let used = match step.enter().await {
        Ok(used) => used,
        Err(error) => return Refusal::from(error).into_response(),
    };
    let dialled = used.runtime().dial(used.id(), port).await;
    if let (Ok(stream), Some(connection)) = (&dialled, &connection)
        && let Err(error) = connection.check_descriptor(stream)
    {
        return Refusal::from(error).into_response();
    }
    match exchange(used, dialled, request).await {
        Ok(mut response) => {
            response.extensions_mut().insert(Theirs);
            response
        }
        Err(failure) => {
            tracing::debug!(sandbox = id, port, %failure, "a port did not answer");
            edge::port_closed(&id, port)
        }
    }
}

async fn exchange(
    used: Use,
    dialled: Result<TcpStream, Error>,
    mut request: Request,
) -> Result<Response, String> {
    let stream = dialled.map_err(|error| error.message)?;
    let said = |error: hyper::Error| error.to_string();
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = connected.await.map_err(said)?;
    // Its failure is the answer's.
    tokio::spawn(connection.with_upgrades());
    let outside = request.extensions_mut().remove::<OnUpgrade>();
    // How slow a client may be is up to the server inside.
    if let Some(silence) = request.extensions().get::<Silence>() {
        silence.allow();
    }
    inwards(&mut request);
    let mut response = sender.send_request(request).await.map_err(said)?;
    let inside = (response.status() == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| hyper::upgrade::on(&mut response));
    clear(response.headers_mut());
    if let (Some(outside), Some(inside)) = (outside, inside) {
        tokio::spawn(join(used, outside, inside));
        return Ok(response.map(|_| Body::empty()));
    }
    // The sandbox is in use until the answer is whole.
    Ok(response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            used.touch();
            frame
        }))
    }))
}

/// Makes a request one that comes from the next room.
fn inwards(request: &mut Request) {
    clear(request.headers_mut());
    // HTTP/2 names the host in the address; the servers inside look for the header.
    let host = authority(request.uri(), request.headers());
    if let Some(host) = host.and_then(|host| HeaderValue::from_str(&host).ok()) {
        request.headers_mut().insert(header::HOST, host);
    }
    for name in OURS {
        request.headers_mut().remove(name);
    }
    let path = request.uri().path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
}

/// Takes out what is for the next connection only; what a connection is to become stays.
fn clear(headers: &mut HeaderMap) {
    let upgrade = headers.get(header::UPGRADE).cloned();
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP) {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Carries bytes both ways for as long as both ends want.
async fn join(used: Use, outside: OnUpgrade, inside: OnUpgrade) {
    let (Ok(outside), Ok(inside)) = tokio::join!(outside, inside) else {
        return;
    };
    let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
    let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
    drop(used);
}
