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

use crate::App;
use crate::error::Answer;
use crate::extract::Path;
use crate::middleware::Caller;
use crate::serve::Connection;
use crate::websocket::{self, Ends, Upgrade};
use crate::tunnel;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(dig))
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
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Vec<Port>>> {
    let used = app.core.enter(&caller, &id, Scope::Read).await?;
    let ports = used.runtime().ports(used.id()).await?;
    Ok(Json(ports.into_iter().map(Port::from).collect()))
}

fn number(port: &str) -> Result<u16, Error> {
    let number = port.parse().ok().filter(|port| *port != 0);
    number
        .ok_or_else(|| Error::invalid("port", format!("{port:?} is not a port"), "give 1 to 65535"))
}

/// Tunnel to a port
///
/// A WebSocket whose binary frames are the bytes of a TCP connection. Who comes without one is told what one would be told.
#[utoipa::path(get, path = "/sandboxes/{id}/ports/{port}/tunnel", operation_id = "tunnel",
    responses((status = 101, description = "The connection, as a WebSocket")))]
async fn dig(
    State(app): State<App>,
    Caller(caller): Caller,
    Path((id, port)): Path<(String, String)>,
    connection: Option<Extension<Connection>>,
    Upgrade(upgrade): Upgrade,
) -> Answer {
    let dialled = async {
        let port = number(&port)?;
        let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
        let stream = used.runtime().dial(used.id(), port).await?;
        if let Some(Extension(connection)) = connection {
            connection.check_descriptor(&stream)?;
        }
        Ok::<(Use, TcpStream), Error>((used, stream))
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
        .max_message_size(tunnel::LARGEST)
        .read_buffer_size(tunnel::MOST);
    let ends = Ends::of(&app, &caller);
    Ok(upgrade.on_upgrade(|socket| async {
        match dialled {
            Ok((used, stream)) => tunnel::join(socket, used, stream, ends).await,
            Err(error) => websocket::refuse(socket, &error).await,
        }
    }))
}
