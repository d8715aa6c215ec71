//! The commands of one sandbox, running and ended, by id, pid or tag.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::{Again, Code, Error, ExecId, ExecInfo, ExecSpec};
use atoll_store::Journal;
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::{Budget, OutputRetention};
use super::record::ExecRecord;
use super::record_log::RecordLog;
use super::{ExecState, output_log::OutputLog};
use crate::journal::JournalNotifier;

#[cfg(test)]
mod tests;

/// How many ended commands are remembered, with what they wrote.
const REMEMBERED: usize = 256;
/// How many more wait for the journal before it is asked to hurry: it is written for as many together.
const PRESSING: usize = REMEMBERED;
/// How many before they are given up.
const WAITING: usize = 4 * REMEMBERED;
/// How much of what they were asked for, in bytes, is remembered of those that ended; and may be of those that run.
const HEAVY: usize = 16 << 20;
/// How many may run at once.
const MOST: usize = 256;
/// How many of them may have a terminal.
const TERMINALS: usize = 20;

/// The commands of a sandbox. They outlast its processes.
#[derive(Debug)]
pub(crate) struct ExecTable {
    /// Where they are written down.
    ledger: Arc<RecordLog>,
    /// Where it says that something happened, if that is written down.
    mark: Option<JournalNotifier>,
    /// What their logs may take.
    budget: Arc<Budget>,
    inner: Mutex<Inner>,
    /// How many rows of the journal were taken since it was last pruned.
    taken: AtomicU32,
    /// Told when a command is added, or did not begin; true when none will be any more.
    closed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order they began.
    all: BTreeMap<u64, Arc<ExecState>>,
    /// The number of each.
    numbers: HashMap<ExecId, u64>,
    /// Those of which it is not known that nothing can happen to them any more: few, where all may be many.
    open: BTreeSet<u64>,
    /// How much of our memory what each was asked for takes, and all of it.
    weights: HashMap<u64, usize>,
    weight: usize,
    next: u64,
    /// Those that are about to begin, how many of them have a terminal, and their weight.
    beginning: (usize, usize, usize),
    /// The keys of those among them that may be asked for again.
    keys: HashSet<String>,
    /// Those of earlier servers are here too.
    complete: bool,
    /// The journal may not have those of earlier servers that are not here.
    behind: bool,
    /// The journal was asked to hurry, and has not come yet.
    pressed: bool,
}

/// What a journal does not have yet.
pub(crate) struct News {
    pub(crate) commands: Vec<Arc<ExecState>>,
    /// All those of earlier servers are among them.
    old: bool,
}

impl ExecTable {
    /// Of a sandbox with its files in `directory`; `complete` if nobody ran a command in it before.
    pub(crate) fn new(directory: PathBuf, complete: bool, mark: Option<JournalNotifier>) -> Self {
        let inner = Inner {
            complete,
            behind: !complete,
            ..Inner::default()
        };
        let table = Self {
            budget: Arc::new(Budget::new(OutputRetention::default(), directory.clone())),
            ledger: RecordLog::open(directory),
            mark,
            inner: Mutex::new(inner),
            taken: AtomicU32::new(0),
            closed: watch::Sender::new(false),
        };
        if let Some(mark) = table.mark.as_ref().filter(|_| table.journal().exists()) {
            mark.has_journal();
            // Nobody knows how much is in it.
            table.taken.store(Journal::KEPT, Ordering::Relaxed);
        }
        if !complete {
            table.has_news();
        }
        table
    }

    /// Their logs may take so much.
    pub(crate) fn with_retention(mut self, kept: OutputRetention) -> Self {
        self.budget = Arc::new(Budget::new(kept, self.directory().to_owned()));
        self
    }

    /// What their logs may take.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Has the oldest of those that have ended give up what they wrote, where there is no room for what others write.
    pub(crate) fn make_room(&self) {
        if !self.budget.presses() && !self.budget.is_tight() {
            return;
        }
        let inner = self.inner();
        for exec in inner.all.values().filter(|exec| exec.closed()) {
            if !self.budget.presses() {
                break;
            }
            if exec.log.give_way() {
                self.budget.look();
            }
        }
        self.budget.settle();
    }

    /// Where the journal is.
    pub(crate) fn journal(&self) -> PathBuf {
        self.directory().with_file_name("journal.db")
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
        let fresh = inner.all.values();
        // Most have been there for long: whether they have ended need not be asked.
        let fresh = fresh.filter(|exec| !exec.noted.is(true) && !exec.noted.is(exec.ended()));
        let mut commands: Vec<Arc<ExecState>> = fresh.cloned().collect();
        let mut old = inner.behind;
        if old {
            let (earlier, all) = inner.earlier(&self.ledger, &self.budget);
            commands.extend(earlier.into_iter().map(Arc::new));
            old = all;
        }
        News { commands, old }
    }

