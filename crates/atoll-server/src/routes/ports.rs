//! Ports of a sandbox's servers: which there are, and a way to them.

use std::net::{IpAddr, SocketAddr};

use atoll_core::Use;
use atoll_model::{Error, Scope};
use axum::extract::State;
use axum::{Extension, Json};
use serde::Serialize;
use tokio::net::TcpStream;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::Path;
use crate::serve::Connection;
use crate::tunnel;
use crate::websocket::{self, StreamEndSignal, Upgrade};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(open_tunnel))
}

/// Something that listens in a sandbox.
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
/// On which something listens.
#[utoipa::path(get, path = "/sandboxes/{id}/ports", responses((status = 200, body = [Port])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> ApiResult<Json<Vec<Port>>> {
    let access = app.core.enter(&caller, &id, Scope::Read).await?;
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
/// A WebSocket whose binary frames are the bytes of a TCP connection. Who comes without one is told what one would be told.
#[utoipa::path(get, path = "/sandboxes/{id}/ports/{port}/tunnel", operation_id = "tunnel",
    responses((status = 101, description = "The connection, as a WebSocket")))]
async fn open_tunnel(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, port)): Path<(String, String)>,
    connection: Option<Extension<Connection>>,
    Upgrade(upgrade): Upgrade,
) -> ApiResult {
    let dialled = async {
        let port = parse_port(&port)?;
        let access = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
        let stream = access.runtime().dial(access.id(), port).await?;
        if let Some(Extension(connection)) = connection {
            connection.check_descriptor(&stream)?;
        }
        Ok::<(Use, TcpStream), Error>((access, stream))
    };
    let dialled = dialled.await;
    let Some(upgrade) = upgrade else {
        dialled?;
        return Err(Error::invalid(
            "Upgrade",
            "a tunnel is a WebSocket, and this request is none",
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
