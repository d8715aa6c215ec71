//! A TCP connection to a port of a sandbox, tunnelled through a WebSocket in binary frames. An
//! empty frame is the end of one direction; after both the tunnel closes. Each direction has
//! backpressure.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_core::SandboxAccess;
use atoll_model::runtime::PortConnection;
use atoll_model::{Code, Error, SandboxState};
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::websocket::{
    CLOSE_TIMEOUT, PING_INTERVAL, PONG_TIMEOUT, StreamEndSignal, close_frame, protocol_close_code,
};

/// Largest message that is accepted.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Largest message that is sent, and read buffer.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Close code for a stopped sandbox or a failed connection.
const CLOSE_STOPPED: u16 = 4002;

/// Why the tunnel ended.
enum End {
    /// Both sides have sent everything.
    Finished,
    /// The client disconnected.
    ClientGone,
    /// The connection in the sandbox failed.
    ServerFailed(io::Error),
    Failed(Error),
    /// The server closes the tunnel.
    Closed(u16, String),
}

/// State shared by both directions.
#[derive(Debug, Default)]
struct TunnelState {
    /// The server in the sandbox has sent everything.
    server_eof: AtomicBool,
    /// The client has sent everything.
    client_eof: AtomicBool,
    /// A message has arrived since the last check.
    received: AtomicBool,
    /// A message is being written to the server; no further one is read.
    backpressured: AtomicBool,
}

/// Copies in both directions until both have ended or one fails.
pub(crate) async fn run(
    socket: WebSocket,
    access: SandboxAccess,
    stream: Box<dyn PortConnection>,
    mut end_signal: StreamEndSignal,
) {
    let (mut sink, source) = socket.split();
    let (from_server, to_server) = tokio::io::split(stream);
    let state = TunnelState::default();
    let end = {
        let first = tokio::select! {
            end = client_to_server(source, to_server, &state) => end,
            end = server_to_client(&mut sink, from_server, &state, &access) => end,
            (code, reason) = end_signal.close_reason() => End::Closed(code, reason),
            // The kernel closes the connections of a killed server like those of one that has
            // finished.
            () = access.runtime().wait_stopped(access.id()) => {
                End::Failed(SandboxState::Stopped.state_error("used"))
            }
        };
        match first {
            // A server that has sent everything may stop reading.
            End::ServerFailed(_) if state.server_eof.load(Ordering::Relaxed) => End::Finished,
            end => end,
        }
    };
    let message = match end {
        End::ClientGone => return,
        End::Finished => close_frame(1000, "over"),
        End::ServerFailed(error) => {
            let reason = format!("the connection to the server in the sandbox failed: {error}");
            close_frame(CLOSE_STOPPED, &reason)
        }
        End::Failed(error) => close_frame(error.code.close_code(), &error.message),
        End::Closed(code, reason) => close_frame(code, &reason),
    };
    let _ = timeout(CLOSE_TIMEOUT, sink.send(message)).await;
}

fn invalid_message(message: &str) -> End {
    End::Failed(Error::new(Code::InvalidRequest, message))
}

/// Copies from the client to the server. After the client's end it only reads pongs.
async fn client_to_server(
    mut source: SplitStream<WebSocket>,
    mut server: WriteHalf<Box<dyn PortConnection>>,
    state: &TunnelState,
) -> End {
    while let Some(received) = source.next().await {
        let message = match received {
            Ok(message) => message,
            Err(error) => {
                return protocol_close_code(error).map_or(End::ClientGone, |(code, reason)| {
                    End::Closed(code, reason.into())
                });
            }
        };
        state.received.store(true, Ordering::Relaxed);
        let written = match message {
            Message::Binary(bytes) if bytes.is_empty() => {
                let _ = server.shutdown().await;
                state.client_eof.store(true, Ordering::Relaxed);
                if state.server_eof.load(Ordering::Relaxed) {
                    return End::Finished;
                }
                Ok(())
            }
            Message::Binary(_) if state.client_eof.load(Ordering::Relaxed) => {
                return invalid_message("data after the empty frame that ended the stream");
            }
            Message::Binary(bytes) => {
                state.backpressured.store(true, Ordering::Relaxed);
                server.write_all(&bytes).await
            }
            Message::Text(_) => return invalid_message("a tunnel accepts only binary frames"),
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return End::ClientGone,
        };
        state.backpressured.store(false, Ordering::Relaxed);
        if let Err(error) = written {
            return End::ServerFailed(error);
        }
    }
    End::ClientGone
}

/// Copies from the server to the client and sends pings, until both sides have sent everything.
async fn server_to_client(
    sink: &mut SplitSink<WebSocket, Message>,
    mut server: ReadHalf<Box<dyn PortConnection>>,
    state: &TunnelState,
    access: &SandboxAccess,
) -> End {
    let mut buffer = vec![0; CHUNK_BYTES];
    let (mut next_ping, mut ping_sent, mut server_done) =
        (Instant::now() + PING_INTERVAL, false, false);
    loop {
        let message = tokio::select! {
            read = server.read(&mut buffer), if !server_done => match read {
                Ok(read) => Message::Binary(Bytes::copy_from_slice(buffer.get(..read).unwrap_or_default())),
                Err(error) => return End::ServerFailed(error),
            },
            () = sleep_until(next_ping) => {
                let alive = state.backpressured.load(Ordering::Relaxed)
                    || state.received.swap(false, Ordering::Relaxed);
                if ping_sent && !alive {
                    return End::ClientGone;
                }
                ping_sent = !alive;
                next_ping = Instant::now() + if ping_sent { PONG_TIMEOUT } else { PING_INTERVAL };
                Message::Ping(Bytes::new())
            }
        };
        access.record_activity();
        server_done |= matches!(&message, Message::Binary(bytes) if bytes.is_empty());
        if sink.send(message).await.is_err() {
            return End::ClientGone;
        }
        state.server_eof.store(server_done, Ordering::Relaxed);
        if server_done && state.client_eof.load(Ordering::Relaxed) {
            return End::Finished;
        }
    }
}
