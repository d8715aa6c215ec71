//! Waits for the ports and the data directory of a server that was just killed: the kernel releases
//! them shortly after. If another process holds them, the start fails.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use atoll_model::{Code, Error};
use atoll_worker::instance::DataLock;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::eprint_line;

/// Timeout for required ports and the data directory.
pub(super) const RETRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for optional ports: several servers may run on a machine, and none should start late.
pub(super) const OPTIONAL_TIMEOUT: Duration = Duration::from_millis(200);
const AGAIN: Duration = Duration::from_millis(10);

/// Binds a port that another process may hold for this long.
pub(super) async fn listen(at: SocketAddr, timeout: Duration) -> std::io::Result<TcpListener> {
    let taken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
    let bind = async || TcpListener::bind(at).await;
    retry_while_in_use(&at.to_string(), timeout, bind, taken).await
}

/// Locks a data directory that another process may hold.
pub(super) async fn lock(data: &Path) -> Result<DataLock, Error> {
    let taken = |error: &Error| error.code == Code::Conflict && error.details.contains_key("pid");
    let lock = async || DataLock::acquire(data);
    retry_while_in_use(&data.display().to_string(), RETRY_TIMEOUT, lock, taken).await
}

async fn retry_while_in_use<T, E>(
    what: &str,
    timeout: Duration,
    attempt: impl AsyncFn() -> Result<T, E>,
    taken: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut until = None;
    loop {
        let failure = match attempt().await {
            Err(failure) if taken(&failure) => failure,
            done => return done,
        };
        let until = *until.get_or_insert_with(|| {
            eprint_line(&format!("{what} is taken: waiting up to {timeout:?}"));
            Instant::now() + timeout
        });
        if Instant::now() >= until {
            return Err(failure);
        }
        sleep(AGAIN).await;
    }
}
