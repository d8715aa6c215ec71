//! Accept loop and HTTP connections: connection limit, timeouts and graceful shutdown.

mod framing;
mod request_body;
mod stalled_streams;
mod timeouts;
mod transport;
mod unauthenticated;

use std::convert::Infallible;
use std::io::{self, Cursor};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Code, Error};
use axum::Router;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt as _;

use crate::middleware::{ClientAddress, OverTls};
use crate::tls::Tls;
use framing::MAX_HEAD_BYTES;
pub(crate) use request_body::IdleExemption;
use stalled_streams::{SendProgress, StreamExecutor};
use timeouts::{ConnectionTimeout, ConnectionTimer, ResponseBody, TimedIo};
use transport::Transport;
use unauthenticated::Unauthenticated;

/// Read and write buffer of one connection.
const BUFFER_BYTES: usize = 256 << 10;
/// Length of the HTTP/2 connection preface.
const PREFACE_LEN: usize = 24;
/// Delay before `accept` is retried after a failure.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Interval of the log line about failed accepts, and time without a failure after which they count
/// as resolved.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const RECOVERY_TIME: Duration = Duration::from_secs(1);

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP without TLS.
    Plain(TcpListener),
    /// TCP with TLS.
    Tls(TcpListener, Tls),
    /// Unix socket.
    Unix(UnixListener),
}

/// Limits for the connections of one listener.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Maximum number of open connections; further ones wait.
    pub max_connections: u32,
    /// Timeout for a TLS handshake and for a request head.
    pub head_timeout: Duration,
    /// Timeout for idle connections. Connections without an authenticated request, and all
    /// connections while no permit is free, have `head_timeout` instead.
    pub idle_timeout: Duration,
    /// Timeout between two chunks of a request body.
    pub body_idle_timeout: Duration,
    /// Connections do not use file descriptors from this number on. The kernel assigns the lowest
    /// free number, so this number is assigned only if all lower ones are open.
    pub first_reserved_fd: i32,
}

impl ConnectionLimits {
    /// Half of the connections: visitors of ports cannot keep clients with a key out.
    fn max_visitors(&self) -> usize {
        (self.max_connections as usize / 2).max(1)
    }

    fn is_reserved(&self, descriptor: &(impl AsRawFd + ?Sized)) -> bool {
        descriptor.as_raw_fd() >= self.first_reserved_fd
    }
}

/// Serves until `stop` becomes true and all open requests have finished.
pub async fn serve(
    listener: Listener,
    router: Router,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(limits.max_connections as usize));
    let connections = Connections {
        router,
        builders: Arc::new(HttpBuilders::new(limits)),
        limits,
        permits: Arc::clone(&permits),
        visitor_permits: Arc::new(Semaphore::new(limits.max_visitors())),
        unauthenticated: Unauthenticated::default(),
        stop: stop.clone(),
    };
    let mut failures = AcceptFailures::default();
    loop {
        let next = async {
            match accept(&listener).await {
                Ok(accepted)
                    if limits.is_reserved(&accepted)
                        && !connections.unauthenticated.close_oldest() =>
                {
                    failures.record(&io::Error::other(
                        "the remaining file descriptors are reserved",
                    ));
                }
                Ok(accepted) => {
                    failures.recovered();
                    let permit = connections.acquire_permit().await;
                    connections.spawn(&listener, accepted, permit);
                }
                Err(error) if is_client_abort(&error) => {}
                Err(error) => {
                    failures.record(&error);
                    connections.unauthenticated.close_oldest();
                    sleep(ACCEPT_RETRY).await;
                }
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            () = next => {}
        }
    }
    drop(listener);
    // All connections have returned their permits.
    let _ = permits.acquire_many(limits.max_connections).await;
}

/// Errors of a connection that the client closed before it was accepted.
fn is_client_abort(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// Logs failed accepts: the first, then one per interval, and the recovery.
#[derive(Debug, Default)]
struct AcceptFailures {
    attempts: u64,
    /// Times of the last failure and of the last log line.
    times: Option<(Instant, Instant)>,
}

impl AcceptFailures {
    fn record(&mut self, error: &io::Error) {
        self.attempts += 1;
        let now = Instant::now();
        let logged = self.times.map(|(_, logged)| logged);
        let due = logged.is_none_or(|logged| now >= logged + LOG_INTERVAL);
        if due {
            tracing::warn!(%error, attempts = self.attempts, "cannot accept connections");
        }
        let logged = logged.filter(|_| !due).unwrap_or(now);
        self.times = Some((now, logged));
    }

    /// Called after a successful accept. While descriptors are short, single accepts still succeed.
    fn recovered(&mut self) {
        if self
            .times
            .is_some_and(|(last, _)| last.elapsed() >= RECOVERY_TIME)
        {
            tracing::info!(attempts = self.attempts, "accepting connections again");
            *self = Self::default();
        }
    }
}

enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    fn client(&self) -> Option<ClientAddress> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|peer| ClientAddress(peer.ip())),
            Self::Unix(_) => None,
        }
    }
}

