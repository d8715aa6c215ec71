//! Client of the HTTP API (docs/reference/http-api.md).
//!
//! Connections may break and servers may restart at any time: idempotent requests are retried,
//! streams are resumed, and every wait has a timeout. Output for users is left to the program.

mod connect;
mod error;
mod exec;
mod request;
mod socket;
mod stream;
mod target;
#[cfg(test)]
mod tests;
mod tunnel;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atoll_model::{Code, Error};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;

use connect::Stream;
pub use error::{REQUEST_ID_DETAIL, RequestError, RetryPolicy};
pub use exec::{Exec, ExecEvent, ExecInput, Exit};
pub use request::{Body, Request, path, query};
pub use socket::{Frame, Socket};
pub use stream::{Event, Events};
pub use target::Target;

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout between two parts of a response.
const SILENCE: Duration = Duration::from_mins(1);

/// Function that returns the program's own remedy for an error; `None` keeps the server's.
pub type Remedies = fn(&Error) -> Option<String>;

/// Client of one server, with one key.
#[derive(Debug)]
pub struct Client {
    target: Target,
    key: Option<String>,
    /// File with the certificate authorities to trust; `None`: those of the system.
    ca_file: Option<PathBuf>,
    /// Time for which an unreachable server is retried.
    max_outage: Duration,
    /// Whether the server has responded before: if it cannot be reached now, it is probably
    /// restarting.
    has_connected: AtomicBool,
    /// The program's own remedies.
    remedies: Remedies,
    /// Idle connection for the next request.
    idle: Mutex<Option<SendRequest<Body>>>,
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    /// Body of the response.
    pub body: Bytes,
    /// Cursor of the next page of a list, if any.
    pub next: Option<String>,
}

impl Response {
    /// Parses the body as JSON; an empty body is null.
    pub fn json(&self) -> Result<Value, Error> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            Error::new(
                Code::Internal,
                format!("the server's answer is no JSON: {error}"),
            )
            .remedy("is this an Atoll server? Ask for /health there")
        })
    }
}

impl Client {
    /// Creates a client of this server. An empty key is no key.
    pub fn new(target: Target, key: Option<String>) -> Self {
        Self {
            target,
            key,
            ca_file: None,
            max_outage: error::AWAY,
            has_connected: AtomicBool::new(false),
            remedies: |_| None,
            idle: Mutex::new(None),
        }
    }

    /// Trusts the certificate authorities in a file instead of those of the system.
    #[must_use]
    pub fn ca_file(mut self, file: Option<PathBuf>) -> Self {
        self.ca_file = file;
        self
    }

    /// Sets the time for which an unreachable server is retried; the default is a minute.
    #[must_use]
    pub fn max_outage(mut self, max_outage: Duration) -> Self {
        self.max_outage = max_outage;
        self
    }

    /// Replaces the server's remedies by those of the program.
    #[must_use]
    pub fn remedies(mut self, remedies: Remedies) -> Self {
        self.remedies = remedies;
        self
    }

    /// The server of this client.
    pub fn target(&self) -> &Target {
        &self.target
    }

    fn has_connected(&self) -> bool {
        self.has_connected.load(Ordering::Relaxed)
    }

    /// Sends a request once and returns the response with its body unread. An error response is an
    /// error.
    pub async fn send_once(
        &self,
        request: &Request,
    ) -> Result<hyper::Response<Incoming>, RequestError> {
        let (response, _) = self.exchange(request, request.body()).await?;
        Ok(response)
    }

    /// Streams a request body. The timeout of the response begins again with every part of the
    /// body.
    pub async fn upload(&self, request: &Request, body: Body) -> Result<Response, RequestError> {
        let request = request.clone().deadline(Duration::MAX);
        let (response, sender) = self.exchange(&request, body).await?;
        self.finish(response, sender).await
    }

    /// Sends a request with retries and returns the response with its body unread.
    pub async fn open(&self, request: &Request) -> Result<hyper::Response<Incoming>, Error> {
        let mut retry = RetryPolicy::new(request.is_repeatable());
        loop {
            match self.send_once(request).await {
                Ok(response) => return Ok(response),
                Err(failure) => retry.after(self, failure).await?,
            }
        }
    }

