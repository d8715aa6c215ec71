//! Forwards a local connection to a port of a sandbox. The two directions are independent: neither
//! waits for the other.

use std::time::Duration;

use atoll_model::{Code, Error};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::socket::{self, Socket, refusal};

/// Timeout between two frames; the server sends pings here too.
const SILENCE: Duration = if cfg!(test) {
    Duration::from_millis(200)
} else {
    socket::SILENCE
};
/// Maximum number of bytes per frame.
const MOST: usize = 64 << 10;

impl Socket {
    /// Copies between this tunnel and a connection until both directions have ended.
    pub async fn join(self, stream: impl AsyncRead + AsyncWrite) -> Result<(), Error> {
        let (mut from_us, mut to_us) = tokio::io::split(stream);
        let (mut sink, mut source) = self.stream.split();
        let up = async {
            let mut buffer = vec![0; MOST];
            loop {
                // A reset of the local connection is forwarded as an end of data.
                let count = from_us.read(&mut buffer).await.unwrap_or(0);
                let part = buffer.get(..count).unwrap_or_default();
                let sent = sink.send(Message::Binary(Bytes::copy_from_slice(part)));
                if sent.await.is_err() || count == 0 {
                    return;
                }
            }
        };
        let down = async {
            loop {
                let message = match timeout(SILENCE, source.next()).await {
                    Ok(Some(Ok(message))) => message,
                    Ok(_) => return Err(Error::new(Code::Timeout, "the tunnel broke")),
                    // The server sends pings even while the sandbox sends no data.
                    Err(_) => {
                        let message = format!("the tunnel was dead for {} s", SILENCE.as_secs());
                        return Err(Error::new(Code::Timeout, message));
                    }
                };
                match message {
                    Message::Binary(bytes) if bytes.is_empty() => {
                        let _ = to_us.shutdown().await;
                    }
                    Message::Binary(bytes) => {
                        let written = to_us.write_all(&bytes).await;
                        // The local client has closed the connection.
                        if written.is_err() {
                            return Ok(());
                        }
                    }
                    Message::Close(frame) => {
                        return frame.as_ref().and_then(refusal).map_or(Ok(()), Err);
                    }
                    _ => {}
                }
            }
        };
        tokio::pin!(up, down);
        tokio::select! {
            done = &mut down => return done,
            () = &mut up => {}
        }
        down.await
    }
}
