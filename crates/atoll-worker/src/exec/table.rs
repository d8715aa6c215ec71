//! The commands of one sandbox, running and ended, by id, pid or tag.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::{Again, Code, Error, ExecId, ExecInfo, ExecSpec};
use tokio::sync::watch;
use tokio::time::Instant;

use super::record::{self, Record};
use super::{Shared, log::Log};
use crate::journal::Mark;

/// How many ended commands are remembered, with what they wrote.
const REMEMBERED: usize = 256;
/// How many more wait for the journal before they are given up.
const WAITING: usize = 4 * REMEMBERED;
/// How many may run at once.
const MOST: usize = 256;
/// How many of them may have a terminal.
const TERMINALS: usize = 20;

/// The commands of a sandbox. They outlast its processes.
#[derive(Debug)]
pub(crate) struct Table {
    directory: PathBuf,
    /// Where it says that something happened, if that is written down.
    mark: Option<Mark>,
    inner: Mutex<Inner>,
    /// Told when a command is added, or did not begin; true when none will be any more.
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order they began.
    all: BTreeMap<u64, Arc<Shared>>,
    next: u64,
    /// Those that are about to begin, and how many of them have a terminal.
    beginning: (usize, usize),
    /// The keys of those among them that may be asked for again.
    keys: HashSet<String>,
    /// Those of earlier servers are here too.
    complete: bool,
    /// The journal may not have those of earlier servers that are not here.
    behind: bool,
}

/// What a journal does not have yet.
pub(crate) struct News {
    pub(crate) commands: Vec<Arc<Shared>>,
    /// Those of earlier servers among them.
    old: bool,
}

impl Table {
    /// Of a sandbox with its files in `directory`; `complete` if nobody ran a command in it before.
    pub(crate) fn new(directory: PathBuf, complete: bool, mark: Option<Mark>) -> Self {
        let inner = Inner {
            complete,
            behind: !complete,
            ..Inner::default()
        };
        let table = Self {
            directory,
            mark,
            inner: Mutex::new(inner),
            closed: watch::Sender::new(false),
        };
        if let Some(mark) = table.mark.as_ref().filter(|_| table.journal().exists()) {
            mark.has_journal();
        }
        if !complete {
            table.has_news();
        }
        table
    }

    /// Where the journal is.
    pub(crate) fn journal(&self) -> PathBuf {
        self.directory.with_file_name("journal.db")
    }

    /// Something happened.
    pub(crate) fn has_news(&self) {
        if let Some(mark) = &self.mark {
            mark.has_news();
        }
    }

    /// What the journal does not have yet.
    pub(crate) fn news(&self) -> News {
        let inner = self.inner();
        let (old, known) = (inner.behind, inner.ids());
        let fresh = inner.all.values();
        let fresh = fresh.filter(|exec| !exec.noted.is(exec.ended()));
        let mut commands: Vec<Arc<Shared>> = fresh.cloned().collect();
        drop(inner);
        if old {
            let records = Record::all(&self.directory).into_iter();
            let records = records.filter(|record| !known.contains(&record.id));
            let ended = records.filter_map(|record| Shared::of_ended(record).ok());
            commands.extend(ended.map(Arc::new));
        }
        News { commands, old }
    }

    /// The journal has this now, as these rows tell.
    pub(crate) fn noted(&self, news: &News, rows: &[atoll_store::CommandRow]) {
        for (exec, row) in news.commands.iter().zip(rows) {
            exec.noted.set(row.ended.is_some());
        }
        if news.old {
            self.inner().behind = false;
        }
        self.tidy();
    }

    /// The journal is gone, and has to be written again.
    pub(crate) fn forget_noted(&self) {
        let mut inner = self.inner();
        inner.behind = true;
        for exec in inner.all.values() {
            exec.noted.clear();
        }
        drop(inner);
        self.has_news();
    }

