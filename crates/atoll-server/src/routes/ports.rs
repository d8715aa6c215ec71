//! Ports of a sandbox's servers: which there are, and a way to them.

use std::net::SocketAddr;

use atoll_core::Use;
use atoll_model::{Error, Scope};
use axum::extract::{Path, State};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::App;
use crate::answer::Answer;
use crate::guard::Caller;
use crate::socket::{self, Upgrade};
use crate::tunnel;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes/{id}/ports", get(list))
        .route("/sandboxes/{id}/ports/{port}/tunnel", get(dig))
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Answer<Json<Vec<Value>>> {
    let used = app.core.enter(&caller, &id, Scope::Read).await?;
    let ports = used.runtime().ports(used.id()).await?;
    let view = |at: SocketAddr| json!({ "port": at.port(), "address": at.ip().to_string() });
    Ok(Json(ports.into_iter().map(view).collect()))
}

fn number(port: &str) -> Result<u16, Error> {
    let number = port.parse().ok().filter(|port| *port != 0);
    number
        .ok_or_else(|| Error::invalid("port", format!("{port:?} is not a port"), "give 1 to 65535"))
}

/// Whoever does not come with a WebSocket is told what one would be told, before anything is begun.
async fn dig(
    State(app): State<App>,
    Caller(caller): Caller,
    Path((id, port)): Path<(String, String)>,
    Upgrade(upgrade): Upgrade,
) -> Answer {
    let dialled = async {
        let port = number(&port)?;
        let used = app.core.enter(&caller, &id, Scope::Sandboxes).await?;
        let stream = used.runtime().dial(used.id(), port).await?;
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
    let upgrade = upgrade.max_message_size(tunnel::LARGEST);
    Ok(upgrade.on_upgrade(|socket| async {
        match dialled {
            Ok((used, stream)) => tunnel::join(socket, used, stream).await,
            Err(error) => socket::refuse(socket, &error).await,
        }
    }))
}
