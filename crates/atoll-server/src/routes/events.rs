//! What happened to the caller's sandboxes.

use atoll_core::Event;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::answer::Answer;
use crate::body::Query;
use crate::guard::Caller;
use crate::page;
use crate::stream;
use crate::views::Time;

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

pub(super) fn view(event: &Event) -> Value {
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
    let events = futures_util::stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match tokio::time::timeout(stream::PING, reader.next()).await {
            Err(_) => Some((Bytes::from_static(stream::PINGED.as_bytes()), Some(reader))),
            Ok(Ok(events)) => {
                let text: Vec<String> = events.iter().map(line).collect();
                Some((Bytes::from(text.concat()), Some(reader)))
            }
            Ok(Err(error)) => Some((Bytes::from(stream::failed(&error)), None)),
        }
    });
    Ok(stream::answer(events))
}

fn line(event: &Event) -> String {
    let (number, kind, body) = (event.number, &event.kind, view(event));
    format!("id: {number}\nevent: sandbox.{kind}\ndata: {body}\n\n")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listed {
    #[serde(default)]
    pub(super) after: i64,
    pub(super) limit: Option<u32>,
}

async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
) -> Answer<Json<Vec<Value>>> {
    let limit = page::limit(asked.limit)?;
    let events = app.core.events_of(&caller, &id, asked.after, limit).await?;
    Ok(Json(events.iter().map(view).collect()))
}
