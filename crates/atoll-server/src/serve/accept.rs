//! Accepted TCP and Unix connections, and the log of failed accepts.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::Listener;
use crate::middleware::ClientAddress;

/// Interval of the log line about failed accepts, and time without a failure after which they count
/// as resolved.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const RECOVERY_TIME: Duration = Duration::from_secs(1);

pub(super) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepted {
    pub(super) fn client(&self) -> Option<ClientAddress> {
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

pub(super) async fn accept(listener: &Listener) -> io::Result<Accepted> {
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

/// Errors of a connection that the client closed before it was accepted.
pub(super) fn is_client_abort(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// Logs failed accepts: the first, then one per interval, and the recovery.
#[derive(Debug, Default)]
pub(super) struct AcceptFailures {
    attempts: u64,
    /// Times of the last failure and of the last log line.
    times: Option<(Instant, Instant)>,
}

impl AcceptFailures {
    pub(super) fn record(&mut self, error: &io::Error) {
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
    pub(super) fn recovered(&mut self) {
        if self
            .times
            .is_some_and(|(last, _)| last.elapsed() >= RECOVERY_TIME)
        {
            tracing::info!(attempts = self.attempts, "accepting connections again");
            *self = Self::default();
        }
    }
}
