//! One connection: service of its requests, graceful end, and what handlers may do with it.

use std::convert::Infallible;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};

use atoll_model::{Code, Error};
use axum::Router;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::ConnectionLimits;
use super::request_body::{self, IdleExemption};
use super::stalled_streams::SendProgress;
use super::timeouts::{ConnectionTimeout, ConnectionTimer, ResponseBody};
use crate::middleware::{ClientAddress, OverTls};

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
pub(super) struct ConnectionService {
    pub(super) router: Router,
    pub(super) over_tls: bool,
    pub(super) client: Option<ClientAddress>,
    pub(super) limits: ConnectionLimits,
    pub(super) timer: ConnectionTimer,
    pub(super) stop: watch::Receiver<bool>,
}

impl ConnectionService {
    pub(super) async fn handle(
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
    pub(super) async fn run_connection<C: Future<Output = hyper::Result<()>>>(
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
