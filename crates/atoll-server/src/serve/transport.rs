//! Byte streams that a connection runs on.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A byte stream to a client.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Makes a TCP connection close with a reset when it is dropped; no effect on Unix sockets.
    fn reset_at_close(&self);
}

impl Transport for TcpStream {
    fn reset_at_close(&self) {
        // Fails only if the connection is closed already.
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
