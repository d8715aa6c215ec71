//! Durable record of a command in the sandbox's record log: a line when it starts, when its
//! deadline clock is set, when its terminal is resized and when it ends. PID 1 keeps the exit
//! status until the last line is written.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Error, ExecId, ExecInfo, ExecSpec, ExecStatus, TerminalSize};
use serde::{Deserialize, Serialize};

use super::output_log::OutputLog;
use super::record_log::{self, RecordLog};
use super::start::SpawnedExec;
use super::stdin::StdinQueue;
use crate::error::internal;

/// Everything that a later server needs to adopt or list a command.
#[derive(Debug, Clone)]
pub(crate) struct ExecRecord {
    log: Arc<RecordLog>,
    /// Bytes of the record log that are about this command.
    bytes_in_log: usize,
    pub(crate) id: ExecId,
    pub(crate) request: u32,
    pub(crate) leaf: String,
    pub(crate) pid: i32,
    pub(crate) spec: Arc<ExecSpec>,
    pub(crate) started_at: i64,
    pub(crate) clock: Option<Clock>,
    pub(crate) status: Option<ExecStatus>,
    pub(crate) ended_at: Option<i64>,
    /// Terminal sizes, each with the log offset at which it took effect.
    pub(crate) resizes: Vec<(u64, TerminalSize)>,
}

/// Remaining time of a command with a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clock {
    pub(crate) left: Duration,
    /// When `left` was measured, in microseconds since 1970; `None` while the clock is stopped.
    /// Read by older servers.
    pub(crate) at: Option<i64>,
    /// The same on `CLOCK_MONOTONIC`, which cannot be set. `None` in records of older servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) monotonic: Option<i64>,
}

impl Clock {
    /// A clock that runs from now.
    pub(super) fn running(left: Duration) -> Self {
        Self {
            left,
            at: Some(super::now()),
            monotonic: Some(monotonic()),
        }
    }

    /// A stopped clock.
    pub(super) fn stopped(left: Duration) -> Self {
        Self {
            left,
            at: None,
            monotonic: None,
        }
    }

    /// Remaining time now. A command runs within one boot of the host, so its monotonic times are
    /// comparable.
    pub(crate) fn left(&self) -> Duration {
        let elapsed = match (self.monotonic, self.at) {
            (Some(since), _) => monotonic() - since,
            (None, Some(since)) => super::now() - since,
            (None, None) => 0,
        };
        let elapsed = u64::try_from(elapsed).unwrap_or(0);
        self.left.saturating_sub(Duration::from_micros(elapsed))
    }
}