    /// The journal has this now, as these rows tell.
    pub(crate) fn noted(&self, news: &News, rows: &[atoll_store::CommandRow]) {
        for (exec, row) in news.commands.iter().zip(rows) {
            exec.noted.set(row.ended.is_some());
        }
        let mut inner = self.inner();
        inner.behind &= !news.old;
        inner.pressed = false;
        let behind = inner.behind;
        if inner.open.is_empty() {
            self.ledger.rest();
        }
        drop(inner);
        if behind {
            self.has_news();
        }
        self.tidy();
    }

    /// So many more rows of the journal were taken; true if it is time to prune it.
    pub(crate) fn taken(&self, rows: usize) -> bool {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let before = self.taken.fetch_add(rows, Ordering::Relaxed);
        let prune = before.saturating_add(rows) >= Journal::KEPT;
        if prune {
            self.taken.store(0, Ordering::Relaxed);
        }
        prune
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
        let all: Vec<Arc<ExecState>> = self.inner().all.values().cloned().collect();
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
        self.ledger.directory()
    }

    /// Where they are written down.
    pub(crate) fn record_log(&self) -> &Arc<RecordLog> {
        &self.ledger
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`Self::inner`], with those of earlier servers read in.
    fn complete(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner();
        if !inner.complete {
            let (earlier, all) = inner.earlier(&self.ledger, &self.budget);
            let newer = std::mem::take(&mut inner.all);
            inner.open.clear();
            inner.weights.clear();
            inner.weight = 0;
            for shared in earlier {
                inner.add(Arc::new(shared));
            }
            for exec in newer.into_values() {
                inner.add(exec);
            }
            inner.complete = all;
        }
        inner
    }

    /// Adds a command that has begun.
    pub(crate) fn add(&self, shared: Arc<ExecState>) {
        self.inner().add(shared);
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
        left_out: impl Fn(&ExecState) -> bool,
    ) -> Option<Arc<ExecState>> {
        let inner = self.complete();
        let other = other.and_then(|id| inner.numbers.get(id));
        let first = other.map_or(0, |number| number + 1);
        let mut later = inner.all.range(first..).map(|(_, exec)| exec);
        later.find(|exec| !left_out(exec)).cloned()
    }

    /// Adds a command that ended before we were there.
    pub(crate) fn add_ended(&self, record: ExecRecord) {
        if let Ok(shared) = ExecState::of_ended(record, &self.budget) {
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
        let (mut running, mut terminals, mut heavy) = inner.beginning;
        let weight = spec.weight();
        heavy += weight;
        for number in &inner.open {
            let Some(exec) = inner.all.get(number).filter(|exec| !exec.ended()) else {
                continue;
            };
            running += 1;
            terminals += usize::from(exec.spec.terminal.is_some());
            heavy += inner.weight_of(*number);
        }
        let full = if running >= MOST {
            format!("{running} commands run in this sandbox already")
        } else if terminal > 0 && terminals >= TERMINALS {
            format!("the sandbox has {terminals} terminals already")
        } else if heavy > HEAVY {
            "the commands that run in this sandbox have too many and too long arguments".into()
        } else {
            inner.beginning.0 += 1;
            inner.beginning.1 += terminal;
            inner.beginning.2 += weight;
            let key = spec.again.as_ref().map(|again| again.key.clone());
            inner.keys.extend(key.clone());
            return Ok(Place::Free(Room {
                table: self,
                terminal,
                weight,
                key,
            }));
        };
        Err(Error::new(Code::QuotaExceeded, full).remedy("wait for some to end, or end some"))
    }

    /// Forgets the oldest of those that have ended, and removes their files; not before the journal has them, unless
    /// it cannot be written at all.
    pub(crate) fn tidy(&self) {
        let mut inner = self.inner();
        let Inner { all, open, .. } = &mut *inner;
        open.retain(|number| all.get(number).is_some_and(|exec| !exec.closed()));
        let mut over = (inner.all.len() - inner.open.len()).saturating_sub(REMEMBERED);
        let open = inner.open.iter().map(|number| inner.weight_of(*number));
        let mut heavy = inner.weight - open.sum::<usize>();
        let (mut forgotten, mut presses) = (Vec::new(), false);
        for (number, exec) in &inner.all {
            if over == 0 && heavy <= HEAVY {
                break;
            }
            if inner.open.contains(number) {
                continue;
            }
            if let Some(mark) = self.mark.as_ref().filter(|_| !exec.noted.is(true)) {
                if over <= WAITING && heavy <= 4 * HEAVY {
                    // The journal comes for all that wait together.
                    presses = (over >= PRESSING || heavy > HEAVY) && !inner.pressed;
                    break;
                }
                mark.lost();
            }
            over = over.saturating_sub(1);
            heavy -= inner.weight_of(*number);
            forgotten.push(*number);
        }
        let forgotten: Vec<Arc<ExecState>> = forgotten
            .into_iter()
            .filter_map(|number| inner.remove(number))
            .collect();
        inner.pressed |= presses;
        drop(inner);
        if let Some(mark) = self.mark.as_ref().filter(|_| presses) {
            mark.is_urgent();
        }
        if !forgotten.is_empty() {
            let removed = forgotten
                .iter()
                .map(|exec| exec.record(|record| record.remove(&exec.log)));
            self.ledger.forget(&removed.collect::<Vec<_>>());
        }
    }

    /// All of them, newest first.
    pub(crate) fn list(&self) -> Vec<ExecInfo> {
        let inner = self.complete();
        inner.all.values().rev().map(|exec| exec.info()).collect()
    }

    /// The one with this id.
    pub(crate) fn find(&self, id: &ExecId) -> Result<Arc<ExecState>, Error> {
        let inner = self.complete();
        let number = inner.numbers.get(id);
        let found = number.and_then(|number| inner.all.get(number));
        found.cloned().ok_or_else(|| unknown("id", id.as_str()))
    }

    /// The running one with this pid, or the last that had it.
    pub(crate) fn find_pid(&self, pid: i32) -> Result<Arc<ExecState>, Error> {
        self.find_by(|exec| exec.pid == pid && !exec.ended())
            .or_else(|| self.find_by(|exec| exec.pid == pid))
            .ok_or_else(|| unknown("pid", &pid.to_string()))
    }

    /// The newest with this tag.
    pub(crate) fn find_tag(&self, tag: &str) -> Result<Arc<ExecState>, Error> {
        self.find_by(|exec| exec.spec.tag.as_deref() == Some(tag))
            .ok_or_else(|| unknown("tag", tag))
    }

    fn find_by(&self, fits: impl Fn(&ExecState) -> bool) -> Option<Arc<ExecState>> {
        let inner = self.complete();
        inner.all.values().rev().find(|exec| fits(exec)).cloned()
    }
}

/// Where a command that is asked for is.
pub(crate) enum Place<'a> {
    Free(Room<'a>),
    /// It has begun before.
    Begun(Arc<ExecState>),
}

/// A place among the commands that run.
pub(crate) struct Room<'a> {
    table: &'a ExecTable,
    terminal: usize,
    weight: usize,
    key: Option<String>,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        inner.beginning.0 -= 1;
        inner.beginning.1 -= self.terminal;
        inner.beginning.2 -= self.weight;
        if let Some(key) = &self.key {
            inner.keys.remove(key);
            drop(inner);
            self.table.closed.send_modify(|_| {});
        }
    }
}

