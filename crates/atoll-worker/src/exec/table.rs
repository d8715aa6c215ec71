//! The commands of one sandbox, running and ended, by id, pid or tag.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_model::{Code, Error, ExecId, ExecInfo};
use tokio::sync::watch;

use super::record::{self, Record};
use super::{Shared, log::Log};

/// How many ended commands are remembered, with what they wrote.
const REMEMBERED: usize = 256;
/// How many may run at once.
const MOST: usize = 256;

/// The commands of a sandbox. They outlast its processes.
#[derive(Debug)]
pub(crate) struct Table {
    directory: PathBuf,
    inner: Mutex<Inner>,
    /// Told when a command is added; true when none will be any more.
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order they began.
    all: BTreeMap<u64, Arc<Shared>>,
    next: u64,
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
            closed: watch::Sender::new(false),
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
            let newer = std::mem::take(&mut inner.all);
            for record in Record::all(&self.directory) {
                // Those that began since then are written down too.
                if newer.values().any(|exec| exec.id == record.id) {
                    continue;
                }
                if let Ok(shared) = Shared::of_ended(record) {
                    inner.add(Arc::new(shared));
                }
            }
            for exec in newer.into_values() {
                inner.add(exec);
            }
        }
        inner
    }

    /// Adds a command that has begun.
    pub(crate) fn add(&self, shared: Arc<Shared>) {
        let mut inner = self.inner();
        // It may have been found among those of earlier servers: it is written down before it is added.
        inner.all.retain(|_, known| known.id != shared.id);
        inner.add(shared);
        drop(inner);
        self.closed.send_modify(|_| {});
    }

    /// No command will be added any more: the sandbox is gone, or another table is its.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Told when a command is added; true when none will be.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// The first after another in the order they began that is not to be left out; if the other is forgotten, so are
    /// all that ended before it.
    pub(crate) fn next_after(
        &self,
        other: Option<&ExecId>,
        left_out: impl Fn(&Shared) -> bool,
    ) -> Option<Arc<Shared>> {
        let inner = self.complete();
        let other = other.and_then(|id| inner.all.iter().find(|(_, exec)| exec.id == *id));
        let first = other.map_or(0, |(number, _)| number + 1);
        let mut later = inner.all.range(first..).map(|(_, exec)| exec);
        later.find(|exec| !left_out(exec)).cloned()
    }

    /// Adds a command that ended before we were there.
    pub(crate) fn add_ended(&self, record: Record) {
        if let Ok(shared) = Shared::of_ended(record) {
            self.add(Arc::new(shared));
        }
    }

    /// Refuses more than can run at once.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        let running = self
            .inner()
            .all
            .values()
            .filter(|exec| !exec.ended())
            .count();
        if running < MOST {
            return Ok(());
        }
        let message = format!("{running} commands run in this sandbox already");
        Err(Error::new(Code::QuotaExceeded, message).remedy("wait for some to end, or end some"))
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
