//! Events of the caller's sandboxes.

use atoll_model::{Event, EventId, SandboxId};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::api_types::Time;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{Path, Query};
use crate::pagination;
use crate::sse;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(follow))
        .routes(routes!(list))
}

/// An event of a sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
#[serde(rename_all = "camelCase")]
pub(super) struct EventView {
    #[serde(rename = "eventID")]
    id: EventId,
    /// Sequence number, increasing; the value for `after`.
    number: i64,
    /// For example `sandbox.created`.
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "sandboxID")]
    sandbox: SandboxId,
    at: Time,
    /// Details, depending on the type.
    #[schema(value_type = Object)]
    data: serde_json::Value,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            id: event.id,
            number: event.sequence,
            kind: format!("sandbox.{}", event.kind),
            sandbox: event.sandbox,
            at: Time::new(event.occurred_at),
            data: event.payload,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FollowEventsQuery {
    /// Sequence number of the last known event. Default: only future events.
    after: Option<i64>,
}

/// Follow events
///
/// Server-sent events: past events after `after`, then future ones. The `id` of an event is its
/// sequence number; the header `Last-Event-ID` overrides `after`.
#[utoipa::path(get, path = "/events", params(FollowEventsQuery),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
async fn follow(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Query(query): Query<FollowEventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let last = headers.get("last-event-id");
    let last = last.and_then(|last| last.to_str().ok()?.parse().ok());
    let reader = app
        .core
        .subscribe_events(&caller, last.or(query.after))
        .await?;
    let events = futures_util::stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match tokio::time::timeout(sse::PING_INTERVAL, reader.next()).await {
            Err(_) => Some((Bytes::from_static(sse::PING_EVENT.as_bytes()), Some(reader))),
            Ok(Ok(events)) => {
                let text: Vec<String> = events.into_iter().map(sse_event).collect();
                Some((Bytes::from(text.concat()), Some(reader)))
            }
            Ok(Err(error)) => Some((Bytes::from(sse::error_event(&error)), None)),
        }
    });
    Ok(sse::sse_response(events))
}

fn sse_event(event: Event) -> String {
    let (number, kind) = (event.sequence, event.kind.clone());
    let body = serde_json::json!(EventView::from(event));
    format!("id: {number}\nevent: sandbox.{kind}\ndata: {body}\n\n")
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListEventsQuery {
    /// Sequence number of the last known event.
    #[serde(default)]
    pub(super) after: i64,
    #[param(minimum = 1, maximum = 100, default = 100)]
    pub(super) limit: Option<u32>,
}

/// List events
///
/// Events of a sandbox, oldest first.
#[utoipa::path(get, path = "/sandboxes/{id}/events", params(ListEventsQuery),
    responses((status = 200, body = [EventView])))]
async fn list(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<ListEventsQuery>,
) -> ApiResult<Json<Vec<EventView>>> {
    let limit = pagination::parse_limit(query.limit)?;
    let events = app
        .core
        .sandbox_events(&caller, &id, query.after, limit)
        .await?;
    Ok(Json(events.into_iter().map(EventView::from).collect()))
}
