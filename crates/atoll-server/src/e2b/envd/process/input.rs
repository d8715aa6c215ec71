//! Input of a process: one message, a stream of messages, and its end.

use atoll_core::SandboxRef;
use atoll_model::runtime::ExecHandle;
use axum::body::Body;
use axum::response::Response;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ProcessSelector, SelectedProcess};
use crate::e2b::connect_rpc::{self, ConnectError, RequestStream, Unary};
use crate::serve::IdleExemption;

/// Input for a process, in base64.
#[derive(Debug, Deserialize)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

impl Input {
    async fn write(&self, exec: &dyn ExecHandle) -> Result<(), ConnectError> {
        let data = self.stdin.as_ref().or(self.pty.as_ref());
        let bytes = STANDARD.decode(data.map_or("", String::as_str));
        let bytes =
            bytes.map_err(|_| ConnectError::new("invalid_argument", "input is not base64"))?;
        let on_terminal = exec.info().await?.spec.terminal.is_some();
        if on_terminal != self.pty.is_some() && data.is_some() {
            let message = if on_terminal {
                "the process has a terminal: send pty input"
            } else {
                "the process has no terminal: send stdin input"
            };
            return Err(ConnectError::new("internal", message));
        }
        Ok(exec.write_stdin(&bytes).await?)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct SendInput {
    process: ProcessSelector,
    input: Input,
}

pub(super) async fn send_input(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<SendInput>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let exec = request.process.find(&access).await?;
    request.input.write(&*exec).await?;
    Ok(Json(json!({})))
}

/// Message of an input stream.
#[derive(Debug, Deserialize)]
struct InputMessage {
    start: Option<SelectedProcess>,
    data: Option<InputData>,
    /// Keepalive; has no effect.
    #[serde(default, rename = "keepalive")]
    _keepalive: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct InputData {
    input: Input,
}

pub(super) async fn stream_input(
    Extension(sandbox): Extension<SandboxRef>,
    Extension(exemption): Extension<IdleExemption>,
    body: Body,
) -> Response {
    // Interactive input may pause for any time.
    exemption.exempt();
    match take_input(&sandbox, body).await {
        Ok(()) => connect_rpc::stream(futures_util::stream::iter([
            Ok(connect_rpc::message(&json!({}))),
            Ok(connect_rpc::end_of_stream()),
        ])),
        Err(error) => error.stream(),
    }
}

async fn take_input(sandbox: &SandboxRef, body: Body) -> Result<(), ConnectError> {
    let access = sandbox.open().await?;
    let mut call = RequestStream::new(body);
    let mut process = None;
    while let Some(piece) = call.next::<InputMessage>().await? {
        access.record_activity();
        if let Some(start) = piece.start {
            process = Some(start.process.find(&access).await?);
        }
        if let Some(data) = piece.data {
            let unknown =
                || ConnectError::new("invalid_argument", "input before the start message");
            let process = process.as_ref().ok_or_else(unknown)?;
            data.input.write(&**process).await?;
        }
    }
    Ok(())
}

pub(super) async fn close_stdin(
    Extension(sandbox): Extension<SandboxRef>,
    Unary(request): Unary<SelectedProcess>,
) -> Result<Json<Value>, ConnectError> {
    let access = sandbox.open().await?;
    let exec = request.process.find(&access).await?;
    exec.close_stdin().await?;
    Ok(Json(json!({})))
}
