//! Connection timeouts: a limit for reading a request head, and one for idle connections.
//!
//! ```text
//!            first byte              end of head
//! accept ──▶ Head ◀──────── Idle     Head ──▶ Busy ──▶ Idle, after the last body and response
//! ```

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures_util::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::ConnectionLimits;
use super::framing::Framing;
use super::stalled_streams::{self, SendProgress};
use super::transport::Transport;
use super::unauthenticated::{Entry, Unauthenticated};

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Waiting for a request head, or reading one, since this time.
    Head(Instant),
    /// No request since this time.
    Idle(Instant),
    /// Number of open requests. Their duration is not limited here.
    Busy(u32),
}

/// The timeout that expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionTimeout {
    Head,
    Idle,
}

/// Timeout state of one connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionTimer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    limits: ConnectionLimits,
    /// Permits of the listener.
    permits: Arc<Semaphore>,
    /// A request was authenticated.
    authenticated: AtomicBool,
    /// Connections that visitors of ports may have.
    visitor_permits: Arc<Semaphore>,
    /// Held while a sandbox serves a request without credentials. Released when no request is open;
    /// of an upgraded connection, when it is closed.
    visitor_permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// The connection was upgraded with status 101.
    upgraded: AtomicBool,
    /// See [`ConnectionTimer::close`].
    closing: AtomicBool,
    /// Wakes the reader of an upgraded connection.
    reader: AtomicWaker,
    /// The connection closes with a TCP reset.
    resets_at_close: AtomicBool,
    closed: Notify,
    entry: Entry,
}

impl ConnectionTimer {
    pub(super) fn new(
        limits: ConnectionLimits,
        (permits, visitor_permits): (&Arc<Semaphore>, &Arc<Semaphore>),
        unauthenticated: &Unauthenticated,
    ) -> Self {
        unauthenticated.add(|entry| {
            Self(Arc::new(Shared {
                phase: Mutex::new(Phase::Head(Instant::now())),
                limits,
                permits: Arc::clone(permits),
                authenticated: AtomicBool::new(false),
                visitor_permits: Arc::clone(visitor_permits),
                visitor_permit: Mutex::default(),
                upgraded: AtomicBool::new(false),
                closing: AtomicBool::new(false),
                reader: AtomicWaker::new(),
                resets_at_close: AtomicBool::new(false),
                closed: Notify::new(),
                entry,
            }))
        })
    }

    /// Records an authenticated request: the connection gets the long idle timeout and is not
    /// closed in favour of a new one.
    pub(super) fn authenticate(&self) {
        if !self.0.authenticated.swap(true, Ordering::Relaxed) {
            self.0.entry.remove();
        }
    }

    fn visitor_permit(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        let permit = self.0.visitor_permit.lock();
        permit.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a sandbox serves a request without credentials. False if visitors have all
    /// connections that they may have.
    pub(super) fn serve_visitor(&self) -> bool {
        if self.0.authenticated.load(Ordering::Relaxed) {
            return true;
        }
        let mut permit = self.visitor_permit();
        if permit.is_none() {
            *permit = Arc::clone(&self.0.visitor_permits).try_acquire_owned().ok();
        }
        permit.is_some()
    }

    pub(super) fn is_closable(&self) -> bool {
        !self.0.authenticated.load(Ordering::Relaxed) && self.visitor_permit().is_none()
    }

    /// Makes the task that serves the connection end. After an upgrade, reads from it fail.
    pub(super) fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        self.0.closed.notify_one();
        self.0.reader.wake();
    }

    /// Waits for [`ConnectionTimer::close`].
    pub(super) async fn closed(&self) {
        self.0.closed.notified().await;
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.0.limits
    }

    /// Records an upgrade: the following bytes are not HTTP.
    pub(super) fn upgrade(&self) {
        self.0.upgraded.store(true, Ordering::Relaxed);
    }

    fn is_upgraded(&self) -> bool {
        self.0.upgraded.load(Ordering::Relaxed)
    }

    /// Makes the connection close with a TCP reset.
    pub(super) fn reset_at_close(&self) {
        self.0.resets_at_close.store(true, Ordering::Relaxed);
    }

    /// Called when the task that serves the connection has ended. An upgraded connection continues,
    /// and can be closed as before.
    pub(super) fn end(&self) {
        if !self.is_upgraded() {
            self.deregister();
        }
    }