impl AsRawFd for Accepted {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
}

async fn accept(listener: &Listener) -> io::Result<Accepted> {
    match listener {
        Listener::Plain(listener) | Listener::Tls(listener, _) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Accepted::Tcp(stream))
        }
        Listener::Unix(listener) => listener
            .accept()
            .await
            .map(|(stream, _)| Accepted::Unix(stream)),
    }
}

/// State shared by all connections of a listener.
struct Connections {
    router: Router,
    builders: Arc<HttpBuilders>,
    limits: ConnectionLimits,
    permits: Arc<Semaphore>,
    /// Connections that visitors of ports without a credential may have.
    visitor_permits: Arc<Semaphore>,
    unauthenticated: Unauthenticated,
    stop: watch::Receiver<bool>,
}

impl Connections {
    /// Waits for a permit for an accepted connection. Without a free one, closes the oldest
    /// unauthenticated connection.
    async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Some(permit);
        }
        let permit = Arc::clone(&self.permits).acquire_owned();
        let mut permit = pin!(permit);
        loop {
            self.unauthenticated.close_oldest();
            // A closed connection releases its permit with a delay, and there may be none to close
            // yet.
            if let Ok(permit) = timeout(ACCEPT_RETRY, permit.as_mut()).await {
                return permit.ok();
            }
        }
    }

    /// Serves a connection in its own task.
    fn spawn(&self, listener: &Listener, accepted: Accepted, permit: Option<OwnedSemaphorePermit>) {
        let builders = Arc::clone(&self.builders);
        let acceptor = match listener {
            Listener::Tls(_, tls) => Some(tls.acceptor()),
            Listener::Plain(_) | Listener::Unix(_) => None,
        };
        let permits = (&self.permits, &self.visitor_permits);
        let timer = ConnectionTimer::new(self.limits, permits, &self.unauthenticated);
        let mut connection_service = ConnectionService {
            router: self.router.clone(),
            over_tls: acceptor.is_some(),
            client: accepted.client(),
            limits: self.limits,
            timer: timer.clone(),
            stop: self.stop.clone(),
        };
        let serving = async move {
            let done = match (accepted, acceptor) {
                (Accepted::Unix(stream), _) => {
                    builders
                        .serve_http1(stream, connection_service, permit)
                        .await
                }
                (Accepted::Tcp(stream), None) => {
                    builders
                        .serve_http1(stream, connection_service, permit)
                        .await
                }
                (Accepted::Tcp(stream), Some(acceptor)) => {
                    let head_timeout = connection_service.limits.head_timeout;
                    let handshake = tokio::select! {
                        _ = connection_service.stop.wait_for(|stop| *stop) => return,
                        handshake = timeout(head_timeout, acceptor.accept(stream)) => handshake,
                    };
                    // Clients that fail the handshake get no response.
                    let Ok(Ok(stream)) = handshake else { return };
                    match stream.get_ref().1.alpn_protocol() {
                        Some(b"h2") => {
                            let _place = permit;
                            builders.serve_http2(stream, connection_service).await
                        }
                        _ => {
                            builders
                                .serve_http1(stream, connection_service, permit)
                                .await
                        }
                    }
                }
            };
            // Errors here are caused by the client: a broken connection or another protocol.
            if let Err(error) = done {
                tracing::debug!(%error, "connection failed");
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = timer.closed() => {}
                () = serving => {}
            }
            timer.end();
        });
    }
}

/// Request extension: the connection of the request.
#[derive(Debug, Clone)]
pub(crate) struct Connection(ConnectionTimer);

impl Connection {
    /// Records that a request was authenticated, by a key, token, ticket or signature.
    pub(crate) fn authenticate(&self) {
        self.0.authenticate();
    }

    /// Records that a sandbox serves a request without credentials: the connection is not closed
    /// for a new one meanwhile. Fails if visitors have all connections that they may have.
    pub(crate) fn serve_visitor(&self) -> Result<(), Error> {
        if self.0.serve_visitor() {
            return Ok(());
        }
        let message =
            "the server has no connections left for visitors of ports without a credential";
        Err(Error::new(Code::NoCapacity, message)
            .remedy("try again after the seconds of Retry-After, or use a signed link to the port"))
    }

    /// Closes an HTTP/1 connection with a TCP reset: some clients report any other close in the
    /// middle of a response as a protocol error. In HTTP/2 only the stream is reset.
    pub(crate) fn reset_at_close(&self) {
        self.0.reset_at_close();
    }

