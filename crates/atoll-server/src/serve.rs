//! Accept loop and HTTP connections: connection limit, timeouts and graceful shutdown.

mod accept;
mod connection;
mod framing;
mod http;
mod request_body;
mod stalled_streams;
mod timeouts;
mod transport;
mod unauthenticated;

use std::io;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::tls::Tls;
use accept::{AcceptFailures, Accepted, accept, is_client_abort};
pub(crate) use connection::Connection;
use connection::ConnectionService;
use http::HttpBuilders;
pub(crate) use request_body::IdleExemption;
use timeouts::ConnectionTimer;
use unauthenticated::Unauthenticated;

/// Delay before `accept` is retried after a failure.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

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
