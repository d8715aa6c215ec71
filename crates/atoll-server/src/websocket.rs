//! WebSockets for terminals and command output.
//!
//! Browsers report a rejected upgrade only as "failed". The server therefore accepts the upgrade
//! and reports the error by its close code. Pages of other origins get 403 or 421 before that.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use atoll_core::{RequestContext, SandboxAccess, StreamEnd};
use atoll_model::{Code, Error, OutputChunk, SandboxState, Stream, TerminalSize};
use atoll_worker::ExecHandle;
use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::http::{Request, header};
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::upgrade::OnUpgrade;
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Error as WireError;
use tokio_tungstenite::tungstenite::error::ProtocolError;

use crate::AppState;
use crate::api_types::Exit;
use crate::error::ErrorBody;

/// Interval of pings, which keep idle connections open in proxies.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout for a pong.
pub(crate) const PONG_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for sending a close frame.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which incoming frames are still read after a close frame.
const CLOSE_DRAIN: Duration = Duration::from_secs(2);
/// Largest message from a client. It is buffered in memory.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Read buffer of an open WebSocket. Larger messages get a buffer of their own.
const READ_BUFFER: usize = 4 << 10;
/// Largest frame of terminal output. A WebSocket keeps a write buffer of the size of its largest
/// frame.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// Upgrade request, if the request is one.
pub(crate) struct Upgrade(pub(crate) Option<WebSocketUpgrade>);

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        Ok(Self(upgrade.ok().map(with_limits)))
    }
}

/// Limits the memory of one WebSocket.
fn with_limits(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_frame_size(MAX_MESSAGE_BYTES)
        .max_message_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER)
}

/// Upgrade request, kept for the case that the request is rejected before its handler runs.
pub(crate) struct PendingUpgrade(Parts);

impl PendingUpgrade {
    pub(crate) fn from_request<B>(request: &Request<B>) -> Option<Self> {
        let to = request.headers().get(header::UPGRADE)?;
        let socket = to.as_bytes().eq_ignore_ascii_case(b"websocket");
        let upgrade = request.extensions().get::<OnUpgrade>();
        let upgrade = upgrade.filter(|_| socket)?.clone();
        let mut parts = Request::new(()).into_parts().0;
        parts.method = request.method().clone();
        parts.version = request.version();
        parts.headers = request.headers().clone();
        parts.extensions.insert(upgrade);
        Some(Self(parts))
    }

    /// Accepts the upgrade and closes with the response's error. If the upgrade fails, returns the
    /// response.
    pub(crate) async fn reject(mut self, response: Response) -> Response {
        let Some(failure) = response.extensions().get::<ErrorBody>().cloned() else {
            return response;
        };
        let upgrade = WebSocketUpgrade::from_request_parts(&mut self.0, &()).await;
        let Ok(upgrade) = upgrade else {
            return response;
        };
        tracing::info!(code = failure.code(), "WebSocket upgrade rejected");
        with_limits(upgrade).on_upgrade(async move |socket| {
            close(socket, failure.close_code(), failure.message()).await;
        })
    }
}

/// Completes when an open stream must end: the server shuts down, or the caller's key became
/// invalid.
pub(crate) struct StreamEndSignal(Pin<Box<dyn Future<Output = StreamEnd> + Send>>);

impl StreamEndSignal {
    pub(crate) fn new(app: &AppState, caller: &RequestContext) -> Self {
        let (core, caller) = (app.core.clone(), caller.clone());
        Self(Box::pin(async move { core.stream_end(&caller).await }))
    }

    /// Waits for the signal; returns close code and reason.
    pub(crate) async fn close_reason(&mut self) -> (u16, String) {
        let notice = (&mut self.0).await;
        let error = notice.error();
        match notice {
            StreamEnd::KeyInvalid => (error.code.close_code(), error.message),
            StreamEnd::Shutdown => (GOING_AWAY, error.message),
        }
    }
}

/// Close code for a server shutdown (RFC 6455).
const GOING_AWAY: u16 = 1001;

/// Closes with an error.
pub(crate) async fn close_with_error(socket: WebSocket, error: &Error) {
    close(socket, error.code.close_code(), &error.message).await;
}

/// Closes after a protocol error of the client; does nothing if the client has disconnected.
async fn close_on_protocol_error(socket: WebSocket, error: axum::Error) {
    if let Some((code, reason)) = protocol_close_code(error) {
        close(socket, code, reason).await;
    }
}