/// `CLOCK_MONOTONIC` in microseconds, the clock of tokio's timers.
fn monotonic() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line<'a> {
    #[serde(rename = "begun")]
    Started(StartLine<'a>),
    Clock(Clock),
    Resized(u64, TerminalSize),
    Ended {
        #[serde(flatten)]
        status: ExecStatus,
        at: Option<i64>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct StartLine<'a> {
    version: u32,
    request: u32,
    leaf: Cow<'a, str>,
    pid: i32,
    spec: Cow<'a, Arc<ExecSpec>>,
    started_at: i64,
    /// See [`Clock::monotonic`]. Only for commands with a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    monotonic: Option<i64>,
}

impl ExecRecord {
    pub(super) fn new(
        log: &Arc<RecordLog>,
        id: ExecId,
        spawned: &SpawnedExec,
        spec: &Arc<ExecSpec>,
        started_at: i64,
    ) -> Self {
        let start = StartLine {
            version: 1,
            request: spawned.request,
            leaf: spawned.leaf.name().into(),
            pid: spawned.pid,
            spec: Cow::Borrowed(spec),
            started_at,
            monotonic: spec.deadline.map(|_| monotonic()),
        };
        Self::from_start(log, id, start)
    }

    fn from_start(log: &Arc<RecordLog>, id: ExecId, start: StartLine<'_>) -> Self {
        let (spec, started_at) = (start.spec.into_owned(), start.started_at);
        Self {
            log: Arc::clone(log),
            bytes_in_log: 0,
            id,
            request: start.request,
            leaf: start.leaf.into_owned(),
            pid: start.pid,
            clock: spec.deadline.map(|left| Clock {
                left,
                at: Some(started_at),
                monotonic: start.monotonic,
            }),
            spec,
            started_at,
            status: None,
            ended_at: None,
            resizes: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn for_test(log: &Arc<RecordLog>, spec: ExecSpec, started_at: i64) -> Self {
        let start = StartLine {
            version: 1,
            request: 1,
            leaf: "1".into(),
            pid: 7,
            spec: Cow::Owned(Arc::new(spec)),
            started_at,
            monotonic: None,
        };
        Self::from_start(log, ExecId::random(), start)
    }

    /// Details of the command, as far as they were recorded.
    pub(crate) fn info(&self) -> ExecInfo {
        ExecInfo {
            id: self.id.clone(),
            pid: self.pid,
            spec: Arc::clone(&self.spec),
            started_at: self.started_at,
            status: self.status,
            ended_at: self.ended_at,
        }
    }

    /// Path of the command's files without the extension.
    pub(crate) fn stem(&self) -> PathBuf {
        self.log.directory().join(self.id.as_str())
    }

    /// Appends the start line.
    pub(super) fn write_start(&mut self) -> Result<(), Error> {
        let line = serde_json::to_vec(&Line::Started(StartLine {
            version: 1,
            request: self.request,
            leaf: Cow::Borrowed(&self.leaf),
            pid: self.pid,
            spec: Cow::Borrowed(&self.spec),
            started_at: self.started_at,
            monotonic: self.clock.and_then(|clock| clock.monotonic),
        }));
        self.append(line)
    }

    /// Appends a clock line.
    pub(super) fn write_clock(&mut self, clock: Clock) -> Result<(), Error> {
        self.clock = Some(clock);
        self.append(serde_json::to_vec(&Line::Clock(clock)))
    }

    /// Appends a resize line.
    pub(super) fn write_resize(&mut self, position: u64, size: TerminalSize) -> Result<(), Error> {
        self.append(serde_json::to_vec(&Line::Resized(position, size)))
    }

    /// Appends the end line.
    pub(super) fn write_end(&mut self, status: ExecStatus, at: i64) -> Result<(), Error> {
        (self.status, self.ended_at) = (Some(status), Some(at));
        let at = Some(at);
        self.append(serde_json::to_vec(&Line::Ended { status, at }))
    }

    fn append(&mut self, line: serde_json::Result<Vec<u8>>) -> Result<(), Error> {
        let line = line.map_err(|error| internal("write a record", &error))?;
        self.log.append(&self.id, &line)?;
        self.bytes_in_log += record_log::line_bytes(self.id.as_str(), &line);
        Ok(())
    }

    /// All live records of a log, in start order.
    pub(crate) fn read_all(log: &Arc<RecordLog>) -> Result<Vec<Self>, Error> {
        let lines = log.read()?;
        let mut all: HashMap<&str, Self> = HashMap::new();
        for (name, text) in lines.iter() {
            match (serde_json::from_slice(text), all.get_mut(name)) {
                (Ok(Line::Started(start)), None) => {
                    if let Ok(id) = name.parse() {
                        all.insert(name, Self::from_start(log, id, start));
                    }
                }
                (Ok(Line::Clock(clock)), Some(record)) => record.clock = Some(clock),
                (Ok(Line::Resized(position, size)), Some(record)) => {
                    record.resizes.push((position, size));
                }
                (Ok(Line::Ended { status, at }), Some(record)) => {
                    (record.status, record.ended_at) = (Some(status), at);
                }
                _ => {}
            }
            if let Some(record) = all.get_mut(name) {
                record.bytes_in_log += record_log::line_bytes(name, text);
            }
        }
        let mut all: Vec<Self> = all.into_values().collect();
        all.sort_by_key(|record| record.started_at);
        Ok(all)
    }

    /// Deletes the record of a command that failed to start.
    pub(super) fn tombstone(&self) {
        self.log.tombstone(&[(self.id.clone(), self.bytes_in_log)]);
    }

    /// Removes the command's files; returns the arguments for [`RecordLog::tombstone`].
    pub(super) fn remove_files(&self, log: &OutputLog) -> (ExecId, usize) {
        log.remove();
        if self.spec.stdin == atoll_model::Stdin::Piped {
            StdinQueue::remove_files(&self.stem());
        }
        (self.id.clone(), self.bytes_in_log)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_does_not_depend_on_the_system_clock() {
        const YEAR: i64 = 365 * 24 * 3_600_000_000;
        let hour = Duration::from_hours(1);
        for step in [-10 * YEAR, 10 * YEAR] {
            let mut clock = Clock::running(hour);
            clock.at = clock.at.map(|at| at + step);
            let left = clock.left();
            assert!(left <= hour && left > hour / 2, "{left:?}");
        }
        assert_eq!(Clock::stopped(hour).left(), hour);
        // A record of an older server has no monotonic time.
        let old: Clock =
            serde_json::from_str(r#"{"left":{"secs":3600,"nanos":0},"at":1}"#).unwrap();
        assert_eq!(old.left(), Duration::ZERO);
    }
}
