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

use super::Patience;
use super::framing::Framing;
use super::stalled_streams::{self, Taken};
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
pub(super) enum Overdue {
    Head,
    Request,
}

/// How far one connection is.
#[derive(Debug, Clone)]
pub(super) struct Pace(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    phase: Mutex<Phase>,
    patience: Patience,
    /// All places there are.
    places: Arc<Semaphore>,
    /// A request was authenticated.
    authenticated: AtomicBool,
    /// A sandbox serves a request without a key; until no request is under way.
    visiting: AtomicBool,
    /// HTTP has ended with a response 101.
    upgraded: AtomicBool,
    /// It is closed with a TCP reset.
    resets: AtomicBool,
    closed: Notify,
    entry: Entry,
}

impl Pace {
    pub(super) fn new(
        patience: Patience,
        places: &Arc<Semaphore>,
        unauthenticated: &Unauthenticated,
    ) -> Self {
        unauthenticated.add(|entry| {
            Self(Arc::new(Kept {
                phase: Mutex::new(Phase::Head(Instant::now())),
                patience,
                places: Arc::clone(places),
                authenticated: AtomicBool::new(false),
                visiting: AtomicBool::new(false),
                upgraded: AtomicBool::new(false),
                resets: AtomicBool::new(false),
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
    pub(super) fn visit(&self) {
        self.0.visiting.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closable(&self) -> bool {
        !self.0.authenticated.load(Ordering::Relaxed) && !self.0.visiting.load(Ordering::Relaxed)
    }

    /// Has the task that serves it end.
    pub(super) fn close(&self) {
        self.0.closed.notify_one();
    }

    /// Waits for [`Pace::close`].
    pub(super) async fn closed(&self) {
        self.0.closed.notified().await;
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.0.patience
    }

    /// The bytes after the upgrade are not HTTP.
    pub(super) fn upgrade(&self) {
        self.0.upgraded.store(true, Ordering::Relaxed);
    }

    /// Has it closed with a TCP reset.
    pub(super) fn reset_at_close(&self) {
        self.0.resets.store(true, Ordering::Relaxed);
    }

    /// The task that serves it has ended.
    pub(super) fn leave(&self) {
        self.0.entry.remove();
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        let phase = self.0.phase.lock();
        phase.unwrap_or_else(PoisonError::into_inner)
    }

    /// The first words are said, in a language whose heads come in pieces that only it can tell from others.
    pub(super) fn greeted(&self) {
        *self.phase() = Phase::Idle(Instant::now());
    }

    /// Bytes came: if nothing was under way, they are the begin of a head.
    fn heard(&self) {
        let mut phase = self.phase();
        if let Phase::Idle(_) = *phase {
            *phase = Phase::Head(Instant::now());
        }
    }

    /// A request is under way until this and all its clones are dropped.
    pub(super) fn request(&self) -> UnderWay {
        let mut phase = self.phase();
        *phase = match *phase {
            Phase::Busy(count) => Phase::Busy(count.saturating_add(1)),
            Phase::Head(_) | Phase::Idle(_) => Phase::Busy(1),
        };
        UnderWay(self.clone())
    }

    /// Waits until something takes too long. Idleness is for as long as there are places for others, and for clients whose
    /// requests were authenticated.
    pub(super) async fn overdue(&self, idle: Duration) -> Overdue {
        let quiet = self.0.patience.quiet;
        let mut look = Instant::now() + quiet;
        loop {
            // A phase that begins meanwhile is not over before the next look.
            sleep_until(look).await;
            let now = Instant::now();
            let crowded = self.0.places.available_permits() == 0;
            let known = self.0.authenticated.load(Ordering::Relaxed);
            let idle = if crowded || !known { quiet } else { idle };
            look = match *self.phase() {
                Phase::Head(since) if since + quiet <= now => return Overdue::Head,
                Phase::Idle(since) if since + idle <= now => return Overdue::Request,
                Phase::Head(since) => since + quiet,
                Phase::Idle(since) => (since + idle).min(now + quiet),
                Phase::Busy(_) => now + quiet,
            };
        }
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct UnderWay(Pace);

impl Clone for UnderWay {
    fn clone(&self) -> Self {
        self.0.request()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut phase = self.0.phase();
        if let Phase::Busy(count) = *phase {
            *phase = match count {
                0 | 1 => {
                    self.0.0.visiting.store(false, Ordering::Relaxed);
                    Phase::Idle(Instant::now())
                }
                count => Phase::Busy(count - 1),
            };
        }
    }
}

/// An answer: its request is under way until it is sent or given up.
pub(super) struct Answered {
    body: Body,
    /// What of it is not given away yet, where that goes in pieces.
    rest: Bytes,
    /// Whether it is taken, where nobody else watches that.
    taken: Option<Taken>,
    _request: UnderWay,
}

impl Answered {
    pub(super) fn new(body: Body, request: UnderWay, taken: Option<Taken>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            taken,
            _request: request,
        }
    }

    /// What is next, in pieces.
    fn poll_piece(
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
        let piece = stalled_streams::piece(&mut self.rest);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(taken) = self.taken.clone() else {
            return Pin::new(&mut self.body).poll_frame(context);
        };
        // Whoever asks for more has taken what was there.
        taken.taken();
        let next = self.poll_piece(context);
        if next.is_ready() {
            taken.offered();
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(most) = hint.upper() {
            hint.set_upper(most.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

impl<S: Transport> Drop for Heard<S> {
    fn drop(&mut self) {
        if self.pace.0.resets.load(Ordering::Relaxed) {
            self.stream.reset_at_close();
        }
    }
}

/// A connection on which every byte that comes is noticed, and checked while it is HTTP. It keeps its place also when it goes
/// on as something else, and is over when its client takes nothing of what is sent for too long.
pub(super) struct Heard<S: Transport> {
    stream: S,
    pace: Pace,
    framing: Framing,
    _place: Option<OwnedSemaphorePermit>,
    /// Runs while something waits to be taken.
    clock: Option<Pin<Box<Sleep>>>,
}

impl<S: Transport> Heard<S> {
    pub(super) fn new(stream: S, pace: Pace, place: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            stream,
            pace,
            framing: Framing::new(),
            _place: place,
            clock: None,
        }
    }

    /// Has who waits to write wait no longer than a client may keep quiet.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.clock = None;
            return written;
        }
        let most = self.pace.0.patience.body;
        let clock = self.clock.get_or_insert_with(|| Box::pin(sleep(most)));
        ready!(clock.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: Transport> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(ended) = self.framing.ended(buffer) {
            return Poll::Ready(ended);
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.pace.heard();
        if self.pace.0.upgraded.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(self.framing.check(buffer, before))
    }
}

impl<S: Transport> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(context, flushed)
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
        self.timed(context, written)
    }
}
