//! WebSockets: a terminal, or a command's output, for as long as somebody is there.
//!
//! Browsers show a refused upgrade as nothing but "failed". So an upgrade is accepted, and what is wrong is said
//! by the close code of the table of errors. A page that may not ask at all gets 403 or 421 before that.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use atoll_core::{Context, Notice, Use};
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

/// A word now and then, so that nobody in between takes the silence for the end.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Whoever does not response it for so long is gone.
pub(crate) const PONG_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a last word may take.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one may take to response it.
const CLOSE_DRAIN: Duration = Duration::from_secs(2);
/// The longest message a client may send: it is in our memory until it is whole.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Read buffer of a WebSocket, for as long as it is open. A larger message gets a buffer of its own size.
const READ_BUFFER: usize = 4 << 10;
/// Largest frame of terminal output. A WebSocket keeps its write buffer, which has the size of the largest frame that was sent.
const MAX_FRAME_BYTES: usize = 8 << 10;

/// A request to go on as a WebSocket, if it is one.
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

/// A request to go on as a WebSocket, kept for the case that it is refused before it gets to one.
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

    /// Goes on as one, to say what went wrong; if that cannot be, the response stays what it is.
    pub(crate) async fn reject(mut self, response: Response) -> Response {
        let Some(failure) = response.extensions().get::<ErrorBody>().cloned() else {
            return response;
        };
        let upgrade = WebSocketUpgrade::from_request_parts(&mut self.0, &()).await;
        let Ok(upgrade) = upgrade else {
            return response;
        };
        tracing::info!(code = failure.code(), "an upgrade is refused");
        with_limits(upgrade).on_upgrade(async move |socket| {
            close(socket, failure.close_code(), failure.message()).await;
        })
    }
}

/// Ends what has no end of its own: the server does, or the key is worth nothing any more.
pub(crate) struct StreamEndSignal(Pin<Box<dyn Future<Output = Notice> + Send>>);

impl StreamEndSignal {
    pub(crate) fn new(app: &AppState, caller: &Context) -> Self {
        let (core, caller) = (app.core.clone(), caller.clone());
        Self(Box::pin(async move { core.notice(&caller).await }))
    }

    /// How a WebSocket is told, when it is so far.
    pub(crate) async fn close_reason(&mut self) -> (u16, String) {
        let notice = (&mut self.0).await;
        let error = notice.error();
        match notice {
            Notice::Revoked => (error.code.close_code(), error.message),
            Notice::Ending => (GOING_AWAY, error.message),
        }
    }
}

/// The server ends.
const GOING_AWAY: u16 = 1001;

/// Says what went wrong, and ends.
pub(crate) async fn close_with_error(socket: WebSocket, error: &Error) {
    close(socket, error.code.close_code(), &error.message).await;
}

/// Ends with a client whose words cannot be taken, and says why; nothing is said to one that is gone.
async fn close_on_protocol_error(socket: WebSocket, error: axum::Error) {
    if let Some((code, reason)) = protocol_close_code(error) {
        close(socket, code, reason).await;
    }
}

/// What is wrong with what a client sends, by the codes that all WebSockets have for it; nothing if it is gone.
pub(crate) fn protocol_close_code(error: axum::Error) -> Option<(u16, &'static str)> {
    let error = error.into_inner().downcast::<WireError>().ok()?;
    match *error {
        WireError::Capacity(_) => Some((1009, "a message is longer than is taken")),
        WireError::Utf8(_) => Some((1007, "a text is not UTF-8")),
        WireError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        WireError::Protocol(_) => Some((1002, "a frame is not as WebSockets have them")),
        _ => None,
    }
}

/// Says the end, and listens for a while: a connection that is closed with a client's words unread takes back what it was
/// told last.
async fn close(mut socket: WebSocket, code: u16, reason: &str) {
    let sent = timeout(CLOSE_TIMEOUT, socket.send(close_frame(code, reason))).await;
    if sent.is_ok_and(|sent| sent.is_ok()) {
        let drained = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = timeout(CLOSE_DRAIN, drained).await;
    }
}

/// The end, and why.
pub(crate) fn close_frame(code: u16, reason: &str) -> Message {
    // A reason has 123 bytes.
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

/// When somebody was last heard, and when to ask.
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

    /// Asks whether somebody is there, and says whether that makes sense; who is not listened to need not response.
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

/// What a client says about its terminal.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum TerminalMessage {
    Resize { cols: u16, rows: u16 },
    Ping,
}

/// Joins a client with a terminal: what it shows first, then what comes. Binary frames are keys and output;
/// text that says so is a change of size, other text is keys too.
pub(crate) async fn terminal(
    mut socket: WebSocket,
    access: Use,
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
                    access.touch();
                    if send_output(&mut socket, bytes).await.is_err() {
                        return;
                    }
                }
                // Too slow: what it missed is not worth telling, what it shows is.
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
                access.touch();
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

/// Keys for a program that has just ended are nobody's fault.
fn ignore_stdin_closed(done: Result<(), Error>) -> Result<(), Error> {
    done.or_else(|error| match error.code {
        Code::StdinClosed => Ok(()),
        _ => Err(error),
    })
}

/// What a client typed, until the program has it. Nothing else it says is heard meanwhile; but it is told what the program
/// says, who may wait for just that.
#[derive(Default)]
struct PendingInput<'a>(Option<BoxFuture<'a, Result<(), Error>>>);

impl<'a> PendingInput<'a> {
    fn begin(&mut self, access: &'a Use, exec: &'a ExecHandle, keys: Bytes) {
        self.0 = Some(Box::pin(async move {
            // Input is a use: a paused one goes on.
            access.wake().await?;
            exec.write_stdin(&keys).await
        }));
    }

    fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// How it went, once it is over.
    async fn completed(&mut self) -> Result<(), Error> {
        let Some(input) = &mut self.0 else {
            return std::future::pending().await;
        };
        let done = input.await;
        self.0 = None;
        done
    }
}

/// A program has ended: by itself, or with its sandbox.
async fn close_after_exit(socket: WebSocket, access: &Use) {
    let is = access.runtime().get(access.id()).map(|info| info.state);
    let lives = |state| matches!(state, SandboxState::Running | SandboxState::Paused);
    if lives(access.state()) && is.is_ok_and(lives) {
        return close(socket, 1000, "exited").await;
    }
    close_with_error(socket, &SandboxState::Stopped.state_error("used")).await;
}

/// A size that a terminal can have.
pub(crate) fn clamp_size(columns: u16, rows: u16) -> TerminalSize {
    TerminalSize {
        rows: rows.clamp(1, 500),
        columns: columns.clamp(1, 500),
    }
}

/// What the first byte of a frame says.
mod frame_type {
    pub(super) const STDIN: u8 = 0;
    pub(super) const STDOUT: u8 = 1;
    pub(super) const STDERR: u8 = 2;
    pub(super) const EXIT: u8 = 3;
    pub(super) const LIVE: u8 = 4;
}

/// Sends a command's output from a position on, and takes its input. The first byte of a frame says what the rest
/// is; a gap is told as text.
pub(crate) async fn output(
    mut socket: WebSocket,
    access: Use,
    exec: ExecHandle,
    after: u64,
    mut end_signal: StreamEndSignal,
) {
    let mut reader = exec.output(after);
    // What was written before now has been told when the position is here.
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
                access.touch();
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
                                "a frame begins with 0 and goes on with input",
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