/// Close code and reason (RFC 6455) for a protocol error; `None` if the client has disconnected.
pub(crate) fn protocol_close_code(error: axum::Error) -> Option<(u16, &'static str)> {
    let error = error.into_inner().downcast::<WireError>().ok()?;
    match *error {
        WireError::Capacity(_) => Some((1009, "a message is too large")),
        WireError::Utf8(_) => Some((1007, "a text frame is not UTF-8")),
        WireError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        WireError::Protocol(_) => Some((1002, "a frame violates the WebSocket protocol")),
        _ => None,
    }
}

/// Sends a close frame and then reads for a while: closing a TCP connection with unread data
/// discards data in flight to the client, including the close frame.
async fn close(mut socket: WebSocket, code: u16, reason: &str) {
    let sent = timeout(CLOSE_TIMEOUT, socket.send(close_frame(code, reason))).await;
    if sent.is_ok_and(|sent| sent.is_ok()) {
        let drained = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = timeout(CLOSE_DRAIN, drained).await;
    }
}

/// Close frame with a truncated reason.
pub(crate) fn close_frame(code: u16, reason: &str) -> Message {
    // RFC 6455 allows 123 bytes.
    let mut end = reason.len().min(123);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let frame = CloseFrame {
        code,
        reason: reason[..end].into(),
    };
    Message::Close(Some(frame))
}

/// Ping timer of a connection.
struct Keepalive {
    last_received: Instant,
    ping_sent: bool,
}

impl Keepalive {
    fn new() -> Self {
        Self {
            last_received: Instant::now(),
            ping_sent: false,
        }
    }

    fn received(&mut self) {
        (self.last_received, self.ping_sent) = (Instant::now(), false);
    }

    fn next_check(&self) -> Instant {
        self.last_received
            + if self.ping_sent {
                PING_INTERVAL + PONG_TIMEOUT
            } else {
                PING_INTERVAL
            }
    }

    /// Sends a ping; returns `false` if the last one was not answered in time. While incoming
    /// frames are not read, no pong is expected.
    async fn ping(&mut self, socket: &mut WebSocket, listening: bool) -> bool {
        if !listening {
            self.received();
        } else if self.ping_sent {
            return false;
        } else {
            self.ping_sent = true;
        }
        socket.send(Message::Ping(Bytes::new())).await.is_ok()
    }
}

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
    exec: ExecHandle,
    mut end_signal: StreamEndSignal,
) {
    let attachment = match exec.attach() {
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
                Ok(Some(OutputChunk::Gap { .. })) => match exec.attach() {
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
                        input.begin(&access, &exec, keys);
                        Ok(())
                    }
                    Some(Ok(Message::Text(text))) => match serde_json::from_str::<TerminalMessage>(&text) {
                        Ok(TerminalMessage::Resize { cols, rows }) => exec.resize(clamp_size(cols, rows)),
                        Ok(TerminalMessage::Ping) => Ok(()),
                        Err(_) => {
                            input.begin(&access, &exec, text.into());
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

/// Input that is being written to the process. Meanwhile no further frames are read, but output is
/// still sent: the process may wait for its output to be read.
#[derive(Default)]
struct PendingInput<'a>(Option<BoxFuture<'a, Result<(), Error>>>);

impl<'a> PendingInput<'a> {
    fn begin(&mut self, access: &'a SandboxAccess, exec: &'a ExecHandle, keys: Bytes) {
        self.0 = Some(Box::pin(async move {
            // Input resumes a paused sandbox.
            access.resume_if_paused().await?;
            exec.write_stdin(&keys).await
        }));
    }

    fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Result of the write, when it has finished.
    async fn completed(&mut self) -> Result<(), Error> {
        let Some(input) = &mut self.0 else {
            return std::future::pending().await;
        };
        let done = input.await;
        self.0 = None;
        done
    }
}

/// Closes after the process has exited, by itself or with its sandbox.
async fn close_after_exit(socket: WebSocket, access: &SandboxAccess) {
    let is = access.runtime().get(access.id()).map(|info| info.state);
    let lives = |state| matches!(state, SandboxState::Running | SandboxState::Paused);
    if lives(access.state()) && is.is_ok_and(lives) {
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
    exec: ExecHandle,
    after: u64,
    mut end_signal: StreamEndSignal,
) {
    let mut reader = exec.output(after);
    // Position at which the client has caught up with the output written so far.
    let end = exec.output_range().1;
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
                            Some((&frame_type::STDIN, [])) => exec.close_stdin(),
                            Some((&frame_type::STDIN, _)) => {
                                input.begin(&access, &exec, frame.slice(1..));
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
