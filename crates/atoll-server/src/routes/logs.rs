//! What a sandbox uses and what its commands wrote, for whoever looks. Neither is a use of it.

use atoll_core::RequestContext;
use atoll_model::{Error, ExecId, OutputChunk, Sample};
use atoll_worker::{LogFollower, LogLine};
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
    OpenApiRouter::new()
        .routes(routes!(metrics))
        .routes(routes!(logs))
}

/// Resource usage of a sandbox at one time. Names are E2B's where E2B has one.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sample)]
#[serde(rename_all = "camelCase")]
struct SampleView {
    timestamp: Time,
    /// Unix time in seconds.
    timestamp_unix: i64,
    cpu_count: f64,
    /// CPU usage since the previous sample; 100 is all CPUs of the sandbox.
    cpu_used_pct: f64,
    /// CPU time since the sandbox was started.
    cpu_seconds: f64,
    /// In bytes, without `memCache`.
    mem_used: u64,
    /// Page cache, in bytes.
    mem_cache: u64,
    /// Memory limit, in bytes.
    mem_total: u64,
    /// In bytes, at the last measurement.
    disk_used: Option<u64>,
    /// Disk limit, in bytes.
    disk_total: u64,
    /// Processes and threads.
    pids: u32,
}

impl From<Sample> for SampleView {
    fn from(sample: Sample) -> Self {
        Self {
            timestamp: Time::new(sample.at),
            timestamp_unix: sample.at / 1_000_000,
            cpu_count: f64::from(sample.limits.cpus.0) / 1000.0,
            cpu_used_pct: sample.cpu_percent,
            cpu_seconds: sample.cpu.as_secs_f64(),
            mem_used: sample.memory.0,
            mem_cache: sample.cache.0,
            mem_total: sample.limits.memory.0,
            disk_used: sample.disk.map(|disk| disk.0),
            disk_total: sample.limits.disk.0,
            pids: sample.pids,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MetricsQuery {
    /// Unix time in seconds, or RFC 3339.
    start: Option<String>,
    /// Unix time in seconds, or RFC 3339.
    end: Option<String>,
}

/// Parses Unix seconds or RFC 3339 into microseconds since 1970.
fn parse_time(field: &str, text: &str) -> Result<i64, Error> {
    let seconds = text.parse::<i64>().ok();
    let seconds = seconds.map(|seconds| seconds.saturating_mul(1_000_000));
    let written = || Some(text.parse::<jiff::Timestamp>().ok()?.as_microsecond());
    seconds.or_else(written).ok_or_else(|| {
        Error::invalid(
            field,
            format!("{text:?} is not a time"),
            "give seconds since 1970, or a time such as 2026-01-31T12:00:00Z",
        )
    })
}

/// Get metrics
///
/// Resource usage in the last hour, oldest first.
#[utoipa::path(get, path = "/sandboxes/{id}/metrics", params(MetricsQuery), responses((status = 200, body = [SampleView])))]
async fn metrics(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<MetricsQuery>,
) -> ApiResult<Json<Vec<SampleView>>> {
    let bound =
        |field: &str, text: Option<String>| text.map(|text| parse_time(field, &text)).transpose();
    let from = bound("start", query.start)?.unwrap_or(i64::MIN);
    let to = bound("end", query.end)?.unwrap_or(i64::MAX);
    let access = app.core.peek(&caller, &id)?;
    let samples = access.runtime().samples(access.id(), from, to)?;
    Ok(Json(samples.into_iter().map(SampleView::from).collect()))
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
    let mut logs = open_logs(&app, &caller, &id, after.as_deref())?;
    if query.follow {
        return Ok(follow_logs(logs));
    }
    let mut lines = Vec::new();
    while lines.len() < limit
        && let Some(logged) = logs.try_next()?
    {
        lines.push(LogLineView::from(logged));
    }
    let mut headers = HeaderMap::new();
    if lines.len() == limit
        && let Ok(cursor) = HeaderValue::from_str(&logs.cursor())
    {
        headers.insert("x-next-cursor", cursor);
    }
    Ok((headers, Json(lines)).into_response())
}

fn open_logs(
    app: &AppState,
    caller: &RequestContext,
    id: &str,
    after: Option<&str>,
) -> Result<LogFollower, Error> {
    let access = app.core.peek(caller, id)?;
    access.runtime().logs(access.id(), after)
}

/// Streams past and future lines. The `id` of an event is the cursor after it.
fn follow_logs(logs: LogFollower) -> Response {
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
