//! WebSockets for terminals and command output.
//!
//! Browsers report a rejected upgrade only as "failed". The server therefore accepts the upgrade
//! and reports the error by its close code. Pages of other origins get 403 or 421 before that.

mod output;
mod terminal;

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use atoll_core::{RequestContext, SandboxAccess, StreamEnd};
use atoll_model::Error;
use atoll_model::runtime::ExecHandle;
use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::request::Parts;
use axum::http::{Request, header};
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::upgrade::OnUpgrade;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::Error as WireError;
use tokio_tungstenite::tungstenite::error::ProtocolError;

use crate::AppState;
use crate::error::ErrorBody;
pub(crate) use output::output;
pub(crate) use terminal::{clamp_size, terminal};

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

/// Input that is being written to the process. Meanwhile no further frames are read, but output is
/// still sent: the process may wait for its output to be read.
#[derive(Default)]
struct PendingInput<'a>(Option<BoxFuture<'a, Result<(), Error>>>);

impl<'a> PendingInput<'a> {
    fn begin(&mut self, access: &'a SandboxAccess, exec: &'a dyn ExecHandle, keys: Bytes) {
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
