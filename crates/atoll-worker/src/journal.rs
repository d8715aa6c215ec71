//! Journals: a SQLite file for each sandbox with the history of its commands.
//!
//! Journals are written asynchronously. Starting or ending a command only marks the sandbox dirty;
//! the rows are derived from its exec table when the journal is flushed, which a reader does, or a
//! timer. So there is no queue that could fill up: what waits is in the table anyway, and the table
//! does not evict a command before it is in the journal. A journal that cannot be written blocks no
//! command; writes are retried.
//!
//! A file is created with its first row, and only a few are open at a time.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_model::runtime::JournalStatus;
use atoll_model::{CommandKind, CommandRow, ExecId, Program, SandboxId};
use atoll_store::{Error, Journal};
use tokio::sync::Notify;

use crate::exec::ExecState;
use crate::exec::table::ExecTable;
use crate::sync::lock;
use crate::syncer::Syncer;

/// Delay of the timer's flush: longer than the interval at which the control plane reads journals,
/// so that a reader usually flushes first.
const FLUSH_DELAY: Duration = Duration::from_secs(15);
/// Interval at which the timer looks for overdue sandboxes and failed writes.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_secs(2);
/// Journals that are open at once.
const MAX_OPEN: usize = 8;
/// Time after which an unused journal is closed, so that busy sandboxes keep theirs open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a command line that a row stores.
const MAX_COMMAND_BYTES: usize = 8 << 10;

/// Which state of a command its sandbox's journal has.
#[derive(Debug, Default)]
pub(crate) struct JournalState(AtomicU8);

impl JournalState {
    fn level(ended: bool) -> u8 {
        1 + u8::from(ended)
    }

    /// Whether the journal has the command, with its end if `ended`.
    pub(crate) fn is_current(&self, ended: bool) -> bool {
        self.0.load(Ordering::Acquire) >= Self::level(ended)
    }

    pub(crate) fn set_written(&self, ended: bool) {
        self.0.fetch_max(Self::level(ended), Ordering::AcqRel);
    }

    /// The journal was lost.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// All journals of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    /// Sandboxes with unwritten rows, and when the timer flushes them.
    dirty: Mutex<HashMap<SandboxId, Instant>>,
    /// Sandboxes whose table requested a flush.
    urgent: Mutex<Vec<SandboxId>>,
    /// Notified when `urgent` gets an entry.
    flush_requested: Notify,
    /// Sandboxes whose journal may have rows that the control plane lacks.
    unsynced: Mutex<HashSet<SandboxId>>,
    /// Open journals, the last used one at the end. The lock is held during each use: one at a
    /// time.
    open: tokio::sync::Mutex<Vec<OpenJournal>>,
    failures: AtomicU64,
    lost: AtomicU64,
    /// The last write failed. Only changes are logged.
    failing: AtomicBool,
}

#[derive(Debug)]
struct OpenJournal {
    id: SandboxId,
    journal: Journal,
    last_used: Instant,
}

/// An exec table's connection to the journals.
#[derive(Debug, Clone)]
pub(crate) struct JournalNotifier {
    pub(crate) id: SandboxId,
    pub(crate) journals: Arc<Journals>,
    pub(crate) syncer: Arc<Syncer>,
}

impl JournalNotifier {
    pub(crate) fn mark_dirty(&self) {
        self.syncer.note_command(&self.id);
        let mut dirty = lock(&self.journals.dirty);
        if !dirty.contains_key(&self.id) {
            dirty.insert(self.id.clone(), Instant::now() + FLUSH_DELAY);
        }
    }

    /// An earlier server's journal exists, which may have unsynced rows.
    pub(crate) fn mark_unsynced(&self) {
        lock(&self.journals.unsynced).insert(self.id.clone());
    }

    /// Requests a flush, because the table holds many commands that only wait for it.
    pub(crate) fn request_flush(&self) {
        lock(&self.journals.urgent).push(self.id.clone());
        self.journals.flush_requested.notify_one();
    }

    /// Counts a command that was evicted before it was written.
    pub(crate) fn count_lost(&self) {
        self.journals.lost.fetch_add(1, Ordering::Relaxed);
    }
}

