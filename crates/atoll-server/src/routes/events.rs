//! What happened to the caller's sandboxes.

use std::convert::Infallible;
use std::time::Duration;

use atoll_core::Event;
use atoll_model::Error;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::answer::Answer;
use crate::body::Query;
use crate::guard::Caller;
use crate::views::Time;

/// A word now and then, so that nobody in between takes the silence for the end.
const PING: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/events", get(follow))
        .route("/sandboxes/{id}/events", get(list))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    after: Option<i64>,
}

fn view(event: &Event) -> Value {
    json!({
        "eventID": event.id, "number": event.number, "type": format!("sandbox.{}", event.kind),
        "sandboxID": event.sandbox, "at": Time::new(event.at), "data": event.payload,
    })
}

/// Server-sent events: those after a number, then those to come.
async fn follow(
    State(app): State<App>,
    Caller(caller): Caller,
    Query(asked): Query<After>,
    headers: HeaderMap,
) -> Answer<Response> {
    let last = headers.get("last-event-id");
    let last = last.and_then(|last| last.to_str().ok()?.parse().ok());
    let reader = app
        .core
        .follow_events(&caller, last.or(asked.after))
        .await?;
    let stream = futures_util::stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match tokio::time::timeout(PING, reader.next()).await {
            Err(_) => Some((
                Bytes::from_static(b"event: ping\ndata: {}\n\n"),
                Some(reader),
            )),
            Ok(Ok(events)) => {
                let lines = events.iter().map(|event| {
                    let body = view(event);
                    format!(
                        "id: {}\nevent: sandbox.{}\ndata: {body}\n\n",
                        event.number, event.kind
                    )
                });
                let text: Vec<String> = lines.collect();
                Some((Bytes::from(text.concat()), Some(reader)))
            }
            Ok(Err(error)) => {
                let body = json!({ "error": error.message, "code": error.code.name() });
                Some((Bytes::from(format!("event: error\ndata: {body}\n\n")), None))
            }
        }
    });
    let stream = futures_util::StreamExt::map(stream, Ok::<_, Infallible>);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(stream)).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    #[serde(default)]
    after: i64,
    limit: Option<u32>,
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
) -> Answer<Json<Vec<Value>>> {
    let limit = asked.limit.unwrap_or(100);
    if !(1..=100).contains(&limit) {
        let message = format!("limit is {limit}");
        return Err(Error::invalid("limit", message, "give 1 to 100").into());
    }
    let events = app.core.events_of(&caller, &id, asked.after, limit).await?;
    Ok(Json(events.iter().map(view).collect()))
}
