//! HTTP/1 and HTTP/2 on a byte stream, by hyper.

use std::io::Cursor;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::ConnectionLimits;
use super::connection::ConnectionService;
use super::framing::MAX_HEAD_BYTES;
use super::stalled_streams::StreamExecutor;
use super::timeouts::TimedIo;
use super::transport::Transport;

/// Read and write buffer of one connection.
const BUFFER_BYTES: usize = 256 << 10;
/// Length of the HTTP/2 connection preface.
const PREFACE_LEN: usize = 24;

/// Configured connection builders.
pub(super) struct HttpBuilders {
    http1: http1::Builder,
    http2: http2::Builder<StreamExecutor>,
}

impl HttpBuilders {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
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

    pub(super) async fn serve_http1(
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

    pub(super) async fn serve_http2(
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