    /// Called when the connection is closed.
    fn deregister(&self) {
        self.0.entry.remove();
        drop(self.visitor_permit().take());
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        let phase = self.0.phase.lock();
        phase.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the HTTP/2 preface. hyper reads the heads of the multiplexed streams.
    pub(super) fn preface_received(&self) {
        *self.phase() = Phase::Idle(Instant::now());
    }

    /// Records received bytes. On an idle connection they begin a request head.
    fn bytes_received(&self) {
        let mut phase = self.phase();
        if let Phase::Idle(_) = *phase {
            *phase = Phase::Head(Instant::now());
        }
    }

    /// Opens a request, until the guard and its clones are dropped.
    pub(super) fn begin_request(&self) -> RequestGuard {
        let mut phase = self.phase();
        *phase = match *phase {
            Phase::Busy(count) => Phase::Busy(count.saturating_add(1)),
            Phase::Head(_) | Phase::Idle(_) => Phase::Busy(1),
        };
        RequestGuard(self.clone())
    }

    /// Waits until a timeout expires. The idle timeout applies to authenticated connections while
    /// permits are free, and `head_timeout` to others.
    pub(super) async fn next_timeout(&self, idle: Duration) -> ConnectionTimeout {
        let head_timeout = self.0.limits.head_timeout;
        let mut check_at = Instant::now() + head_timeout;
        loop {
            // A phase that begins meanwhile cannot time out before the next check.
            sleep_until(check_at).await;
            let now = Instant::now();
            let is_full = self.0.permits.available_permits() == 0;
            let is_authenticated = self.0.authenticated.load(Ordering::Relaxed);
            let idle = if is_full || !is_authenticated {
                head_timeout
            } else {
                idle
            };
            check_at = match *self.phase() {
                Phase::Head(since) if since + head_timeout <= now => {
                    return ConnectionTimeout::Head;
                }
                Phase::Idle(since) if since + idle <= now => return ConnectionTimeout::Idle,
                Phase::Head(since) => since + head_timeout,
                Phase::Idle(since) => (since + idle).min(now + head_timeout),
                Phase::Busy(_) => now + head_timeout,
            };
        }
    }
}

/// An open request.
#[derive(Debug)]
pub(super) struct RequestGuard(ConnectionTimer);

impl Clone for RequestGuard {
    fn clone(&self) -> Self {
        self.0.begin_request()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let mut phase = self.0.phase();
        if let Phase::Busy(count) = *phase {
            *phase = match count {
                0 | 1 => {
                    if !self.0.is_upgraded() {
                        drop(self.0.visitor_permit().take());
                    }
                    Phase::Idle(Instant::now())
                }
                count => Phase::Busy(count - 1),
            };
        }
    }
}

/// Response body. Keeps the request open until it is sent or dropped.
pub(super) struct ResponseBody {
    body: Body,
    /// Rest of the current chunk, in HTTP/2.
    rest: Bytes,
    /// Detects stalled streams in HTTP/2.
    progress: Option<SendProgress>,
    _request: RequestGuard,
}

impl ResponseBody {
    pub(super) fn new(body: Body, request: RequestGuard, progress: Option<SendProgress>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            progress,
            _request: request,
        }
    }

    /// The next frame, with data split into chunks.
    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let chunk = stalled_streams::take_chunk(&mut self.rest);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(progress) = self.progress.clone() else {
            return Pin::new(&mut self.body).poll_frame(context);
        };
        // hyper polls again only after it has sent the previous chunk.
        progress.accepted();
        let next = self.poll_chunk(context);
        if next.is_ready() {
            progress.offered();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

impl<S: Transport> Drop for TimedIo<S> {
    fn drop(&mut self) {
        if self.timer.0.resets_at_close.load(Ordering::Relaxed) {
            self.stream.reset_at_close();
        }
        self.timer.deregister();
    }
}

/// Byte stream of a connection that reports received bytes to the timer, checks HTTP framing and
/// applies a write timeout. It holds the permit, also after an upgrade.
pub(super) struct TimedIo<S: Transport> {
    stream: S,
    timer: ConnectionTimer,
    framing: Framing,
    _permit: Option<OwnedSemaphorePermit>,
    /// Runs while a write is pending.
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl<S: Transport> TimedIo<S> {
    pub(super) fn new(
        stream: S,
        timer: ConnectionTimer,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self {
            stream,
            timer,
            framing: Framing::new(),
            _permit: permit,
            write_timer: None,
        }
    }

    /// Fails a write that is pending for longer than the body idle timeout.
    fn with_write_timeout<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_timer = None;
            return written;
        }
        let upper = self.timer.0.limits.body_idle_timeout;
        let write_timer = self
            .write_timer
            .get_or_insert_with(|| Box::pin(sleep(upper)));
        ready!(write_timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: Transport> AsyncRead for TimedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(ended) = self.framing.poll_ended(buffer) {
            return Poll::Ready(ended);
        }
        let before = buffer.filled().len();
        if self.timer.is_upgraded() {
            self.timer.0.reader.register(context.waker());
            if self.timer.0.closing.load(Ordering::Acquire) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.timer.bytes_received();
        Poll::Ready(self.framing.check(buffer, before))
    }
}

impl<S: Transport> AsyncWrite for TimedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.with_write_timeout(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.with_write_timeout(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.with_write_timeout(context, written)
    }
}
