//! Bodies whose senders may not keep quiet for ever, but where that is what they are for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::pace::UnderWay;

/// Whether the sender of a request's body may keep quiet for as long as it likes: routes find it among the
/// extensions. Whether the sender is still there, TCP finds out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Silence(Arc<AtomicBool>);

impl Silence {
    pub(crate) fn allow(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A body as it comes from outside.
pub(super) struct Incoming {
    body: hyper::body::Incoming,
    quiet: Duration,
    allowed: Silence,
    clock: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    _request: UnderWay,
}

/// A body whose sender may keep quiet for so long.
pub(super) fn limited(
    body: hyper::body::Incoming,
    quiet: Duration,
    allowed: &Silence,
    request: &UnderWay,
) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    Body::new(Incoming {
        body,
        quiet,
        allowed: allowed.clone(),
        clock: None,
        waiting: false,
        _request: request.clone(),
    })
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        if this.allowed.0.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let quiet = this.quiet;
        let clock = this.clock.get_or_insert_with(|| Box::pin(sleep(quiet)));
        // From the last piece on.
        if !std::mem::replace(&mut this.waiting, true) {
            clock.as_mut().reset(Instant::now() + quiet);
        }
        ready!(clock.as_mut().poll(context));
        Poll::Ready(Some(Err("nothing more of the body came".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
