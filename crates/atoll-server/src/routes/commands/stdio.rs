//! Input and output of commands.

use atoll_model::Scope;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::find;
use super::run::Encoding;
use crate::AppState;
use crate::api_types::BinaryBody;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{EmptyBody, JsonBody, Path, Query, RawBytes};
use crate::sse;
use crate::websocket::{self, StreamEndSignal, Upgrade};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StdinQuery {
    /// Number of input bytes before this body.
    #[serde(default)]
    offset: u64,
}

/// Progress of stdin.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StdinOffset {
    /// Number of input bytes accepted so far: the next `offset`.
    taken: u64,
}

/// Write input
///
/// Writes from an offset on. Bytes that were accepted before are skipped; the response says how
/// many are accepted in total.
#[utoipa::path(post, path = "/sandboxes/{id}/commands/{exec}/stdin", params(StdinQuery),
    request_body(content_type = "application/octet-stream", content = BinaryBody), responses((status = 200, body = StdinOffset)))]
pub(super) async fn write(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<StdinQuery>,
    RawBytes(bytes): RawBytes,
) -> ApiResult<Json<StdinOffset>> {
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    let exec = find(&access, &exec).await?;
    let taken = exec.write_stdin_at(query.offset, &bytes).await?;
    Ok(Json(StdinOffset { taken }))
}

/// Close stdin
#[utoipa::path(post, path = "/sandboxes/{id}/commands/{exec}/stdin/close", responses((status = 204)))]
pub(super) async fn close(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    _: JsonBody<EmptyBody>,
) -> ApiResult<StatusCode> {
    let access = app.access.open(&caller, &id, Scope::Sandboxes).await?;
    find(&access, &exec).await?.close_stdin().await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// Start position, in bytes of both streams together.
    #[serde(default)]
    after: u64,
    #[serde(default)]
    encoding: Encoding,
}

/// Follow the output
///
/// Server-sent events `stdout`, `stderr`, `exit`, `gap` and `ping`. The `id` of an event is the
/// position after it; the header `Last-Event-ID` overrides `after`. As a WebSocket, the first byte
/// of a binary frame is its type: 0 input, 1 stdout, 2 stderr, 3 exit status, 4 all earlier output
/// has been sent.
#[utoipa::path(get, path = "/sandboxes/{id}/commands/{exec}/output", params(OutputQuery),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 101, description = "Upgraded to a WebSocket")))]
pub(super) async fn output(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
    Upgrade(upgrade): Upgrade,
    headers: axum::http::HeaderMap,
) -> ApiResult<Response> {
    let found = async || {
        let access = app.access.observe(&caller, &id).await?;
        let exec = find(&access, &exec).await?;
        Ok((access, exec))
    };
    if let Some(upgrade) = upgrade {
        // The WebSocket also accepts input.
        let found = match caller.require(Scope::Sandboxes) {
            Ok(()) => found().await,
            Err(error) => Err(error),
        };
        let end_signal = StreamEndSignal::new(&app, &caller);
        return Ok(upgrade.on_upgrade(move |socket| async move {
            match found {
                Ok((access, exec)) => {
                    websocket::output(socket, access, exec, query.after, end_signal).await;
                }
                Err(error) => websocket::close_with_error(socket, &error).await,
            }
        }));
    }
    let (access, exec) = found().await?;
    // `EventSource` sends the last id when it reconnects.
    let last = headers
        .get("last-event-id")
        .and_then(|last| last.to_str().ok()?.parse().ok());
    let after = last.unwrap_or(query.after);
    let output = exec.output(after).await?;
    Ok(sse::output_events(access, output, query.encoding))
}
