//! Output of all commands of a sandbox in E2B's form.

use std::collections::{BTreeMap, VecDeque};

use atoll_model::runtime::{LogFollower, LogLine};
use atoll_model::{Error, OutputChunk, Stream};
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

/// Default and maximum number of lines.
const MAX_LINES: usize = 1000;

/// A log line. Its time is the start time of its command.
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
    /// `None` for exits and gaps.
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

/// Filters for lines. Times are Unix milliseconds.
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

    /// The first or last matching lines, in the requested order.
    async fn select(
        &self,
        mut logs: Box<dyn LogFollower>,
        limit: usize,
    ) -> Result<Vec<LogEntry>, Error> {
        let backward = self.direction == Direction::Backward;
        let mut found = VecDeque::new();
        let mut is_last = false;
        while !is_last && (backward || found.len() < limit) {
            let lines = logs.available(MAX_LINES).await?;
            is_last = lines.len() < MAX_LINES;
            for logged in lines {
                let Some(line) =
                    LogEntry::from_log(&logged).filter(|line| self.matches_query(&logged, line))
                else {
                    continue;
                };
                if found.len() < limit {
                    found.push_back(line);
                } else if backward {
                    found.push_back(line);
                    found.pop_front();
                }
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
    find(&app, &caller, id).await?;
    let access = app
        .access
        .peek(&caller, id)
        .await
        .map_err(for_sandbox(id))?;
    let logs = access.runtime().logs(access.id(), None).await;
    let logs = logs.map_err(for_sandbox(id))?;
    Ok(query.select(logs, limit).await?)
}

/// Version 1: plain lines, and the same as entries.
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