impl Inner {
    /// Those that are written down and are not here, and whether that is all of them: one without an
    /// end may be about to begin, and is then not one of an earlier server.
    fn earlier(&self, ledger: &Arc<RecordLog>, budget: &Arc<Budget>) -> (Vec<ExecState>, bool) {
        let Ok(records) = ExecRecord::read_all(ledger) else {
            return (Vec::new(), false);
        };
        let records = records.into_iter();
        let records = records.filter(|record| !self.numbers.contains_key(&record.id));
        let begins = |record: &ExecRecord| record.status.is_none() && self.beginning.0 > 0;
        let (doubtful, earlier): (Vec<ExecRecord>, Vec<ExecRecord>) = records.partition(begins);
        let earlier = earlier
            .into_iter()
            .map(|record| ExecState::of_ended(record, budget));
        (earlier.flatten().collect(), doubtful.is_empty())
    }

    /// The command that was asked for by this key; another request by it is refused.
    fn said(&self, again: &Again) -> Result<Option<Arc<ExecState>>, Error> {
        for exec in self.all.values().rev() {
            match &exec.spec.again {
                Some(known) if known == again => return Ok(Some(Arc::clone(exec))),
                Some(known) if known.key == again.key => return Err(Again::mismatch()),
                _ => {}
            }
        }
        Ok(None)
    }

    fn add(&mut self, shared: Arc<ExecState>) {
        self.next += 1;
        let before = self.numbers.insert(shared.id.clone(), self.next);
        if let Some(before) = before {
            self.open.remove(&before);
            self.lighten(before);
            self.all.remove(&before);
        }
        let weight = shared.spec.weight();
        self.weights.insert(self.next, weight);
        self.weight += weight;
        if !shared.closed() {
            self.open.insert(self.next);
        }
        self.all.insert(self.next, shared);
    }

    fn weight_of(&self, number: u64) -> usize {
        self.weights.get(&number).copied().unwrap_or_default()
    }

    fn lighten(&mut self, number: u64) {
        self.weight -= self.weights.remove(&number).unwrap_or_default();
    }

    fn remove(&mut self, number: u64) -> Option<Arc<ExecState>> {
        let shared = self.all.remove(&number)?;
        self.lighten(number);
        self.numbers.remove(&shared.id);
        Some(shared)
    }
}

impl ExecState {
    /// A command that ended before we were there; without a word of its end it was killed.
    fn of_ended(record: ExecRecord, budget: &Arc<Budget>) -> std::io::Result<Self> {
        let log = OutputLog::open(record.stem())?.within(budget);
        Ok(Self::with(record, log))
    }
}

fn unknown(by: &str, value: &str) -> Error {
    Error::new(
        Code::ExecNotFound,
        format!("there is no command with {by} {value}"),
    )
    .remedy("list the sandbox's commands: the oldest of those that ended are forgotten")
    .detail(by, value)
}
