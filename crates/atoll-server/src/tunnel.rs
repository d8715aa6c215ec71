//! One TCP connection to a port inside a sandbox, as a WebSocket: what is in binary frames goes in and comes out. An
//! empty frame says that one side sends no more; when both have said so it is over. Neither side is read faster than
//! the other takes it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_core::Use;
use atoll_model::{Code, Error, SandboxState};
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::websocket::{
    CLOSE_TIMEOUT, PING_INTERVAL, PONG_TIMEOUT, StreamEndSignal, close_frame, protocol_close_code,
};

/// The largest message that is taken.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The largest that is sent, and the most that is read at a time.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// The close code of what is over.
const CLOSE_STOPPED: u16 = 4002;

/// How it ended.
enum End {
    /// Both have sent all.
    Finished,
    /// Who came has gone.
    ClientGone,
    /// The server inside has gone, in this way.
    ServerFailed(io::Error),
    Failed(Error),
    /// We end it.
    Closed(u16, String),
}

/// What the two directions know of each other.
#[derive(Debug, Default)]
struct TunnelState {
    /// The server has sent all.
    server_eof: AtomicBool,
    /// Who came has sent all.
    client_eof: AtomicBool,
    /// Something came since somebody last looked.
    received: AtomicBool,
    /// What came is not yet taken: nothing more is read until then.
    backpressured: AtomicBool,
}

/// Joins them until both have ended, or one has gone.
pub(crate) async fn run(
    socket: WebSocket,
    access: Use,
    mut stream: TcpStream,
    mut end_signal: StreamEndSignal,
) {
    let _ = stream.set_nodelay(true);
    let (mut sink, source) = socket.split();
    let (from_server, to_server) = stream.split();
    let state = TunnelState::default();
    let end = {
        let first = tokio::select! {
            end = client_to_server(source, to_server, &state) => end,
            end = server_to_client(&mut sink, from_server, &state, &access) => end,
            (code, reason) = end_signal.close_reason() => End::Closed(code, reason),
            // Its kernel says goodbye for a server that was killed as for one that has sent all.
            () = access.runtime().wait_stopped(access.id()) => {
                End::Failed(SandboxState::Stopped.state_error("used"))
            }
        };
        match first {
            // Who has sent all may not take any more: no failure.
            End::ServerFailed(_) if state.server_eof.load(Ordering::Relaxed) => End::Finished,
            end => end,
        }
    };
    let message = match end {
        End::ClientGone => return,
        End::Finished => close_frame(1000, "over"),
        End::ServerFailed(error) => {
            let reason = format!("the server in the sandbox broke the connection: {error}");
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

/// From who came to the server; when all was sent, only to hear whether they are there.
async fn client_to_server(
    mut source: SplitStream<WebSocket>,
    mut server: WriteHalf<'_>,
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
                return invalid_message("an empty frame said that there would be no more");
            }
            Message::Binary(bytes) => {
                state.backpressured.store(true, Ordering::Relaxed);
                server.write_all(&bytes).await
            }
            Message::Text(_) => return invalid_message("a tunnel takes binary frames"),
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

/// From the server to who came, who is ping_sent now and then whether they are there: until both have sent all.
async fn server_to_client(
    sink: &mut SplitSink<WebSocket, Message>,
    mut server: ReadHalf<'_>,
    state: &TunnelState,
    access: &Use,
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
        access.touch();
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
