//! What a sandbox uses and what its commands wrote, for whoever looks. Neither is a use of it.

use atoll_core::Context;
use atoll_model::{Chunk, Error, Sample};
use atoll_worker::{Logged, Logs};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::App;
use crate::answer::Answer;
use crate::body::Query;
use crate::guard::Caller;
use crate::stream;
use crate::views::{Exit, Time};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sandboxes/{id}/metrics", get(samples))
        .route("/sandboxes/{id}/logs", get(logs))
}

/// What a sandbox used at a moment. The names are E2B's where it has one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SampleView {
    timestamp: Time,
    timestamp_unix: i64,
    cpu_count: f64,
    cpu_used_pct: f64,
    cpu_seconds: f64,
    mem_used: u64,
    mem_cache: u64,
    mem_total: u64,
    disk_used: Option<u64>,
    disk_total: u64,
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    start: Option<String>,
    end: Option<String>,
}

/// A time as seconds since 1970 or in RFC 3339; in microseconds since 1970.
fn time(field: &str, text: &str) -> Result<i64, Error> {
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

async fn samples(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Range>,
) -> Answer<Json<Vec<SampleView>>> {
    let bound = |field: &str, text: Option<String>| text.map(|text| time(field, &text)).transpose();
    let from = bound("start", asked.start)?.unwrap_or(i64::MIN);
    let to = bound("end", asked.end)?.unwrap_or(i64::MAX);
    let used = app.core.look(&caller, &id)?;
    let samples = used.runtime().samples(used.id(), from, to)?;
    Ok(Json(samples.into_iter().map(SampleView::from).collect()))
}

/// How many lines an answer has at most.
const MOST: usize = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    follow: bool,
}

/// A line on the wire, and what kind it is.
fn view(logged: &Logged) -> (&'static str, Value) {
    let (kind, mut body) = match &logged.what {
        Chunk::Data {
            stream,
            position,
            bytes,
        } => {
            let text = String::from_utf8_lossy(bytes);
            let body = json!({ "position": position, "text": text });
            (stream::name(*stream), body)
        }
        Chunk::Gap { from, to } => ("gap", json!({ "from": from, "to": to })),
        Chunk::Exit(status) => ("exit", json!(Exit::from(*status))),
    };
    body["execID"] = logged.exec.as_str().into();
    body["startedAt"] = json!(Time::new(logged.started_at));
    body["stream"] = kind.into();
    (kind, body)
}

async fn logs(
    State(app): State<App>,
    Caller(caller): Caller,
    Path(id): Path<String>,
    Query(asked): Query<Listed>,
    headers: HeaderMap,
) -> Answer {
    let limit = asked.limit.unwrap_or(MOST);
    if !(1..=MOST).contains(&limit) {
        let message = format!("limit is {limit}");
        return Err(Error::invalid("limit", message, "give 1 to 1000").into());
    }
    // A browser that lost the stream says how far it had come.
    let last = headers.get("last-event-id");
    let last = last.and_then(|last| Some(last.to_str().ok()?.to_owned()));
    let after = last.filter(|_| asked.follow).or(asked.after);
    let mut logs = open(&app, &caller, &id, after.as_deref())?;
    if asked.follow {
        return Ok(follow(logs));
    }
    let mut lines = Vec::new();
    while lines.len() < limit
        && let Some(logged) = logs.line()?
    {
        lines.push(view(&logged).1);
    }
    let mut headers = HeaderMap::new();
    if lines.len() == limit
        && let Ok(cursor) = HeaderValue::from_str(&logs.cursor())
    {
        headers.insert("x-next-cursor", cursor);
    }
    Ok((headers, Json(lines)).into_response())
}

fn open(app: &App, caller: &Context, id: &str, after: Option<&str>) -> Result<Logs, Error> {
    let used = app.core.look(caller, id)?;
    used.runtime().logs(used.id(), after)
}

/// Server-sent events: what was written, then what is. The `id` of each is where to go on after it.
fn follow(logs: Logs) -> Response {
    let events = futures_util::stream::unfold(Some(logs), |logs| async {
        let mut logs = logs?;
        match tokio::time::timeout(stream::PING, logs.next()).await {
            Err(_) => Some((Bytes::from_static(stream::PINGED.as_bytes()), Some(logs))),
            Ok(Ok(Some(logged))) => {
                let (name, body) = view(&logged);
                let cursor = logs.cursor();
                let event = format!("id: {cursor}\nevent: {name}\ndata: {body}\n\n");
                Some((Bytes::from(event), Some(logs)))
            }
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some((Bytes::from(stream::failed(&error)), None)),
        }
    });
    stream::answer(events)
}