    /// Sees to it that all of them have ended, since their processes are gone: whoever is told that by nobody in time
    /// (its task may wait for room on the disk) was killed.
    pub(crate) async fn see_ends(&self, patience: Duration) {
        let all: Vec<Arc<Shared>> = self.inner().all.values().cloned().collect();
        let until = Instant::now() + patience;
        for exec in all.iter().filter(|exec| !exec.ended()) {
            let mut progress = exec.progress.subscribe();
            let ended = progress.wait_for(|progress| progress.status.is_some());
            if tokio::time::timeout_at(until, ended).await.is_err() {
                exec.give_up();
            }
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
        self.has_news();
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

    /// Takes a place for a command that is about to begin, until it is added; or finds the one that the same request began
    /// before, and waits for it if it is just about to.
    pub(crate) async fn place(&self, spec: &ExecSpec) -> Result<Place<'_>, Error> {
        loop {
            let mut changed = self.closed.subscribe();
            if let Some(place) = self.try_place(spec)? {
                return Ok(place);
            }
            let _ = changed.changed().await;
        }
    }

    fn try_place(&self, spec: &ExecSpec) -> Result<Option<Place<'_>>, Error> {
        let Some(again) = &spec.again else {
            return self.room(self.inner(), spec).map(Some);
        };
        let inner = self.complete();
        if let Some(begun) = inner.said(again)? {
            return Ok(Some(Place::Begun(begun)));
        }
        if inner.keys.contains(&again.key) {
            return Ok(None);
        }
        self.room(inner, spec).map(Some)
    }

    /// Refuses more than can run at once.
    fn room(&self, mut inner: MutexGuard<'_, Inner>, spec: &ExecSpec) -> Result<Place<'_>, Error> {
        let terminal = usize::from(spec.terminal.is_some());
        let running = inner.all.values().filter(|exec| !exec.ended());
        let terminals = running.clone().filter(|exec| exec.spec.terminal.is_some());
        let running = running.clone().count() + inner.beginning.0;
        let terminals = terminals.count() + inner.beginning.1;
        let full = if running >= MOST {
            format!("{running} commands run in this sandbox already")
        } else if terminal > 0 && terminals >= TERMINALS {
            format!("the sandbox has {terminals} terminals already")
        } else {
            inner.beginning.0 += 1;
            inner.beginning.1 += terminal;
            let key = spec.again.as_ref().map(|again| again.key.clone());
            inner.keys.extend(key.clone());
            return Ok(Place::Free(Room {
                table: self,
                terminal,
                key,
            }));
        };
        Err(Error::new(Code::QuotaExceeded, full).remedy("wait for some to end, or end some"))
    }

    /// Forgets the oldest of those that have ended, and removes their files; not before the journal has them, unless
    /// it cannot be written at all.
    pub(crate) fn tidy(&self) {
        let mut inner = self.inner();
        let mut over: Vec<(u64, Arc<Shared>)> = {
            let ended = inner.all.iter().filter(|(_, exec)| exec.closed());
            let count = ended.clone().count();
            ended
                .take(count.saturating_sub(REMEMBERED))
                .map(|(number, exec)| (*number, Arc::clone(exec)))
                .collect()
        };
        if let Some(mark) = &self.mark {
            let mut given_up = over.len().saturating_sub(WAITING);
            over.retain(|(_, exec)| {
                let noted = exec.noted.is(true);
                let lost = !noted && given_up > 0;
                if lost {
                    given_up -= 1;
                    mark.lost();
                } else if !noted {
                    mark.is_urgent();
                }
                noted || lost
            });
        }
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

/// Where a command that is asked for is.
pub(crate) enum Place<'a> {
    Free(Room<'a>),
    /// It has begun before.
    Begun(Arc<Shared>),
}

/// A place among the commands that run.
pub(crate) struct Room<'a> {
    table: &'a Table,
    terminal: usize,
    key: Option<String>,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        inner.beginning.0 -= 1;
        inner.beginning.1 -= self.terminal;
        if let Some(key) = &self.key {
            inner.keys.remove(key);
            drop(inner);
            self.table.closed.send_modify(|_| {});
        }
    }
}

impl Inner {
    fn ids(&self) -> HashSet<ExecId> {
        let all = self.all.values().filter(|_| self.behind);
        all.map(|exec| exec.id.clone()).collect()
    }

    /// The command that was asked for by this key; another request by it is refused.
    fn said(&self, again: &Again) -> Result<Option<Arc<Shared>>, Error> {
        for exec in self.all.values().rev() {
            match &exec.spec.again {
                Some(known) if known == again => return Ok(Some(Arc::clone(exec))),
                Some(known) if known.key == again.key => return Err(Again::mismatch()),
                _ => {}
            }
        }
        Ok(None)
    }

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
