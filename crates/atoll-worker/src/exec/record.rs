//! What stands beside a command's output and says what it is: a line when it begins, a line whenever its
//! clock is set, a line when it ends. A line that was cut off by a kill counts as not written: PID 1
//! remembers the end until it is.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{Error, ExecId, ExecInfo, ExecSpec, ExecStatus, Input, TerminalSize};
use serde::{Deserialize, Serialize};

use super::log::Log;
use super::start::Begun;
use crate::error::{host_file, internal};

/// Everything a later server must know of a command.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    stem: PathBuf,
    pub(crate) id: ExecId,
    pub(crate) request: u32,
    pub(crate) leaf: String,
    pub(crate) pid: i32,
    pub(crate) spec: ExecSpec,
    pub(crate) started_at: i64,
    pub(crate) clock: Option<Clock>,
    pub(crate) status: Option<ExecStatus>,
    pub(crate) ended_at: Option<i64>,
    /// Sizes its terminal was given, and where its log was then.
    pub(crate) resizes: Vec<(u64, TerminalSize)>,
}

/// How long a command still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clock {
    pub(crate) left: Duration,
    /// When that was so; nothing while the clock stands still.
    pub(crate) at: Option<i64>,
}

impl Clock {
    /// What is left now.
    pub(crate) fn left(&self) -> Duration {
        let gone = self.at.map_or(0, |at| (super::now() - at).max(0));
        self.left.saturating_sub(Duration::from_micros(gone as u64))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    Begun {
        version: u32,
        request: u32,
        leaf: String,
        pid: i32,
        spec: Box<ExecSpec>,
        started_at: i64,
    },
    Clock(Clock),
    Resized(u64, TerminalSize),
    Ended {
        #[serde(flatten)]
        status: ExecStatus,
        at: Option<i64>,
    },
}

impl Record {
    pub(super) fn new(
        stem: PathBuf,
        id: ExecId,
        begun: &Begun,
        spec: &ExecSpec,
        started_at: i64,
    ) -> Self {
        Self {
            stem,
            id,
            request: begun.request,
            leaf: begun.leaf.name(),
            pid: begun.pid,
            spec: spec.clone(),
            started_at,
            clock: spec.deadline.map(|left| Clock {
                left,
                at: Some(started_at),
            }),
            status: None,
            ended_at: None,
            resizes: Vec::new(),
        }
    }

    /// What it is and how it ended, as far as it is written down.
    pub(crate) fn info(&self) -> ExecInfo {
        ExecInfo {
            id: self.id.clone(),
            pid: self.pid,
            spec: self.spec.clone(),
            started_at: self.started_at,
            status: self.status,
            ended_at: self.ended_at,
        }
    }

    /// Where its files are, but for what tells them apart.
    pub(crate) fn stem(&self) -> &Path {
        &self.stem
    }

    /// Writes its beginning down.
    pub(super) fn write(&self) -> Result<(), Error> {
        self.append(&Line::Begun {
            version: 1,
            request: self.request,
            leaf: self.leaf.clone(),
            pid: self.pid,
            spec: Box::new(self.spec.clone()),
            started_at: self.started_at,
        })
    }

    /// Writes down how long it still has.
    pub(super) fn set_clock(&mut self, clock: Clock) -> Result<(), Error> {
        self.clock = Some(clock);
        self.append(&Line::Clock(clock))
    }

    /// Writes down that its terminal has another size.
    pub(super) fn resize(&self, position: u64, size: TerminalSize) -> Result<(), Error> {
        self.append(&Line::Resized(position, size))
    }

    /// Writes its end down.
    pub(super) fn end(&mut self, status: ExecStatus, at: i64) -> Result<(), Error> {
        (self.status, self.ended_at) = (Some(status), Some(at));
        let at = Some(at);
        self.append(&Line::Ended { status, at })
    }

    fn append(&self, line: &Line) -> Result<(), Error> {
        let path = self.stem.with_extension("json");
        let mut text =
            serde_json::to_vec(line).map_err(|error| internal("write a record", &error))?;
        text.push(b'\n');
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&text));
        written.map_err(|error| host_file("write", &path, &error))
    }

    /// Reads what was written; nothing if it never began.
    pub(crate) fn read(stem: &Path, id: &ExecId) -> Option<Self> {
        let text = fs::read(stem.with_extension("json")).ok()?;
        let mut record: Option<Self> = None;
        for line in text.split(|byte| *byte == b'\n') {
            match (serde_json::from_slice(line), &mut record) {
                (
                    Ok(Line::Begun {
                        request,
                        leaf,
                        pid,
                        spec,
                        started_at,
                        ..
                    }),
                    None,
                ) => {
                    let clock = spec.deadline.map(|left| Clock {
                        left,
                        at: Some(started_at),
                    });
                    record = Some(Self {
                        stem: stem.to_owned(),
                        id: id.clone(),
                        request,
                        leaf,
                        pid,
                        spec: *spec,
                        started_at,
                        clock,
                        status: None,
                        ended_at: None,
                        resizes: Vec::new(),
                    });
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
        }
        record
    }

    /// Removes it, and what there may be of the command beside it.
    pub(super) fn remove(&self, log: &Log) {
        remove(&self.stem, ["json"]);
        if log.has_files() {
            remove(&self.stem, ["log", "index"]);
        }
        if self.spec.input == Input::Open {
            remove(&self.stem, ["in", "closed"]);
        }
    }

    /// All that are in a directory, in the order they began.
    pub(crate) fn all(directory: &Path) -> Vec<Self> {
        let mut all: Vec<Self> = fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let id = path.file_stem()?.to_str()?.parse().ok()?;
                (path.extension()? == "json")
                    .then(|| Self::read(&path.with_extension(""), &id))
                    .flatten()
            })
            .collect();
        all.sort_by_key(|record| record.started_at);
        all
    }
}

/// Removes what was made for a command that did not begin.
pub(super) fn forget(stem: &Path) {
    remove(stem, ["json", "in"]);
}

fn remove<'a>(stem: &Path, kinds: impl IntoIterator<Item = &'a str>) {
    for kind in kinds {
        let _ = fs::remove_file(stem.with_extension(kind));
    }
}