    /// Sends a request with retries and returns the complete response.
    pub async fn send_buffered(&self, request: &Request) -> Result<Response, Error> {
        let mut retry = RetryPolicy::new(request.is_repeatable());
        loop {
            let exchange = async {
                let (response, sender) = self.exchange(request, request.body()).await?;
                self.finish(response, sender).await
            };
            match exchange.await {
                Ok(answer) => return Ok(answer),
                // An earlier attempt succeeded, but its response was lost.
                Err(RequestError::Rejected(error))
                    if retry.may_have_succeeded()
                        && request.is_delete()
                        && matches!(error.code, Code::SandboxNotFound | Code::FileNotFound) =>
                {
                    let (body, next) = (Bytes::new(), None);
                    return Ok(Response { body, next });
                }
                Err(failure) => retry.after(self, failure).await?,
            }
        }
    }

    /// Sends a request with retries and returns the response as JSON.
    pub async fn send_json(&self, request: &Request) -> Result<Value, Error> {
        self.send_buffered(request).await?.json()
    }

    /// Fetches all pages of a list.
    pub async fn list(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Vec<Value>, Error> {
        let (mut all, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut parameters = parameters.to_vec();
            parameters.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let answer = self
                .send_buffered(&Request::get(query(path, &parameters)))
                .await?;
            match answer.json()? {
                Value::Array(part) => all.extend(part),
                other => all.push(other),
            }
            match answer.next {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Opens a stream of server-sent events.
    pub fn events(&self, request: Request) -> Events<'_> {
        Events::new(self, request)
    }

    async fn finish(
        &self,
        response: hyper::Response<Incoming>,
        sender: SendRequest<Body>,
    ) -> Result<Response, RequestError> {
        let next = response.headers().get("x-next-cursor");
        let next = next.and_then(|next| Some(next.to_str().ok()?.to_owned()));
        let body = self.whole(response).await?;
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Ok(Response { body, next })
    }

    async fn whole(&self, response: hyper::Response<Incoming>) -> Result<Bytes, RequestError> {
        let mut parts = Vec::new();
        let mut stream = response.into_body().into_data_stream();
        loop {
            match timeout(SILENCE, stream.next()).await {
                Ok(Some(Ok(part))) => parts.push(part),
                Ok(Some(Err(error))) => return Err(self.broken(&error)),
                Ok(None) => break,
                Err(_) => return Err(self.silent("in the middle of an answer", SILENCE)),
            }
        }
        Ok(match <[Bytes; 1]>::try_from(parts) {
            Ok([whole]) => whole,
            Err(parts) => parts.concat().into(),
        })
    }

    async fn exchange(
        &self,
        request: &Request,
        body: Body,
    ) -> Result<(hyper::Response<Incoming>, SendRequest<Body>), RequestError> {
        let mut sender = self.sender().await?;
        let request_sent = request.build(&self.target, self.key.as_deref(), body)?;
        let answered = timeout(
            request.response_timeout(),
            sender.send_request(request_sent),
        )
        .await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.broken(&error)),
            Err(_) => return Err(self.silent("to a request", request.response_timeout())),
        };
        self.has_connected.store(true, Ordering::Relaxed);
        let status = response.status();
        if status.is_success() || status.as_u16() == 101 {
            return Ok((response, sender));
        }
        let body = self.whole(response).await?;
        let mut failure = error::refused(status.as_u16(), &body);
        if let RequestError::Rejected(error) = &mut failure {
            error::reword(error, self.remedies);
        }
        Err(failure)
    }

    /// Returns the idle connection, or opens a new one.
    async fn sender(&self) -> Result<SendRequest<Body>, RequestError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = { idle }.take();
        if let Some(mut idle) = idle
            && idle.ready().await.is_ok()
        {
            return Ok(idle);
        }
        let connected = connect::connect(&self.target, self.ca_file.as_deref());
        let stream: Stream = match timeout(CONNECT, connected).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(RequestError::Unreachable(error)),
            Err(_) => {
                let message = format!(
                    "no response from {} within {} s",
                    self.target,
                    CONNECT.as_secs()
                );
                let error = Error::new(Code::ServerUnreachable, message);
                return Err(RequestError::Unreachable(
                    error.remedy(connect::UNREACHABLE_REMEDY),
                ));
            }
        };
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(&error))?;
        // The task ends when the sender and the last body are dropped.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    fn broken(&self, error: &dyn std::error::Error) -> RequestError {
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            why = format!("{why}: {cause}");
            source = cause.source();
        }
        let message = format!("the connection to {} broke: {why}", self.target);
        RequestError::ConnectionLost(
            Error::new(Code::Timeout, message).remedy(connect::UNREACHABLE_REMEDY),
        )
    }

    fn silent(&self, to: &str, time: Duration) -> RequestError {
        let seconds = time.as_secs();
        let message = format!("{} said nothing {to} for {seconds} s", self.target);
        RequestError::Timeout(
            Error::new(Code::Timeout, message).remedy(connect::UNREACHABLE_REMEDY),
        )
    }
}
