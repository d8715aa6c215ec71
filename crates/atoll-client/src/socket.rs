//! WebSockets. A close code that stands for an API error is returned as that error.

use std::time::Duration;

use atoll_model::{Code, Error};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::error::{RequestError, reword};
use crate::{Client, Remedies, Request};

/// Timeout between two frames. Servers send a ping every 30 seconds.
pub(crate) const SILENCE: Duration = Duration::from_secs(75);
/// Timeout for sending a frame.
const SENDING: Duration = Duration::from_mins(1);

/// An open WebSocket.
#[derive(Debug)]
pub struct Socket {
    pub(crate) stream: WebSocketStream<TokioIo<Upgraded>>,
    name: String,
    remedies: Remedies,
}

/// Message from the server.
#[derive(Debug)]
pub enum Frame {
    /// Binary frame.
    Bytes(Bytes),
    /// Text frame.
    Text(String),
    /// The connection was closed normally.
    Over,
}

impl Client {
    /// Upgrades a request to a WebSocket.
    pub async fn socket(&self, path: &str) -> Result<Socket, RequestError> {
        let request = Request::get(path)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", generate_key());
        let response = self.send_once(&request).await?;
        if response.status().as_u16() != 101 {
            let message = format!("{} does not speak WebSocket", self.target());
            let error = Error::new(Code::NotFound, message);
            return Err(RequestError::Rejected(
                error.remedy("does something stand before it that drops upgrades?"),
            ));
        }
        let upgraded = hyper::upgrade::on(response)
            .await
            .map_err(|error| self.broken(&error))?;
        let stream =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await;
        Ok(Socket {
            stream,
            name: self.target().to_string(),
            remedies: self.remedies,
        })
    }
}

impl Socket {
    /// Sends a binary frame.
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), RequestError> {
        self.message(Message::Binary(bytes)).await
    }

    /// Sends a text frame.
    pub async fn say(&mut self, text: String) -> Result<(), RequestError> {
        self.message(Message::Text(text.into())).await
    }

    async fn message(&mut self, message: Message) -> Result<(), RequestError> {
        match timeout(SENDING, self.stream.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.broken(&error.to_string())),
            Err(_) => Err(self.broken("it takes nothing")),
        }
    }

    /// Waits for the next frame.
    pub async fn next(&mut self) -> Result<Frame, RequestError> {
        loop {
            let Ok(next) = timeout(SILENCE, self.stream.next()).await else {
                return Err(self.broken("nothing is heard any more"));
            };
            match next {
                Some(Ok(Message::Binary(bytes))) => return Ok(Frame::Bytes(bytes)),
                Some(Ok(Message::Text(text))) => return Ok(Frame::Text(text.as_str().to_owned())),
                Some(Ok(Message::Close(frame))) => return self.closed(frame),
                Some(Ok(_)) => {}
                Some(Err(tungstenite::Error::ConnectionClosed)) | None => {
                    return Err(self.broken("it ended without a word"));
                }
                Some(Err(error)) => return Err(self.broken(&error.to_string())),
            }
        }
    }

    fn closed(&self, frame: Option<CloseFrame>) -> Result<Frame, RequestError> {
        let Some(frame) = frame else {
            return Err(self.broken("it ended without a word"));
        };
        match refusal(&frame) {
            None if u16::from(frame.code) == 1000 => Ok(Frame::Over),
            // The server is shutting down; another may take its place.
            None => Err(self.broken(frame.reason.as_str())),
            Some(mut error) => {
                reword(&mut error, self.remedies);
                Err(RequestError::Rejected(error))
            }
        }
    }

    fn broken(&self, why: &str) -> RequestError {
        let message = format!("the connection to {} broke: {why}", self.name);
        RequestError::ConnectionLost(
            Error::new(Code::Timeout, message).remedy(crate::connect::UNREACHABLE_REMEDY),
        )
    }
}

/// The API error that a close code stands for, if any.
pub(crate) fn refusal(frame: &CloseFrame) -> Option<Error> {
    let code = match u16::from(frame.code) {
        4001 => Code::NotFound,
        4002 => Code::SandboxStopped,
        4003 => Code::UnknownTemplate,
        4004 => Code::InvalidRequest,
        4005 => Code::QuotaExceeded,
        4006 => Code::NoCapacity,
        4007 => Code::Timeout,
        4008 => Code::PermissionDenied,
        1009 => Code::TooLarge,
        1011 => Code::Internal,
        _ => return None,
    };
    Some(Error::new(code, frame.reason.as_str()))
}
