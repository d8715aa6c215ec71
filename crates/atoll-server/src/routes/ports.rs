//! Ports that are listened on in a sandbox, and TCP tunnels to them.

use std::net::{IpAddr, SocketAddr};

use atoll_core::SandboxAccess;
use atoll_model::runtime::PortConnection;
use atoll_model::{Error, Scope};
use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_types::Time;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{JsonBody, Path};
use crate::middleware::{ServerUrl, host_of};
use crate::serve::Connection;
use crate::tunnel;
use crate::websocket::{self, StreamEndSignal, Upgrade};
use crate::{AppState, e2b};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(open_tunnel))
        .routes(routes!(sign))
}

/// A listening socket in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
struct Port {
    port: u16,
    #[schema(value_type = String)]
    address: IpAddr,
}

impl From<SocketAddr> for Port {
    fn from(at: SocketAddr) -> Self {
        Self {
            port: at.port(),
            address: at.ip(),
        }
    }
}

/// List ports
///
/// Lists listening ports. Resumes a paused sandbox.
#[utoipa::path(get, path = "/sandboxes/{id}/ports", responses((status = 200, body = [Port])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<Json<Vec<Port>>> {
    let access = app.access.open(&caller, &id, Scope::Read).await?;
    let ports = access.runtime().ports(access.id()).await?;
    Ok(Json(ports.into_iter().map(Port::from).collect()))
}

fn parse_port(port: &str) -> Result<u16, Error> {
    let parsed = port.parse().ok().filter(|port| *port != 0);
    parsed
        .ok_or_else(|| Error::invalid("port", format!("{port:?} is not a port"), "give 1 to 65535"))
}

/// Tunnel to a port
///
/// A WebSocket whose binary frames carry the bytes of a TCP connection. A plain `GET` returns the
/// error that the WebSocket would close with, as JSON.
#[utoipa::path(get, path = "/sandboxes/{id}/ports/{port}/tunnel", operation_id = "tunnel",
    responses((status = 101, description = "The tunnel, as a WebSocket")))]
async fn open_tunnel(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, port)): Path<(String, String)>,
    connection: Option<Extension<Connection>>,
    Upgrade(upgrade): Upgrade,
) -> ApiResult {
    let dialled = async {
        let port = parse_port(&port)?;
        let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
        let stream = access.runtime().dial(access.id(), port).await?;
        if let Some(Extension(connection)) = connection {
            connection.check_descriptor(&*stream)?;
        }
        Ok::<(SandboxAccess, Box<dyn PortConnection>), Error>((access, stream))
    };
    let dialled = dialled.await;
    let Some(upgrade) = upgrade else {
        dialled?;
        return Err(Error::invalid(
            "Upgrade",
            "this route requires a WebSocket upgrade",
            "connect with ws://…/ports/PORT/tunnel",
        )
        .into());
    };
    let upgrade = upgrade
        .max_message_size(tunnel::MAX_MESSAGE_BYTES)
        .read_buffer_size(tunnel::CHUNK_BYTES);
    let end_signal = StreamEndSignal::new(&app, &caller);
    Ok(upgrade.on_upgrade(|socket| async {
        match dialled {
            Ok((access, stream)) => tunnel::run(socket, access, stream, end_signal).await,
            Err(error) => websocket::close_with_error(socket, &error).await,
        }
    }))
}

/// Lifetime of a signed link without `expiresIn`, in seconds.
const DEFAULT_EXPIRES_IN: u32 = 3600;

/// The lifetime of a signed link to a port.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"expiresIn": 60}))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewPortLink {
    /// In seconds.
    #[schema(minimum = 1, maximum = 86400, default = 3600)]
    expires_in: Option<u32>,
}

/// A signed link: it permits the use of one port until a time, without a key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct PortLink {
    /// `null` if the server has no domain for ports (setting `domain`).
    url: Option<String>,
    /// The same permission for requests by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`: sent as
    /// `E2b-Traffic-Access-Token`.
    token: String,
    expires_at: Time,
}

/// Create a signed link to a port
///
/// The link permits the use of this port without a key until it expires. The first response over it sets a cookie, so that a
/// browser's further requests to the port are permitted too.
#[utoipa::path(post, path = "/sandboxes/{id}/ports/{port}/url", operation_id = "create_port_url", request_body = NewPortLink,
    responses((status = 200, body = PortLink)))]
async fn sign(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, port)): Path<(String, String)>,
    ServerUrl(server): ServerUrl,
    JsonBody(request): JsonBody<NewPortLink>,
) -> ApiResult<Json<PortLink>> {
    let port = parse_port(&port)?;
    if port == e2b::ENVD {
        let message = format!("port {port} is the server's own");
        return Err(Error::invalid("port", message, "use an access token for it").into());
    }
    let seconds = request.expires_in.unwrap_or(DEFAULT_EXPIRES_IN);
    let link = app.core.sign_port_link(&caller, &id, port, seconds)?;
    let url = url(&app, &server, &format!("{port}-{}", link.sandbox));
    Ok(Json(PortLink {
        url: url.map(|url| format!("{url}/?{}={}", e2b::LINK, link.secret)),
        token: link.secret,
        expires_at: Time::new(link.expires.saturating_mul(1_000_000)),
    }))
}

/// Base URL of a port: below the domain under which the client reached this server, or the first
/// one.
fn url(app: &AppState, server: &str, label: &str) -> Option<String> {
    let (scheme, authority) = server.split_once("://")?;
    let host = host_of(authority);
    let is_below = |domain: &&String| host == *domain || host.ends_with(&format!(".{domain}"));
    let domains = &app.config.domains;
    let domain = domains.iter().find(is_below).or(domains.first())?;
    // Behind the brackets of an IPv6 address.
    let rest = authority.rsplit(']').next().unwrap_or_default();
    let port = rest.rsplit_once(':').map(|(_, port)| format!(":{port}"));
    Some(format!(
        "{scheme}://{label}.{domain}{}",
        port.unwrap_or_default()
    ))
}
