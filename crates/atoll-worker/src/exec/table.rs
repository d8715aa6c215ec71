//! The commands of one sandbox, running and ended, found by id, pid or tag.
//!
//! The table lives as long as its sandbox, stopped ones included. Commands of earlier servers are read
//! from the record log when they are first needed. An ended command stays until newer ones take its
//! place ([`eviction`]), and at least until the journal has it ([`journal`]).

mod eviction;
mod journal;
mod reservation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use atoll_model::{Code, Error, ExecId, ExecInfo};
use atoll_store::Journal;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use self::reservation::Reservation;
use self::reservation::Reserved;
use super::budget::{Budget, OutputRetention};
use super::record::ExecRecord;
use super::record_log::RecordLog;
use super::{ExecState, output_log::OutputLog};
use crate::journal::JournalNotifier;
use crate::sync::lock;

/// Bytes of command lines and variables: of all running commands, and of all ended ones.
const MAX_SPEC_BYTES: usize = 16 << 20;

/// The commands of a sandbox, which outlive its processes.
#[derive(Debug)]
pub(crate) struct ExecTable {
    record_log: Arc<RecordLog>,
    /// `None` if the runtime writes no journals.
    notifier: Option<JournalNotifier>,
    /// Disk space of the output logs.
    budget: Arc<Budget>,
    inner: Mutex<Inner>,
    /// Journal rows that were synced since the journal was last pruned.
    synced_rows: AtomicU32,
    /// Changes whenever a command is added or a reservation with a key is dropped; true when no
    /// command will be added any more.
    changes: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By sequence number, oldest first.
    all: BTreeMap<u64, Arc<ExecState>>,
    number_by_id: HashMap<ExecId, u64>,
    /// Commands that were not closed when last checked: few, where `all` may be many.
    open: BTreeSet<u64>,
    /// Estimated memory of each command's spec.
    spec_bytes: HashMap<u64, usize>,
    total_spec_bytes: usize,
    /// The last sequence number that was given.
    last_number: u64,
    /// Commands that are being started.
    reserved: Reserved,
    /// Idempotency keys of commands that are being started.
    reserved_keys: HashSet<String>,
    /// Commands of earlier servers have been read in.
    complete: bool,
    /// The journal may lack commands of earlier servers that were not read in.
    journal_behind: bool,
    /// A journal flush was requested and has not happened yet.
    flush_requested: bool,
}

impl ExecTable {
    /// The table of a sandbox with its files in `directory`; `complete` if no command was ever started
    /// in it.
    pub(crate) fn new(
        directory: PathBuf,
        complete: bool,
        notifier: Option<JournalNotifier>,
    ) -> Self {
        let inner = Inner {
            complete,
            journal_behind: !complete,
            ..Inner::default()
        };
        let table = Self {
            budget: Arc::new(Budget::new(OutputRetention::default(), directory.clone())),
            record_log: RecordLog::open(directory),
            notifier,
            inner: Mutex::new(inner),
            synced_rows: AtomicU32::new(0),
            changes: watch::Sender::new(false),
        };
        let notifier = table.notifier.as_ref();
        if let Some(notifier) = notifier.filter(|_| table.journal().exists()) {
            notifier.mark_unsynced();
            // How many rows it holds is unknown: prune at the first occasion.
            table
                .synced_rows
                .store(Journal::ROWS_KEPT, Ordering::Relaxed);
        }
        if !complete {
            table.mark_dirty();
        }
        table
    }

    /// Sets how much output is retained.
    pub(crate) fn with_retention(mut self, retention: OutputRetention) -> Self {
        self.budget = Arc::new(Budget::new(retention, self.directory().to_owned()));
        self
    }

    /// Disk space of the output logs.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Drops output of ended commands, oldest first, until the budget is met.
    pub(crate) fn drop_output_over_budget(&self) {
        if !self.budget.needs_space() && !self.budget.is_over_budget() {
            return;
        }
        let inner = self.inner();
        for exec in inner.all.values().filter(|exec| exec.is_closed()) {
            if !self.budget.needs_space() {
                break;
            }
            if exec.log.drop_old_output() {
                self.budget.refresh_disk_space();
            }
        }
        self.budget.update_pressure();
    }

    /// Waits until all commands have ended, after their processes were killed. A command whose end is
    /// not reported in time (its task may wait for disk space) counts as killed.
    pub(crate) async fn wait_for_ends(&self, timeout: Duration) {
        let all: Vec<Arc<ExecState>> = self.inner().all.values().cloned().collect();
        let until = Instant::now() + timeout;
        for exec in all.iter().filter(|exec| !exec.has_ended()) {
            let mut progress = exec.progress.subscribe();
            let ended = progress.wait_for(|progress| progress.status.is_some());
            if tokio::time::timeout_at(until, ended).await.is_err() {
                exec.assume_killed();
            }
        }
    }

    /// The directory of the commands' files.
    pub(crate) fn directory(&self) -> &Path {
        self.record_log.directory()
    }