    /// Rejects a connection to a port whose descriptor is in the reserved range.
    pub(crate) fn check_descriptor(
        &self,
        descriptor: &(impl AsRawFd + ?Sized),
    ) -> Result<(), Error> {
        if !self.0.limits().is_reserved(descriptor) {
            return Ok(());
        }
        let message = "the server has no file descriptors left for connections to ports";
        Err(Error::new(Code::NoCapacity, message)
            .remedy("retry, or raise the server's limit of open files"))
    }
}

/// Serves the requests of one connection.
#[derive(Clone)]
struct ConnectionService {
    router: Router,
    over_tls: bool,
    client: Option<ClientAddress>,
    limits: ConnectionLimits,
    timer: ConnectionTimer,
    stop: watch::Receiver<bool>,
}

impl ConnectionService {
    async fn handle(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let guard = self.timer.begin_request();
        let exemption = IdleExemption::default();
        let mut request = request_body::with_idle_timeout(
            request,
            self.limits.body_idle_timeout,
            &exemption,
            &guard,
        );
        request.extensions_mut().insert(exemption);
        request
            .extensions_mut()
            .insert(Connection(self.timer.clone()));
        if let Some(client) = self.client {
            request.extensions_mut().insert(client);
        }
        if self.over_tls {
            request.extensions_mut().insert(OverTls);
        }
        let response = self.router.oneshot(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.timer.upgrade();
        }
        Ok(response.map(|body| ResponseBody::new(body, guard, SendProgress::of_current_stream())))
    }

    /// Serves until the client disconnects, a timeout expires, or a graceful shutdown is complete.
    async fn run_connection<C: Future<Output = hyper::Result<()>>>(
        mut self,
        connection: C,
        end: impl FnOnce(Pin<&mut C>),
    ) -> hyper::Result<()> {
        let mut connection = pin!(connection);
        tokio::select! {
            done = connection.as_mut() => return done,
            _ = self.stop.wait_for(|stop| *stop) => {}
            next_timeout = self.timer.next_timeout(self.limits.idle_timeout) => if next_timeout == ConnectionTimeout::Head {
                return Ok(());
            }
        }
        end(connection.as_mut());
        tokio::select! {
            done = connection => done,
            _ = self.timer.next_timeout(self.limits.head_timeout) => Ok(()),
        }
    }
}

/// Configured connection builders.
struct HttpBuilders {
    http1: http1::Builder,
    http2: http2::Builder<StreamExecutor>,
}

impl HttpBuilders {
    fn new(limits: ConnectionLimits) -> Self {
        let head_timeout = limits.head_timeout;
        let mut http1 = http1::Builder::new();
        // `ConnectionTimer` enforces the timeout for heads and idle connections.
        http1
            .header_read_timeout(None)
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(BUFFER_BYTES);
        let mut http2 = http2::Builder::new(StreamExecutor {
            stall_timeout: limits.body_idle_timeout,
        });
        http2
            .timer(TokioTimer::new())
            // Detects clients that are gone.
            .keep_alive_interval(head_timeout)
            .keep_alive_timeout(head_timeout)
            .max_header_list_size(u16::MAX.into());
        Self { http1, http2 }
    }

    async fn serve_http1(
        &self,
        stream: impl Transport,
        connection_service: ConnectionService,
        permit: Option<OwnedSemaphorePermit>,
    ) -> hyper::Result<()> {
        let service = connection_service.clone();
        let service = service_fn(move |request| service.clone().handle(request));
        let stream = TokioIo::new(TimedIo::new(
            stream,
            connection_service.timer.clone(),
            permit,
        ));
        let connection = self.http1.serve_connection(stream, service).with_upgrades();
        let end = http1::UpgradeableConnection::graceful_shutdown;
        connection_service.run_connection(connection, end).await
    }

    async fn serve_http2(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        connection_service: ConnectionService,
    ) -> hyper::Result<()> {
        // HTTP/2 pings start only after the preface.
        let mut first = [0; PREFACE_LEN];
        let preface = timeout(
            connection_service.limits.head_timeout,
            stream.read_exact(&mut first),
        )
        .await;
        if !matches!(preface, Ok(Ok(_))) {
            return Ok(());
        }
        connection_service.timer.preface_received();
        let (reader, writer) = tokio::io::split(stream);
        let stream = tokio::io::join(Cursor::new(first).chain(reader), writer);
        let service = connection_service.clone();
        let service = service_fn(move |request| service.clone().handle(request));
        let connection = self.http2.serve_connection(TokioIo::new(stream), service);
        connection_service
            .run_connection(connection, http2::Connection::graceful_shutdown)
            .await
    }
}
