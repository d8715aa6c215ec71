//! What connections are made of.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A byte stream to a client.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Has a TCP connection closed with a reset when it is dropped; of others nothing changes.
    fn reset_at_close(&self);
}

impl Transport for TcpStream {
    fn reset_at_close(&self) {
        // A connection that is closed already needs none.
        let _ = self.set_zero_linger();
    }
}

impl Transport for TlsStream<TcpStream> {
    fn reset_at_close(&self) {
        self.get_ref().0.reset_at_close();
    }
}

impl Transport for UnixStream {
    fn reset_at_close(&self) {}
}
