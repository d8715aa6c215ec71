//! Server-sent events, and a command's output as such: `stdout`, `stderr`, `exit`, `gap`, `ping`. The `id` of an event
//! is the position after it: whoever asks for `after=ID` misses nothing and gets nothing twice.

use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use atoll_core::{Context, Core, Notice, Use};
use atoll_model::{Chunk, Error, Stream};
use atoll_worker::ExecHandle;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use futures_util::StreamExt as _;
use serde_json::json;

use crate::routes::Encoding;
use crate::api_types::Exit;

/// A word now and then, so that nobody in between takes the silence for the end.
pub(crate) const PING: Duration = Duration::from_secs(15);

/// What server-sent events are called.
const EVENTS: &str = "text/event-stream";

/// What is sent then.
pub(crate) const PINGED: &str = "event: ping\ndata: {}\n\n";

/// An answer that goes on.
pub(crate) fn answer(events: impl futures_util::Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, EVENTS),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let events = futures_util::StreamExt::map(events, Ok::<_, Infallible>);
    (headers, Body::from_stream(events)).into_response()
}

/// Has a stream of events break off when its server ends, so that its client goes on at the next one, and anything that goes
/// on when its caller's key is worth nothing any more.
pub(crate) fn ended_on_notice(response: Response, core: &Core, context: &Context) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let (core, context) = (core.clone(), context.clone());
    let (parts, body) = response.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let events = kind.is_some_and(|kind| kind == EVENTS);
    let notice = async move {
        match core.notice(&context).await {
            // It has an end of its own, which is waited for.
            Notice::Ending if !events => std::future::pending().await,
            notice => axum::Error::new(notice.error()),
        }
    };
    let mut notice = Box::pin(notice);
    let mut chunks = body.into_data_stream();
    let mut over = false;
    let chunks = futures_util::stream::poll_fn(move |context| {
        if over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(end) = notice.as_mut().poll(context) {
            over = true;
            return Poll::Ready(Some(Err(end)));
        }
        chunks.poll_next_unpin(context)
    });
    Response::from_parts(parts, Body::from_stream(chunks))
}

/// The last word of a stream that cannot go on.
pub(crate) fn failed(error: &Error) -> String {
    let body = json!({ "error": error.message, "code": error.code.name() });
    format!("event: error\ndata: {body}\n\n")
}

pub(crate) fn events(used: Use, exec: &ExecHandle, after: u64, encoding: Encoding) -> Response {
    let reader = exec.output(after);
    let state = (used, reader, false);
    let stream = futures_util::stream::unfold(state, move |(used, mut reader, over)| async move {
        if over {
            return None;
        }
        let next = tokio::time::timeout(PING, reader.next()).await;
        used.touch();
        let (event, over) = match next {
            Err(_) => (PINGED.to_owned(), false),
            Ok(Ok(Some(chunk))) => {
                let over = matches!(chunk, Chunk::Exit(_));
                (event(chunk, reader.position(), encoding), over)
            }
            Ok(Ok(None)) => return None,
            Ok(Err(error)) => (failed(&error), true),
        };
        Some((Bytes::from(event), (used, reader, over)))
    });
    answer(stream)
}

/// What a stream is called.
pub(crate) fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

fn event(chunk: Chunk, position: u64, encoding: Encoding) -> String {
    let (name, body) = match chunk {
        Chunk::Data {
            stream,
            position,
            bytes,
        } => {
            let name = name(stream);
            let body = match encoding {
                Encoding::Text => {
                    json!({ "position": position, "text": String::from_utf8_lossy(&bytes) })
                }
                Encoding::Base64 => {
                    let bytes = base64::engine::general_purpose::STANDARD.encode(&bytes);
                    json!({ "position": position, "base64": bytes })
                }
            };
            (name, body)
        }
        Chunk::Gap { from, to } => ("gap", json!({ "from": from, "to": to })),
        Chunk::Exit(status) => ("exit", json!(Exit::from(status))),
    };
    format!("id: {position}\nevent: {name}\ndata: {body}\n\n")
}
