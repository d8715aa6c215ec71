//! What sandboxes use and what their commands wrote, in the form that E2B's clients read.

use std::collections::{BTreeMap, VecDeque};

use atoll_model::{Code, Error, OutputChunk, Sample, Stream};
use atoll_worker::LogLine;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{find, for_sandbox, id_of};
use crate::AppState;
use crate::api_types::Time;
use crate::e2b::error::{E2bAuth, E2bError, E2bResult};
use crate::e2b::lenient::LenientQuery;

/// What a sandbox used at a moment; all numbers must be there.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    timestamp: Time,
    timestamp_unix: i64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl From<Sample> for Metric {
    fn from(sample: Sample) -> Self {
        Self {
            timestamp: Time::new(sample.at),
            timestamp_unix: sample.at / 1_000_000,
            cpu_count: sample.limits.cpus.0.div_ceil(1000).max(1),
            cpu_used_pct: sample.cpu_percent,
            mem_used: sample.memory.0,
            mem_total: sample.limits.memory.0,
            mem_cache: sample.cache.0,
            // A new one has not been measured.
            disk_used: sample.disk.map_or(0, |disk| disk.0),
            disk_total: sample.limits.disk.0,
        }
    }
}

/// Seconds since 1970.
#[derive(Debug, Deserialize)]
pub(super) struct MetricsQuery {
    start: Option<i64>,
    end: Option<i64>,
}

pub(super) async fn metrics(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientQuery(query): LenientQuery<MetricsQuery>,
) -> E2bResult<Json<Vec<Metric>>> {
    let id = id_of(&id);
    find(&app, &caller, id)?;
    let from = query.start.unwrap_or(i64::MIN).saturating_mul(1_000_000);
    // The second that is named last is part of it.
    let end = query.end.map(|end| end.saturating_add(1));
    let to = end.unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let access = app.core.peek(&caller, id).map_err(for_sandbox(id))?;
    let samples = access.runtime().samples(access.id(), from, to);
    let samples = samples.map_err(for_sandbox(id))?.into_iter();
    Ok(Json(samples.map(Metric::from).collect()))
}

#[derive(Debug, Deserialize)]
pub(super) struct LatestMetricsQuery {
    sandbox_ids: String,
}

/// How many sandboxes one question may be about.
const MAX_SANDBOXES: usize = 100;

/// The last sample of each. Who is not there is not in the answer.
pub(super) async fn latest(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    LenientQuery(query): LenientQuery<LatestMetricsQuery>,
) -> E2bResult<Json<Value>> {
    let ids: Vec<&str> = query.sandbox_ids.split(',').map(id_of).collect();
    if ids.len() > MAX_SANDBOXES {
        let message = format!("sandbox_ids: give {MAX_SANDBOXES} at most");
        return Err(E2bError::new(StatusCode::BAD_REQUEST, message));
    }
    let mut found = BTreeMap::new();
    for id in ids {
        let samples = app.core.peek(&caller, id).and_then(|access| {
            let samples = access.runtime().samples(access.id(), i64::MIN, i64::MAX);
            Ok(samples?.pop())
        });
        match samples {
            Ok(Some(sample)) => found.insert(id, Metric::from(sample)),
            Ok(None) => None,
            Err(error) if error.code == Code::SandboxNotFound => None,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Json(json!({ "sandboxes": found })))
}

/// How many lines an answer has at most, and has if nothing is said.
const MAX_LINES: usize = 1000;

/// A line with what it is about. Its time is that of its command's begin.
#[derive(Debug, Serialize)]
struct LogEntry {
    timestamp: Time,
    message: String,
    level: Level,
    fields: BTreeMap<&'static str, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogEntry {
    /// Ends and gaps are no lines.
    fn from_log(logged: &LogLine) -> Option<Self> {
        let OutputChunk::Data { stream, bytes, .. } = &logged.content else {
            return None;
        };
        let level = match stream {
            Stream::Stdout => Level::Info,
            Stream::Stderr => Level::Error,
        };
        let fields = [
            ("execID", logged.exec.to_string()),
            ("stream", crate::sse::stream_name(*stream).to_owned()),
        ];
        Some(Self {
            timestamp: Time::new(logged.started_at),
            message: String::from_utf8_lossy(bytes).trim_end().to_owned(),
            level,
            fields: fields.into(),
        })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    #[default]
    Forward,
    Backward,
}

/// Which lines. Times are milliseconds since 1970.
#[derive(Debug, Default, Deserialize)]
pub(super) struct LogsQuery {
    #[serde(alias = "start")]
    cursor: Option<i64>,
    limit: Option<usize>,
    #[serde(default)]
    direction: Direction,
    level: Option<Level>,
    search: Option<String>,
}

impl LogsQuery {
    fn matches_query(&self, logged: &LogLine, line: &LogEntry) -> bool {
        let at = logged.started_at / 1000;
        let in_time = self.cursor.is_none_or(|cursor| match self.direction {
            Direction::Forward => at >= cursor,
            Direction::Backward => at <= cursor,
        });
        let search = self.search.as_ref();
        in_time
            && self.level.is_none_or(|level| line.level >= level)
            && search.is_none_or(|words| line.message.contains(words.as_str()))
    }

    /// The first or the last of those that fit, in the order that was asked for.
    fn select(
        &self,
        mut lines: impl FnMut() -> Result<Option<LogLine>, Error>,
        limit: usize,
    ) -> Result<Vec<LogEntry>, Error> {
        let backward = self.direction == Direction::Backward;
        let mut found = VecDeque::new();
        while (backward || found.len() < limit)
            && let Some(logged) = lines()?
        {
            let Some(line) =
                LogEntry::from_log(&logged).filter(|line| self.matches_query(&logged, line))
            else {
                continue;
            };
            found.push_back(line);
            if found.len() > limit {
                found.pop_front();
            }
        }
        Ok(if backward {
            found.into_iter().rev().collect()
        } else {
            found.into()
        })
    }
}

async fn read(
    app: AppState,
    caller: atoll_core::RequestContext,
    id: &str,
    query: LogsQuery,
) -> E2bResult<Vec<LogEntry>> {
    let limit = query.limit.unwrap_or(MAX_LINES);
    if limit > MAX_LINES {
        let message = format!("limit: give {MAX_LINES} at most");
        return Err(E2bError::new(StatusCode::BAD_REQUEST, message));
    }
    find(&app, &caller, id)?;
    let access = app.core.peek(&caller, id).map_err(for_sandbox(id))?;
    let mut logs = access
        .runtime()
        .logs(access.id(), None)
        .map_err(for_sandbox(id))?;
    // All of it may be read, from files.
    let read = tokio::task::spawn_blocking(move || query.select(|| logs.try_next(), limit));
    let lost = |_| Error::new(Code::Internal, "the logs were not read to their end");
    Ok(read.await.map_err(lost)??)
}

/// As older clients read them: lines, and the same with what they are about.
pub(super) async fn lines(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientQuery(query): LenientQuery<LogsQuery>,
) -> E2bResult<Json<Value>> {
    let lines = read(app, caller, id_of(&id), query).await?;
    let plain = lines.iter();
    let plain: Vec<Value> = plain
        .map(|line| json!({ "timestamp": line.timestamp, "line": line.message }))
        .collect();
    Ok(Json(json!({ "logs": plain, "logEntries": lines })))
}

pub(super) async fn entries(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientQuery(query): LenientQuery<LogsQuery>,
) -> E2bResult<Json<Value>> {
    let lines = read(app, caller, id_of(&id), query).await?;
    Ok(Json(json!({ "logs": lines })))
}
