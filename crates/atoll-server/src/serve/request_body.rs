//! Request bodies with an idle timeout. The rest of a body that its handler did not read is drained
//! (lingering close).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Version, header};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::timeouts::RequestGuard;

/// Limits for draining an unread body.
const MAX_DRAIN: usize = 64 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Request extension by which a handler disables the body's idle timeout, for streams of user
/// input. TCP keepalive still detects dead clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdleExemption(Arc<AtomicBool>);

impl IdleExemption {
    pub(crate) fn exempt(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Request body with an idle timeout.
pub(super) struct RequestBody {
    /// `None` after the end of the body or an error.
    body: Option<hyper::body::Incoming>,
    drains: bool,
    idle_timeout: Duration,
    exemption: IdleExemption,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    request: RequestGuard,
}

/// Wraps the body of a request.
pub(super) fn with_idle_timeout(
    request: Request<hyper::body::Incoming>,
    idle_timeout: Duration,
    exemption: &IdleExemption,
    guard: &RequestGuard,
) -> Request<Body> {
    // In HTTP/2 only the stream ends. A client that sent `Expect: 100-continue` has not sent the
    // body.
    let drains =
        request.version() < Version::HTTP_2 && !request.headers().contains_key(header::EXPECT);
    request.map(|body| {
        if body.is_end_stream() {
            return Body::empty();
        }
        Body::new(RequestBody {
            body: Some(body),
            drains,
            idle_timeout,
            exemption: exemption.clone(),
            timer: None,
            waiting: false,
            request: guard.clone(),
        })
    })
}

/// Without draining, hyper closes the connection after a response that precedes the end of the
/// request body, although the client may have sent its next request already.
impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|_| self.drains) else {
            return;
        };
        let (request, Ok(runtime)) = (self.request.clone(), Handle::try_current()) else {
            return;
        };
        runtime.spawn(timeout(DRAIN_TIMEOUT, async move {
            let _under_way = request;
            let mut drained = 0;
            while drained <= MAX_DRAIN
                && let Some(Ok(frame)) = body.frame().await
            {
                drained += frame.data_ref().map_or(0, Bytes::len);
            }
        }));
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            this.waiting = false;
            if !matches!(frame, Some(Ok(_))) {
                this.body = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        if this.exemption.0.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let idle_timeout = this.idle_timeout;
        let timer = this
            .timer
            .get_or_insert_with(|| Box::pin(sleep(idle_timeout)));
        // The timeout restarts with each chunk.
        if !std::mem::replace(&mut this.waiting, true) {
            timer.as_mut().reset(Instant::now() + idle_timeout);
        }
        ready!(timer.as_mut().poll(context));
        this.body = None;
        Poll::Ready(Some(Err("timeout while reading the body".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let none = || SizeHint::with_exact(0);
        self.body.as_ref().map_or_else(none, HttpBody::size_hint)
    }
}
