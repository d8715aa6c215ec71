//! Server-sent events, and the output of a command as events `stdout`, `stderr`, `exit`, `gap` and
//! `ping`. The `id` of an event is the output position after it: a client that continues with
//! `after=ID` receives every byte exactly once.

use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use atoll_core::{Core, RequestContext, SandboxAccess, StreamEnd};
use atoll_model::runtime::OutputStream;
use atoll_model::{Error, OutputChunk, Stream};
use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use futures_util::StreamExt as _;
use serde_json::json;

use crate::api_types::Exit;
use crate::routes::Encoding;

/// Interval of `ping` events, which keep idle connections open in proxies.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Content type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// Text of a `ping` event.
pub(crate) const PING_EVENT: &str = "event: ping\ndata: {}\n\n";

/// Response that streams events.
pub(crate) fn sse_response(
    stream: impl futures_util::Stream<Item = Bytes> + Send + 'static,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, EVENT_STREAM),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let stream = futures_util::StreamExt::map(stream, Ok::<_, Infallible>);
    (headers, Body::from_stream(stream)).into_response()
}

/// Ends event streams when the server shuts down, so that clients reconnect, and any stream when
/// its caller's key becomes invalid.
pub(crate) fn end_on_shutdown(
    response: Response,
    core: &Core,
    context: &RequestContext,
) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let (core, context) = (core.clone(), context.clone());
    let (parts, body) = response.into_parts();
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let is_event_stream = kind.is_some_and(|kind| kind == EVENT_STREAM);
    let stream_end = async move {
        match core.stream_end(&context).await {
            // Other responses end by themselves; shutdown waits for them.
            StreamEnd::Shutdown if !is_event_stream => std::future::pending().await,
            stream_end => axum::Error::new(stream_end.error()),
        }
    };
    let mut stream_end = Box::pin(stream_end);
    let mut chunks = body.into_data_stream();
    let mut ended = false;
    let chunks = futures_util::stream::poll_fn(move |context| {
        if ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(end) = stream_end.as_mut().poll(context) {
            ended = true;
            return Poll::Ready(Some(Err(end)));
        }
        chunks.poll_next_unpin(context)
    });
    Response::from_parts(parts, Body::from_stream(chunks))
}

/// Last event of a stream that failed.
pub(crate) fn error_event(error: &Error) -> String {
    let body = json!({ "error": error.message, "code": error.code.name() });
    format!("event: error\ndata: {body}\n\n")
}

/// Streams the output of a command as events.
pub(crate) fn output_events(
    access: SandboxAccess,
    reader: Box<dyn OutputStream>,
    encoding: Encoding,
) -> Response {
    let state = (access, reader, false);
    let stream =
        futures_util::stream::unfold(state, move |(access, mut reader, ended)| async move {
            if ended {
                return None;
            }
            let next = tokio::time::timeout(PING_INTERVAL, reader.next()).await;
            access.record_activity();
            let (event, ended) = match next {
                Err(_) => (PING_EVENT.to_owned(), false),
                Ok(Ok(Some(chunk))) => {
                    let ended = matches!(chunk, OutputChunk::Exit(_));
                    (output_event(chunk, reader.position(), encoding), ended)
                }
                Ok(Ok(None)) => return None,
                Ok(Err(error)) => (error_event(&error), true),
            };
            Some((Bytes::from(event), (access, reader, ended)))
        });
    sse_response(stream)
}

/// Name of an output stream.
pub(crate) fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
    }
}

fn output_event(chunk: OutputChunk, position: u64, encoding: Encoding) -> String {
    let (event_name, body) = match chunk {
        OutputChunk::Data {
            stream,
            position,
            bytes,
        } => {
            let event_name = stream_name(stream);
            let body = match encoding {
                Encoding::Text => {
                    json!({ "position": position, "text": String::from_utf8_lossy(&bytes) })
                }
                Encoding::Base64 => {
                    let bytes = base64::engine::general_purpose::STANDARD.encode(&bytes);
                    json!({ "position": position, "base64": bytes })
                }
            };
            (event_name, body)
        }
        OutputChunk::Gap { from, to } => ("gap", json!({ "from": from, "to": to })),
        OutputChunk::Exit(status) => ("exit", json!(Exit::from(status))),
    };
    format!("id: {position}\nevent: {event_name}\ndata: {body}\n\n")
}
