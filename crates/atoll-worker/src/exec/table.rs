//! The commands of one sandbox, running and ended, by id, pid or tag.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{Code, Error, ExecId, ExecInfo, ExecSpec};

use super::record::{self, Record};
use super::{Shared, log::Log};

/// How many ended commands are remembered, with what they wrote.
const REMEMBERED: usize = 256;
/// How many may run at once.
const MOST: usize = 256;
/// How many of them on terminals.
const MOST_TERMINALS: usize = 20;

/// The commands of a sandbox. They outlast its processes.
#[derive(Debug)]
pub(crate) struct Table {
    directory: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order they began.
    all: BTreeMap<u64, Arc<Shared>>,
    next: u64,
    /// Begun, but not among them yet: all, and those on terminals.
    claimed: [usize; 2],
    /// Those of earlier servers are here too.
    complete: bool,
}

impl Table {
    /// Of a sandbox with its files in `directory`; `complete` if nobody ran a command in it before.
    pub(crate) fn new(directory: PathBuf, complete: bool) -> Self {
        let inner = Inner {
            complete,
            ..Inner::default()
        };
        Self {
            directory,
            inner: Mutex::new(inner),
        }
    }

    /// Where their files are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`Self::inner`], with those of earlier servers read in.
    fn complete(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner();
        if !std::mem::replace(&mut inner.complete, true) {
            for record in Record::all(&self.directory) {
                if let Ok(shared) = Shared::of_ended(record) {
                    inner.add(Arc::new(shared));
                }
            }
        }
        inner
    }

    /// Adds a command that has begun.
    pub(crate) fn add(&self, shared: Arc<Shared>) {
        self.inner().add(shared);
    }

    /// Adds a command that ended before we were there.
    pub(crate) fn add_ended(&self, record: Record) {
        if let Ok(shared) = Shared::of_ended(record) {
            self.add(Arc::new(shared));
        }
    }

    /// Takes a place for a command that is about to begin, until it is among the others. No two can have the
    /// last one.
    pub(crate) fn claim(self: &Arc<Self>, spec: &ExecSpec) -> Result<Claim, Error> {
        let mut inner = self.inner();
        let running = inner.all.values().filter(|exec| !exec.ended());
        let terminals = running
            .clone()
            .filter(|exec| exec.spec.terminal.is_some())
            .count();
        let (running, terminal) = (running.count(), spec.terminal.is_some());
        let full = if terminal && terminals + inner.claimed[1] >= MOST_TERMINALS {
            format!("this sandbox has {MOST_TERMINALS} terminals already")
        } else if running + inner.claimed[0] >= MOST {
            format!("{MOST} commands run in this sandbox already")
        } else {
            inner.claimed[0] += 1;
            inner.claimed[1] += usize::from(terminal);
            return Ok(Claim {
                table: Arc::clone(self),
                terminal,
            });
        };
        Err(Error::new(Code::QuotaExceeded, full).remedy("wait for some to end, or end some"))
    }

    /// Forgets the oldest of those that have ended, and removes their files.
    pub(crate) fn tidy(&self) {
        let mut inner = self.inner();
        let over: Vec<(u64, Arc<Shared>)> = {
            let ended = inner.all.iter().filter(|(_, exec)| exec.closed());
            let count = ended.clone().count();
            ended
                .take(count.saturating_sub(REMEMBERED))
                .map(|(number, exec)| (*number, Arc::clone(exec)))
                .collect()
        };
        for (number, _) in &over {
            inner.all.remove(number);
        }
        drop(inner);
        for (_, exec) in over {
            record::remove(&self.directory.join(exec.id.as_str()));
        }
    }

    /// All of them, newest first.
    pub(crate) fn list(&self) -> Vec<ExecInfo> {
        let inner = self.complete();
        inner.all.values().rev().map(|exec| exec.info()).collect()
    }

    /// The one with this id.
    pub(crate) fn find(&self, id: &ExecId) -> Result<Arc<Shared>, Error> {
        self.find_by(|exec| exec.id == *id)
            .ok_or_else(|| unknown("id", id.as_str()))
    }

    /// The running one with this pid, or the last that had it.
    pub(crate) fn find_pid(&self, pid: i32) -> Result<Arc<Shared>, Error> {
        self.find_by(|exec| exec.pid == pid && !exec.ended())
            .or_else(|| self.find_by(|exec| exec.pid == pid))
            .ok_or_else(|| unknown("pid", &pid.to_string()))
    }

    /// The newest with this tag.
    pub(crate) fn find_tag(&self, tag: &str) -> Result<Arc<Shared>, Error> {
        self.find_by(|exec| exec.spec.tag.as_deref() == Some(tag))
            .ok_or_else(|| unknown("tag", tag))
    }

    fn find_by(&self, fits: impl Fn(&Shared) -> bool) -> Option<Arc<Shared>> {
        let inner = self.complete();
        inner.all.values().rev().find(|exec| fits(exec)).cloned()
    }
}

/// A place for a command.
#[derive(Debug)]
pub(crate) struct Claim {
    table: Arc<Table>,
    terminal: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        inner.claimed[0] -= 1;
        inner.claimed[1] -= usize::from(self.terminal);
    }
}

impl Inner {
    fn add(&mut self, shared: Arc<Shared>) {
        self.next += 1;
        self.all.insert(self.next, shared);
    }
}

impl Shared {
    /// A command that ended before we were there; without a word of its end it was killed.
    fn of_ended(record: Record) -> std::io::Result<Self> {
        let log = Log::open(record.stem().to_owned())?;
        Ok(Self::with(record, log))
    }
}

fn unknown(by: &str, value: &str) -> Error {
    Error::new(
        Code::ExecNotFound,
        format!("there is no command with {by} {value}"),
    )
    .detail(by, value)
}
