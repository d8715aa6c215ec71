//! Output of all commands of a sandbox, line by line. Reading it does not count as activity.

use atoll_core::RequestContext;
use atoll_model::runtime::{LogFollower, LogLine};
use atoll_model::{Error, ExecId, OutputChunk};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::api_types::{Exit, Time};
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{Path, Query, checked_limit};
use crate::sse;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(logs))
}

/// Maximum number of lines in a response.
const MAX_LINES: u32 = 1000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// The `X-Next-Cursor` of the previous page, or the `id` of an event.
    #[param(pattern = r"^(exec_[a-z0-9]{20})?(\.exec_[a-z0-9]{20}:[0-9]{1,19})*$")]
    after: Option<String>,
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    limit: Option<u32>,
    /// Continue with future output, as server-sent events.
    #[serde(default)]
    follow: bool,
}

/// A line of output, a gap or an exit status.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogLine)]
#[serde(rename_all = "camelCase")]
struct LogLineView {
    #[serde(rename = "execID")]
    exec: ExecId,
    /// Start time of the command.
    started_at: Time,
    #[schema(pattern = "^(stdout|stderr|gap|exit)$")]
    stream: &'static str,
    #[serde(flatten)]
    content: LogContent,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LogContent)]
#[serde(untagged)]
enum LogContent {
    /// A line of `stdout` or `stderr`.
    Written {
        /// Position in the command's output.
        position: u64,
        /// The line with its newline, if that was written.
        text: String,
    },
    /// These bytes of output are no longer stored.
    Gap { from: u64, to: u64 },
    /// The command has exited.
    Exit(Exit),
}

impl From<LogLine> for LogLineView {
    fn from(logged: LogLine) -> Self {
        let (stream, content) = match logged.content {
            OutputChunk::Data {
                stream,
                position,
                bytes,
            } => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                (
                    sse::stream_name(stream),
                    LogContent::Written { position, text },
                )
            }
            OutputChunk::Gap { from, to } => ("gap", LogContent::Gap { from, to }),
            OutputChunk::Exit(status) => ("exit", LogContent::Exit(status.into())),
        };
        Self {
            exec: logged.exec,
            started_at: Time::new(logged.started_at),
            stream,
            content,
        }
    }
}

/// Get logs
///
/// Output of all commands of the sandbox, line by line. With `follow`, server-sent events `stdout`,
/// `stderr`, `gap` and `ping` with such lines; the header `Last-Event-ID` overrides `after`.
#[utoipa::path(get, path = "/sandboxes/{id}/logs", params(LogsQuery),
    responses((status = 200, content(([LogLineView] = "application/json"), (String = "text/event-stream")),
        headers(("X-Next-Cursor" = String, description = "The `after` of the next page; missing on the last page")))))]
async fn logs(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<LogsQuery>,
    headers: HeaderMap,
) -> ApiResult {
    let limit = checked_limit(query.limit, MAX_LINES, MAX_LINES)? as usize;
    // `EventSource` sends the last id when it reconnects.
    let last = headers.get("last-event-id");
    let last = last.and_then(|last| Some(last.to_str().ok()?.to_owned()));
    let after = last.filter(|_| query.follow).or(query.after);
    let mut logs = open_logs(&app, &caller, &id, after.as_deref()).await?;
    if query.follow {
        return Ok(follow_logs(logs));
    }
    let lines = logs.available(limit).await?;
    let lines: Vec<LogLineView> = lines.into_iter().map(LogLineView::from).collect();
    let mut headers = HeaderMap::new();
    if lines.len() == limit
        && let Ok(cursor) = HeaderValue::from_str(&logs.cursor())
    {
        headers.insert("x-next-cursor", cursor);
    }
    Ok((headers, Json(lines)).into_response())
}

async fn open_logs(
    app: &AppState,
    caller: &RequestContext,
    id: &str,
    after: Option<&str>,
) -> Result<Box<dyn LogFollower>, Error> {
    let access = app.access.peek(caller, id).await?;
    access.runtime().logs(access.id(), after).await
}

/// Streams past and future lines. The `id` of an event is the cursor after it.
fn follow_logs(logs: Box<dyn LogFollower>) -> Response {
    let events = futures_util::stream::unfold(Some(logs), |logs| async {
        let mut logs = logs?;
        match tokio::time::timeout(sse::PING_INTERVAL, logs.next()).await {
            Err(_) => Some((Bytes::from_static(sse::PING_EVENT.as_bytes()), Some(logs))),
            Ok(Ok(Some(logged))) => {
                let line = LogLineView::from(logged);
                let (cursor, name, body) = (logs.cursor(), line.stream, json!(line));
                let event = format!("id: {cursor}\nevent: {name}\ndata: {body}\n\n");
                Some((Bytes::from(event), Some(logs)))
            }
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some((Bytes::from(sse::error_event(&error)), None)),
        }
    });
    sse::sse_response(events)
}
