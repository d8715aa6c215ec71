//! A terminal over a WebSocket: binary frames are input and output, text frames control messages.

use atoll_core::SandboxAccess;
use atoll_model::runtime::ExecHandle;
use atoll_model::{Code, Error, OutputChunk, SandboxState, TerminalSize};
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use serde::Deserialize;

use super::{
    Keepalive, PendingInput, StreamEndSignal, close, close_on_protocol_error, close_with_error,
};

/// Largest frame of terminal output. A WebSocket keeps a write buffer of the size of its largest
/// frame.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// Text message of a terminal client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum TerminalMessage {
    Resize { cols: u16, rows: u16 },
    Ping,
}

/// Connects a client to a terminal: first a replay of the screen, then output. Binary frames are
/// input and output. Text frames are control messages if they parse as such, and input otherwise.
pub(crate) async fn terminal(
    mut socket: WebSocket,
    access: SandboxAccess,
    exec: Box<dyn ExecHandle>,
    mut end_signal: StreamEndSignal,
) {
    let attachment = match exec.attach().await {
        Ok(attachment) => attachment,
        Err(error) => return close_with_error(socket, &error).await,
    };
    let mut output = attachment.output;
    if send_output(&mut socket, attachment.replay).await.is_err() {
        return;
    }
    let (mut keepalive, mut input) = (Keepalive::new(), PendingInput::default());
    loop {
        tokio::select! {
            chunk = output.next() => match chunk {
                Ok(Some(OutputChunk::Data { bytes, .. })) => {
                    access.record_activity();
                    if send_output(&mut socket, bytes).await.is_err() {
                        return;
                    }
                }
                // The client is too slow: skip the missed output and replay the screen.
                Ok(Some(OutputChunk::Gap { .. })) => match exec.attach().await {
                    Ok(attachment) => {
                        output = attachment.output;
                        if send_output(&mut socket, attachment.replay).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => return close_with_error(socket, &error).await,
                },
                Ok(Some(OutputChunk::Exit(_)) | None) => return close_after_exit(socket, &access).await,
                Err(error) => return close_with_error(socket, &error).await,
            },
            (code, reason) = end_signal.close_reason() => return close(socket, code, &reason).await,
            done = input.completed() => {
                keepalive.received();
                if let Err(error) = ignore_stdin_closed(done) {
                    return close_with_error(socket, &error).await;
                }
            }
            received = socket.recv(), if input.is_idle() => {
                keepalive.received();
                access.record_activity();
                let done = match received {
                    Some(Ok(Message::Binary(keys))) => {
                        input.begin(&access, &*exec, keys);
                        Ok(())
                    }
                    Some(Ok(Message::Text(text))) => match serde_json::from_str::<TerminalMessage>(&text) {
                        Ok(TerminalMessage::Resize { cols, rows }) => exec.resize(clamp_size(cols, rows)).await,
                        Ok(TerminalMessage::Ping) => Ok(()),
                        Err(_) => {
                            input.begin(&access, &*exec, text.into());
                            Ok(())
                        }
                    },
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
                    Some(Err(error)) => return close_on_protocol_error(socket, error).await,
                    Some(Ok(Message::Close(_))) | None => return,
                };
                if let Err(error) = ignore_stdin_closed(done) {
                    return close_with_error(socket, &error).await;
                }
            },
            () = tokio::time::sleep_until(keepalive.next_check()) => {
                if !keepalive.ping(&mut socket, input.is_idle()).await {
                    return;
                }
            }
        }
    }
}

/// Sends terminal output in frames of bounded size.
async fn send_output(socket: &mut WebSocket, bytes: impl Into<Bytes>) -> Result<(), axum::Error> {
    let mut rest = bytes.into();
    while !rest.is_empty() {
        let frame = rest.split_to(rest.len().min(MAX_FRAME_BYTES));
        socket.send(Message::Binary(frame)).await?;
    }
    Ok(())
}

/// Input for a process that has just exited is not an error.
fn ignore_stdin_closed(done: Result<(), Error>) -> Result<(), Error> {
    done.or_else(|error| match error.code {
        Code::StdinClosed => Ok(()),
        _ => Err(error),
    })
}

/// Closes after the process has exited, by itself or with its sandbox.
async fn close_after_exit(socket: WebSocket, access: &SandboxAccess) {
    let is = access.runtime().get(access.id()).await;
    let has_processes = |state| matches!(state, SandboxState::Running | SandboxState::Paused);
    if is.is_ok_and(|info| has_processes(info.state)) {
        return close(socket, 1000, "exited").await;
    }
    close_with_error(socket, &SandboxState::Stopped.state_error("used")).await;
}

/// Clamps a size to the supported range.
pub(crate) fn clamp_size(columns: u16, rows: u16) -> TerminalSize {
    TerminalSize {
        rows: rows.clamp(1, 500),
        columns: columns.clamp(1, 500),
    }
}
