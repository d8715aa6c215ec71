//! Output and input of a command over a WebSocket. The first byte of a binary frame is its type.

use atoll_core::SandboxAccess;
use atoll_model::runtime::{ExecHandle, OutputStream};
use atoll_model::{Error, OutputChunk, Stream};
use axum::extract::ws::{Message, WebSocket};

use super::{
    Keepalive, PendingInput, StreamEndSignal, close, close_on_protocol_error, close_with_error,
};
use crate::api_types::Exit;

/// Meaning of the first byte of a frame.
mod frame_type {
    pub(super) const STDIN: u8 = 0;
    pub(super) const STDOUT: u8 = 1;
    pub(super) const STDERR: u8 = 2;
    pub(super) const EXIT: u8 = 3;
    pub(super) const LIVE: u8 = 4;
}

/// Sends the output of a command from a position on, and accepts its input. The first byte of a
/// binary frame is its type; gaps are reported as text frames.
pub(crate) async fn output(
    mut socket: WebSocket,
    access: SandboxAccess,
    exec: Box<dyn ExecHandle>,
    after: u64,
    mut end_signal: StreamEndSignal,
) {
    let (mut reader, end) = match open_output(&*exec, after).await {
        Ok(opened) => opened,
        Err(error) => return close_with_error(socket, &error).await,
    };
    let mut live = false;
    let (mut keepalive, mut input) = (Keepalive::new(), PendingInput::default());
    loop {
        if !live && reader.position() >= end {
            live = true;
            if socket
                .send(Message::Binary(vec![frame_type::LIVE].into()))
                .await
                .is_err()
            {
                return;
            }
        }
        tokio::select! {
            chunk = reader.next() => {
                access.record_activity();
                let (message, over) = match chunk {
                    Ok(Some(OutputChunk::Data { stream, bytes, .. })) => {
                        let mut frame = Vec::with_capacity(bytes.len() + 1);
                        frame.push(match stream {
                            Stream::Stdout => frame_type::STDOUT,
                            Stream::Stderr => frame_type::STDERR,
                        });
                        frame.extend_from_slice(&bytes);
                        (Message::Binary(frame.into()), false)
                    }
                    Ok(Some(OutputChunk::Gap { from, to })) => {
                        let text = serde_json::json!({ "type": "gap", "from": from, "to": to });
                        (Message::Text(text.to_string().into()), false)
                    }
                    Ok(Some(OutputChunk::Exit(status))) => {
                        let mut frame = vec![frame_type::EXIT];
                        let _ = serde_json::to_writer(&mut frame, &Exit::from(status));
                        (Message::Binary(frame.into()), true)
                    }
                    Ok(None) => return close(socket, 1000, "over").await,
                    Err(error) => return close_with_error(socket, &error).await,
                };
                if socket.send(message).await.is_err() {
                    return;
                }
                if over {
                    return close(socket, 1000, "exited").await;
                }
            }
            (code, reason) = end_signal.close_reason() => return close(socket, code, &reason).await,
            done = input.completed() => {
                keepalive.received();
                if let Err(error) = done {
                    return close_with_error(socket, &error).await;
                }
            }
            received = socket.recv(), if input.is_idle() => {
                keepalive.received();
                match received {
                    Some(Ok(Message::Binary(frame))) => {
                        let done = match frame.split_first() {
                            Some((&frame_type::STDIN, [])) => exec.close_stdin().await,
                            Some((&frame_type::STDIN, _)) => {
                                input.begin(&access, &*exec, frame.slice(1..));
                                Ok(())
                            }
                            _ => Err(Error::invalid(
                                "frame",
                                "a binary frame must begin with byte 0, followed by input",
                                "send 0 alone to close the input",
                            )),
                        };
                        if let Err(error) = done {
                            return close_with_error(socket, &error).await;
                        }
                    }
                    Some(Err(error)) => return close_on_protocol_error(socket, error).await,
                    Some(Ok(Message::Close(_))) | None => return,
                    Some(Ok(_)) => {}
                }
            }
            () = tokio::time::sleep_until(keepalive.next_check()) => {
                if !keepalive.ping(&mut socket, input.is_idle()).await {
                    return;
                }
            }
        }
    }
}

/// Opens the output of a command. Also returns the position at which the client has caught up with the output written
/// so far.
async fn open_output(
    exec: &dyn ExecHandle,
    after: u64,
) -> Result<(Box<dyn OutputStream>, u64), Error> {
    let reader = exec.output(after).await?;
    Ok((reader, exec.output_range().await?.1))
}
