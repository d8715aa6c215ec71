//! How far a connection is: nobody may be slow with the head of a request, and nobody keeps a connection for ever
//! that carries none.
//!
//! ```text
//!            bytes come           its head is whole
//! begin ──▶ Head ◀──────── Idle      Head ──▶ Busy ──▶ Idle, when bodies and answers of all requests are over
//! ```

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
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
    /// A head is waited for, or has begun, since then.
    Head(Instant),
    /// Nothing is asked for, since then.
    Idle(Instant),
    /// So many requests are under way. How long they take is not decided here.
    Busy(u32),
}

/// What took too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionTimeout {
    Head,
    Idle,
}

/// How far one connection is.
#[derive(Debug, Clone)]
pub(super) struct ConnectionTimer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    phase: Mutex<Phase>,
    limits: ConnectionLimits,
    /// All places there are.
    permits: Arc<Semaphore>,
    /// A request was authenticated.
    authenticated: AtomicBool,
    /// A sandbox serves a request without a key; until no request is under way.
    serves_visitor: AtomicBool,
    /// HTTP has ended with a response 101.
    upgraded: AtomicBool,
    /// It is closed with a TCP reset.
    resets_at_close: AtomicBool,
    closed: Notify,
    entry: Entry,
}

impl ConnectionTimer {
    pub(super) fn new(
        limits: ConnectionLimits,
        permits: &Arc<Semaphore>,
        unauthenticated: &Unauthenticated,
    ) -> Self {
        unauthenticated.add(|entry| {
            Self(Arc::new(Shared {
                phase: Mutex::new(Phase::Head(Instant::now())),
                limits,
                permits: Arc::clone(permits),
                authenticated: AtomicBool::new(false),
                serves_visitor: AtomicBool::new(false),
                upgraded: AtomicBool::new(false),
                resets_at_close: AtomicBool::new(false),
                closed: Notify::new(),
                entry,
            }))
        })
    }

    /// A request on it was authenticated: it may be idle for longer, and is not closed for a new connection.
    pub(super) fn authenticate(&self) {
        if !self.0.authenticated.swap(true, Ordering::Relaxed) {
            self.0.entry.remove();
        }
    }

    /// A sandbox serves the request that is under way.
    pub(super) fn mark_visitor(&self) {
        self.0.serves_visitor.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closable(&self) -> bool {
        !self.0.authenticated.load(Ordering::Relaxed)
            && !self.0.serves_visitor.load(Ordering::Relaxed)
    }

    /// Has the task that serves it end.
    pub(super) fn close(&self) {
        self.0.closed.notify_one();
    }

    /// Waits for [`ConnectionTimer::close`].
    pub(super) async fn closed(&self) {
        self.0.closed.notified().await;
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.0.limits
    }

    /// The bytes after the upgrade are not HTTP.
    pub(super) fn upgrade(&self) {
        self.0.upgraded.store(true, Ordering::Relaxed);
    }

    /// Has it closed with a TCP reset.
    pub(super) fn reset_at_close(&self) {
        self.0.resets_at_close.store(true, Ordering::Relaxed);
    }

    /// The task that serves it has ended.
    pub(super) fn deregister(&self) {
        self.0.entry.remove();
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        let phase = self.0.phase.lock();
        phase.unwrap_or_else(PoisonError::into_inner)
    }

    /// The first words are said, in a language whose heads come in pieces that only it can tell from others.
    pub(super) fn preface_received(&self) {
        *self.phase() = Phase::Idle(Instant::now());
    }

    /// Bytes came: if nothing was under way, they are the begin of a head.
    fn bytes_received(&self) {
        let mut phase = self.phase();
        if let Phase::Idle(_) = *phase {
            *phase = Phase::Head(Instant::now());
        }
    }

    /// A request is under way until this and all its clones are dropped.
    pub(super) fn begin_request(&self) -> RequestGuard {
        let mut phase = self.phase();
        *phase = match *phase {
            Phase::Busy(count) => Phase::Busy(count.saturating_add(1)),
            Phase::Head(_) | Phase::Idle(_) => Phase::Busy(1),
        };
        RequestGuard(self.clone())
    }

    /// Waits until something takes too long. Idleness is for as long as there are places for others, and for clients whose
    /// requests were authenticated.
    pub(super) async fn next_timeout(&self, idle: Duration) -> ConnectionTimeout {
        let head_timeout = self.0.limits.head_timeout;
        let mut check_at = Instant::now() + head_timeout;
        loop {
            // A phase that begins meanwhile is not over before the next look.
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

/// A request under way.
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
                    self.0.0.serves_visitor.store(false, Ordering::Relaxed);
                    Phase::Idle(Instant::now())
                }
                count => Phase::Busy(count - 1),
            };
        }
    }
}

/// An answer: its request is under way until it is sent or given up.
pub(super) struct ResponseBody {
    body: Body,
    /// What of it is not given away yet, where that goes in pieces.
    rest: Bytes,
    /// Whether it is taken, where nobody else watches that.
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

    /// What is next, in pieces.
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
        // Whoever asks for more has taken what was there.
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
    }
}

/// A connection on which every byte that comes is noticed, and checked while it is HTTP. It keeps its place also when it goes
/// on as something else, and is over when its client takes nothing of what is sent for too long.
pub(super) struct TimedIo<S: Transport> {
    stream: S,
    timer: ConnectionTimer,
    framing: Framing,
    _permit: Option<OwnedSemaphorePermit>,
    /// Runs while something waits to be taken.
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

    /// Has who waits to write wait no longer than a client may keep quiet.
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
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.timer.bytes_received();
        if self.timer.0.upgraded.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
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
