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

use crate::websocket::{Ends, FAREWELL, GRACE, PING, fault, last_word};

/// The largest message that is taken.
pub(crate) const LARGEST: usize = 1 << 20;
/// The largest that is sent, and the most that is read at a time.
pub(crate) const MOST: usize = 64 << 10;

/// The close code of what is over.
const OVER: u16 = 4002;

/// How it ended.
enum End {
    /// Both have sent all.
    Finished,
    /// Who came has gone.
    Gone,
    /// The server inside has gone, in this way.
    Broken(io::Error),
    Failed(Error),
    /// We end it.
    Ended(u16, String),
}

/// What the two directions know of each other.
#[derive(Debug, Default)]
struct Known {
    /// The server has sent all.
    served: AtomicBool,
    /// Who came has sent all.
    asked: AtomicBool,
    /// Something came since somebody last looked.
    heard: AtomicBool,
    /// What came is not yet taken: nothing more is read until then.
    held: AtomicBool,
}

/// Joins them until both have ended, or one has gone.
pub(crate) async fn join(socket: WebSocket, used: Use, mut stream: TcpStream, mut ends: Ends) {
    let _ = stream.set_nodelay(true);
    let (mut sink, source) = socket.split();
    let (from_server, to_server) = stream.split();
    let known = Known::default();
    let end = {
        let first = tokio::select! {
            end = up(source, to_server, &known) => end,
            end = down(&mut sink, from_server, &known, &used) => end,
            (code, why) = ends.told() => End::Ended(code, why),
            // Its kernel says goodbye for a server that was killed as for one that has sent all.
            () = used.runtime().wait_stopped(used.id()) => {
                End::Failed(SandboxState::Stopped.refusal("used"))
            }
        };
        match first {
            // Who has sent all may not take any more: no failure.
            End::Broken(_) if known.served.load(Ordering::Relaxed) => End::Finished,
            end => end,
        }
    };
    let message = match end {
        End::Gone => return,
        End::Finished => last_word(1000, "over"),
        End::Broken(error) => {
            let reason = format!("the server in the sandbox broke the connection: {error}");
            last_word(OVER, &reason)
        }
        End::Failed(error) => last_word(error.code.close_code(), &error.message),
        End::Ended(code, why) => last_word(code, &why),
    };
    let _ = timeout(FAREWELL, sink.send(message)).await;
}

fn wrong(message: &str) -> End {
    End::Failed(Error::new(Code::InvalidRequest, message))
}

/// From who came to the server; when all was sent, only to hear whether they are there.
async fn up(mut source: SplitStream<WebSocket>, mut server: WriteHalf<'_>, known: &Known) -> End {
    while let Some(said) = source.next().await {
        let message = match said {
            Ok(message) => message,
            Err(error) => {
                return fault(error).map_or(End::Gone, |(code, why)| End::Ended(code, why.into()));
            }
        };
        known.heard.store(true, Ordering::Relaxed);
        let taken = match message {
            Message::Binary(bytes) if bytes.is_empty() => {
                let _ = server.shutdown().await;
                known.asked.store(true, Ordering::Relaxed);
                if known.served.load(Ordering::Relaxed) {
                    return End::Finished;
                }
                Ok(())
            }
            Message::Binary(_) if known.asked.load(Ordering::Relaxed) => {
                return wrong("an empty frame said that there would be no more");
            }
            Message::Binary(bytes) => {
                known.held.store(true, Ordering::Relaxed);
                server.write_all(&bytes).await
            }
            Message::Text(_) => return wrong("a tunnel takes binary frames"),
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => return End::Gone,
        };
        known.held.store(false, Ordering::Relaxed);
        if let Err(error) = taken {
            return End::Broken(error);
        }
    }
    End::Gone
}

/// From the server to who came, who is asked now and then whether they are there: until both have sent all.
async fn down(
    sink: &mut SplitSink<WebSocket, Message>,
    mut server: ReadHalf<'_>,
    known: &Known,
    used: &Use,
) -> End {
    let mut buffer = vec![0; MOST];
    let (mut ask, mut asked, mut over) = (Instant::now() + PING, false, false);
    loop {
        let message = tokio::select! {
            read = server.read(&mut buffer), if !over => match read {
                Ok(read) => Message::Binary(Bytes::copy_from_slice(buffer.get(..read).unwrap_or_default())),
                Err(error) => return End::Broken(error),
            },
            () = sleep_until(ask) => {
                let there = known.held.load(Ordering::Relaxed)
                    || known.heard.swap(false, Ordering::Relaxed);
                if asked && !there {
                    return End::Gone;
                }
                asked = !there;
                ask = Instant::now() + if asked { GRACE } else { PING };
                Message::Ping(Bytes::new())
            }
        };
        used.touch();
        over |= matches!(&message, Message::Binary(bytes) if bytes.is_empty());
        if sink.send(message).await.is_err() {
            return End::Gone;
        }
        known.served.store(over, Ordering::Relaxed);
        if over && known.asked.load(Ordering::Relaxed) {
            return End::Finished;
        }
    }
}