    /// The file of the commands' records.
    pub(crate) fn record_log(&self) -> &Arc<RecordLog> {
        &self.record_log
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Like [`Self::inner`], with commands of earlier servers read in.
    fn load_complete(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner();
        if !inner.complete {
            let (earlier, all) = inner.read_earlier(&self.record_log, &self.budget);
            let newer = std::mem::take(&mut inner.all);
            inner.open.clear();
            inner.spec_bytes.clear();
            inner.total_spec_bytes = 0;
            for exec in earlier {
                inner.add(Arc::new(exec));
            }
            for exec in newer.into_values() {
                inner.add(exec);
            }
            inner.complete = all;
        }
        inner
    }

    /// Adds a command that was started.
    pub(crate) fn add(&self, exec: Arc<ExecState>) {
        self.inner().add(exec);
        self.mark_dirty();
        self.changes.send_modify(|_| {});
    }

    /// Adds a command that ended under an earlier server.
    pub(crate) fn add_ended(&self, record: ExecRecord) {
        if let Ok(exec) = ExecState::from_ended_record(record, &self.budget) {
            self.add(Arc::new(exec));
        }
    }

    /// Ends the followers of this table: the sandbox is deleted, or another table takes over.
    pub(crate) fn close(&self) {
        self.changes.send_replace(true);
    }

    /// Notified when a command is added; true when none will be added any more.
    pub(crate) fn subscribe(&self) -> watch::Receiver<bool> {
        self.changes.subscribe()
    }

    /// The first command after `previous` in start order for which `skip` is false. An evicted
    /// `previous` counts as older than all others.
    pub(crate) fn next_after(
        &self,
        previous: Option<&ExecId>,
        skip: impl Fn(&ExecState) -> bool,
    ) -> Option<Arc<ExecState>> {
        let inner = self.load_complete();
        let previous = previous.and_then(|id| inner.number_by_id.get(id));
        let first = previous.map_or(0, |number| number + 1);
        let mut later = inner.all.range(first..).map(|(_, exec)| exec);
        later.find(|exec| !skip(exec)).cloned()
    }

    /// All commands, newest first.
    pub(crate) fn list(&self) -> Vec<ExecInfo> {
        let inner = self.load_complete();
        inner.all.values().rev().map(|exec| exec.info()).collect()
    }

    /// The command with this id.
    pub(crate) fn find(&self, id: &ExecId) -> Result<Arc<ExecState>, Error> {
        let inner = self.load_complete();
        let number = inner.number_by_id.get(id);
        let found = number.and_then(|number| inner.all.get(number));
        found.cloned().ok_or_else(|| not_found("id", id.as_str()))
    }

    /// The running command with this pid, otherwise the newest ended one that had it.
    pub(crate) fn find_by_pid(&self, pid: i32) -> Result<Arc<ExecState>, Error> {
        self.find_by(|exec| exec.pid == pid && !exec.has_ended())
            .or_else(|| self.find_by(|exec| exec.pid == pid))
            .ok_or_else(|| not_found("pid", &pid.to_string()))
    }

    /// The newest command with this tag.
    pub(crate) fn find_by_tag(&self, tag: &str) -> Result<Arc<ExecState>, Error> {
        self.find_by(|exec| exec.spec.tag.as_deref() == Some(tag))
            .ok_or_else(|| not_found("tag", tag))
    }

    fn find_by(&self, matches: impl Fn(&ExecState) -> bool) -> Option<Arc<ExecState>> {
        let inner = self.load_complete();
        inner.all.values().rev().find(|exec| matches(exec)).cloned()
    }
}

impl Inner {
    /// Recorded commands that are not in the table, and whether these are all. A record without an end
    /// may belong to a command that is being started, and is then left out.
    fn read_earlier(
        &self,
        record_log: &Arc<RecordLog>,
        budget: &Arc<Budget>,
    ) -> (Vec<ExecState>, bool) {
        let Ok(records) = ExecRecord::read_all(record_log) else {
            return (Vec::new(), false);
        };
        let records = records.into_iter();
        let records = records.filter(|record| !self.number_by_id.contains_key(&record.id));
        let starting = |record: &ExecRecord| record.status.is_none() && self.reserved.commands > 0;
        let (doubtful, earlier): (Vec<ExecRecord>, Vec<ExecRecord>) = records.partition(starting);
        let earlier = earlier
            .into_iter()
            .map(|record| ExecState::from_ended_record(record, budget));
        (earlier.flatten().collect(), doubtful.is_empty())
    }

    fn add(&mut self, exec: Arc<ExecState>) {
        self.last_number += 1;
        let number = self.last_number;
        let previous = self.number_by_id.insert(exec.id.clone(), number);
        if let Some(previous) = previous {
            self.open.remove(&previous);
            self.forget_spec_bytes(previous);
            self.all.remove(&previous);
        }
        let bytes = exec.spec.memory_estimate();
        self.spec_bytes.insert(number, bytes);
        self.total_spec_bytes += bytes;
        if !exec.is_closed() {
            self.open.insert(number);
        }
        self.all.insert(number, exec);
    }

    fn spec_bytes_of(&self, number: u64) -> usize {
        self.spec_bytes.get(&number).copied().unwrap_or_default()
    }

    fn forget_spec_bytes(&mut self, number: u64) {
        self.total_spec_bytes -= self.spec_bytes.remove(&number).unwrap_or_default();
    }

    fn remove(&mut self, number: u64) -> Option<Arc<ExecState>> {
        let exec = self.all.remove(&number)?;
        self.forget_spec_bytes(number);
        self.number_by_id.remove(&exec.id);
        Some(exec)
    }
}

impl ExecState {
    /// A command that ended under an earlier server; without a recorded end it was killed.
    fn from_ended_record(record: ExecRecord, budget: &Arc<Budget>) -> std::io::Result<Self> {
        let log = OutputLog::open(record.stem())?.with_budget(budget);
        Ok(Self::from_record(record, log))
    }
}

fn not_found(by: &str, value: &str) -> Error {
    Error::new(
        Code::ExecNotFound,
        format!("there is no command with {by} {value}"),
    )
    .remedy("list the sandbox's commands: the oldest ended ones are removed")
    .detail(by, value)
}