impl Journals {
    pub(crate) fn status(&self) -> JournalStatus {
        JournalStatus {
            behind: lock(&self.dirty).len(),
            failures: self.failures.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Sandboxes with rows that the control plane lacks.
    pub(crate) fn unsynced_sandboxes(&self) -> HashSet<SandboxId> {
        let mut all = lock(&self.unsynced).clone();
        all.extend(lock(&self.dirty).keys().cloned());
        all
    }

    /// Waits until a table requests a flush.
    pub(crate) async fn wait_for_flush_request(&self) {
        self.flush_requested.notified().await;
    }

    /// Takes a sandbox whose table requested a flush.
    pub(crate) fn next_urgent(&self) -> Option<SandboxId> {
        lock(&self.urgent).pop()
    }

    /// Takes the sandboxes that are due for a flush.
    pub(crate) fn take_due(&self) -> Vec<SandboxId> {
        let now = Instant::now();
        let mut dirty = lock(&self.dirty);
        let due = dirty.extract_if(|_, until| *until <= now);
        due.map(|(id, _)| id).collect()
    }

    /// Closes unused journals.
    pub(crate) async fn close_idle(&self) {
        let mut open = self.open.lock().await;
        close_matching(&mut open, |opened| {
            opened.last_used.elapsed() >= IDLE_TIMEOUT
        })
        .await;
    }

    /// Writes the sandbox's unjournaled commands.
    pub(crate) async fn write(&self, id: &SandboxId, table: &ExecTable) -> Result<(), Error> {
        // Cleared before the table is read, so that later changes mark it again.
        lock(&self.dirty).remove(id);
        let unjournaled = table.unjournaled();
        let rows: Vec<CommandRow> = unjournaled
            .commands
            .iter()
            .map(|exec| command_row(exec))
            .collect();
        if !rows.is_empty() {
            // The table may evict these commands afterwards: they must be on disk.
            let written = self.with_journal(id, table, async |journal| {
                journal.write(&rows).await?;
                journal.sync().await
            });
            if let Err(error) = written.await {
                lock(&self.dirty).insert(id.clone(), Instant::now());
                return Err(error);
            }
            lock(&self.unsynced).insert(id.clone());
        }
        table.mark_journaled(&unjournaled, &rows);
        Ok(())
    }

    /// Flushes, then reads at most `max` unsynced rows, oldest first.
    pub(crate) async fn read(
        &self,
        id: &SandboxId,
        table: &ExecTable,
        max: u32,
    ) -> Result<Vec<CommandRow>, Error> {
        self.write(id, table).await?;
        // Cleared before the read, so that later writes mark it again.
        if !lock(&self.unsynced).remove(id) {
            return Ok(Vec::new());
        }
        let read = self
            .with_journal(id, table, async |journal| journal.unsynced(max).await)
            .await;
        if read.as_ref().map_or(max as usize, Vec::len) >= max as usize {
            lock(&self.unsynced).insert(id.clone());
        }
        read
    }

    /// Marks rows as synced, and prunes the journal from time to time.
    pub(crate) async fn mark_synced(
        &self,
        id: &SandboxId,
        table: &ExecTable,
        rows: &[CommandRow],
    ) -> Result<(), Error> {
        let prune = table.count_synced(rows.len());
        self.with_journal(id, table, async |journal| {
            journal.mark_synced(rows).await?;
            if prune { journal.prune().await } else { Ok(()) }
        })
        .await
    }

    /// Marks a sandbox whose rows could not be synced, to be read again.
    pub(crate) fn mark_unsynced(&self, id: &SandboxId) {
        lock(&self.unsynced).insert(id.clone());
    }

    /// All unsynced rows of a sandbox that is being deleted, unwritten ones included; some may have
    /// been synced. Creates no file.
    pub(crate) async fn drain(&self, id: &SandboxId, table: &ExecTable) -> Vec<CommandRow> {
        let mut rows = Vec::new();
        if table.journal().exists() {
            // If the journal cannot be read, the rows are rebuilt from the table and the records.
            let read =
                self.with_journal(id, table, async |journal| journal.unsynced(u32::MAX).await);
            rows = read.await.unwrap_or_else(|_| {
                table.mark_all_unjournaled();
                Vec::new()
            });
        }
        // One row for each command: the newer one.
        let unjournaled = table.unjournaled().commands;
        let newer: HashSet<&ExecId> = unjournaled.iter().map(|exec| &exec.id).collect();
        rows.retain(|row| !newer.contains(&row.id));
        rows.extend(unjournaled.iter().map(|exec| command_row(exec)));
        rows
    }

    /// Closes the journal of a deleted sandbox.
    pub(crate) async fn remove(&self, id: &SandboxId) {
        lock(&self.dirty).remove(id);
        lock(&self.unsynced).remove(id);
        let mut open = self.open.lock().await;
        close_matching(&mut open, |opened| opened.id == *id).await;
    }

    /// Closes all journals.
    pub(crate) async fn close(&self) {
        let mut open = self.open.lock().await;
        close_matching(&mut open, |_| true).await;
    }

    /// Runs `work` on a sandbox's journal, which is created if it does not exist. A corrupt journal
    /// is renamed and rebuilt from the exec records.
    async fn with_journal<T>(
        &self,
        id: &SandboxId,
        table: &ExecTable,
        work: impl AsyncFnOnce(&mut Journal) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut open = self.open.lock().await;
        let done = match open_journal(&mut open, id, &table.journal()).await {
            Ok(journal) => work(journal).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &done {
            close_matching(&mut open, |opened| opened.id == *id).await;
            if error.is_corrupt() {
                rename_broken(&table.journal());
                tracing::warn!(sandbox = %id, "the journal is corrupt and was renamed to broken.db");
                table.mark_all_unjournaled();
            }
        }
        drop(open);
        self.log_transition(id, done.as_ref().err());
        done
    }

    /// Logs the first failure and the recovery.
    fn log_transition(&self, id: &SandboxId, failure: Option<&Error>) {
        let before = self.failing.swap(failure.is_some(), Ordering::AcqRel);
        let Some(error) = failure else {
            if before {
                tracing::info!(sandbox = %id, "journal writes succeed again");
            }
            return;
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        if !before {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(sandbox = %id, cause, "cannot write a journal, will retry; commands are not affected");
        }
    }
}

/// The journal of a sandbox, opened if needed; the least recently used one is closed.
async fn open_journal<'a>(
    open: &'a mut Vec<OpenJournal>,
    id: &SandboxId,
    path: &Path,
) -> Result<&'a mut Journal, Error> {
    let mut one = match open.iter().position(|opened| opened.id == *id) {
        Some(at) => open.remove(at),
        None => OpenJournal {
            id: id.clone(),
            journal: Journal::open(path).await?,
            last_used: Instant::now(),
        },
    };
    one.last_used = Instant::now();
    if open.len() >= MAX_OPEN {
        // A failed close loses nothing.
        let _ = open.remove(0).journal.close().await;
    }
    Ok(&mut open.push_mut(one).journal)
}

/// Closes the journals for which `which` is true.
async fn close_matching(open: &mut Vec<OpenJournal>, which: impl Fn(&OpenJournal) -> bool) {
    for opened in open.extract_if(.., |opened| which(opened)) {
        let _ = opened.journal.close().await;
    }
}

/// Renames a corrupt journal with its WAL files to `broken.db`.
fn rename_broken(path: &Path) {
    for part in ["", "-wal", "-shm"] {
        let with = |path: PathBuf| {
            let mut name = path.into_os_string();
            name.push(part);
            PathBuf::from(name)
        };
        let _ = std::fs::rename(
            with(path.to_owned()),
            with(path.with_file_name("broken.db")),
        );
    }
}

/// The journal row of a command: without its environment, and with a bounded command line.
fn command_row(exec: &ExecState) -> CommandRow {
    let (spec, progress) = (&exec.spec, exec.progress());
    let mut left = MAX_COMMAND_BYTES;
    let mut truncated = false;
    let mut keep = |bytes: &[u8]| {
        let kept = bytes.get(..left).unwrap_or(bytes);
        left -= kept.len();
        truncated |= kept.len() < bytes.len();
        String::from_utf8_lossy(kept).into_owned()
    };
    let (command, args) = match &spec.program {
        Program::Shell(line) => (keep(line.as_bytes()), Vec::new()),
        Program::Argv(argv) => {
            let mut words = argv.iter();
            let command = keep(words.next().map_or(b"", |word| word));
            // Bounds the number of arguments too, since empty ones have no bytes.
            (command, words.take(256).map(|word| keep(word)).collect())
        }
    };
    if matches!(&spec.program, Program::Argv(argv) if argv.len() > 257) {
        truncated = true;
    }
    CommandRow {
        kind: match spec.terminal {
            Some(_) => CommandKind::Terminal,
            None => CommandKind::Command,
        },
        command,
        args,
        truncated,
        cwd: spec.directory.as_deref().map(truncate_text),
        user: spec.user.as_deref().map(str::as_bytes).map(truncate_text),
        tag: spec.tag.as_deref().map(str::as_bytes).map(truncate_text),
        started_at: exec.started_at,
        // An unobserved end is dated to its discovery.
        ended: progress
            .status
            .map(|status| (progress.ended_at.unwrap_or_else(crate::exec::now), status)),
        output_bytes: exec.log.bounds().1 as i64,
        id: exec.id.clone(),
    }
}

/// The first [`MAX_COMMAND_BYTES`] of a value that should be short.
fn truncate_text(bytes: &[u8]) -> String {
    let max = bytes.len().min(MAX_COMMAND_BYTES);
    String::from_utf8_lossy(bytes.get(..max).unwrap_or(bytes)).into_owned()
}
