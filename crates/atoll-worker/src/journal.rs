//! The journals of sandboxes: what was run in each, in a file of its own beside its record.
//!
//! Nobody who starts a command waits for them. A command's own record says that it began and how it ended, and is
//! written at once; here only the *sandbox* is noted as one with unjournaled. What its table has and its journal has not is
//! written all together by whoever reads the journal, or some time later if nobody does. So there is no queue that
//! could be full: what waits is in the table anyway, and a command is not forgotten there before it stands in the
//! journal. A journal that cannot be written holds nobody up; it is tried again.
//!
//! A file is made with its first row, and only a few are open at a time.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_model::{ExecId, Program, SandboxId};
use atoll_store::{CommandKind, CommandRow, Error, Journal};
use tokio::sync::Notify;

use crate::exec::ExecState;
use crate::exec::table::ExecTable;
use crate::sandbox::lock;
use crate::syncer::Syncer;

/// How long unjournaled wait for somebody who reads the journal, and writes them with that: longer than one who carries it
/// away leaves between two times.
const FLUSH_DELAY: Duration = Duration::from_secs(15);
/// How often is looked for unjournaled that have waited, and for journals that could not be written.
pub(crate) const FLUSH_INTERVAL: Duration = Duration::from_secs(2);
/// How many are open at once.
const MAX_OPEN: usize = 8;
/// How long one stays open that nobody needs: those of the few sandboxes in which something is run all the time are not
/// opened again and again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// How much of a command's words is kept.
const MAX_COMMAND_BYTES: usize = 8 << 10;

/// What of a command stands in its sandbox's journal.
#[derive(Debug, Default)]
pub(crate) struct JournalState(AtomicU8);

impl JournalState {
    fn level(ended: bool) -> u8 {
        1 + u8::from(ended)
    }

    /// It is there as it is now.
    pub(crate) fn is_current(&self, ended: bool) -> bool {
        self.0.load(Ordering::Acquire) >= Self::level(ended)
    }

    pub(crate) fn set_written(&self, ended: bool) {
        self.0.fetch_max(Self::level(ended), Ordering::AcqRel);
    }

    /// It is not there any more.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// How the journals are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalHealth {
    /// Sandboxes whose journal does not have everything yet.
    pub behind: usize,
    /// How often one could not be written.
    pub failures: u64,
    /// Commands that were given up before they could be written.
    pub lost: u64,
}

/// All journals of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    /// Sandboxes with something that is not in their journal, and until when that may wait.
    dirty: Mutex<HashMap<SandboxId, Instant>>,
    /// Those that have much of it.
    urgent: Mutex<Vec<SandboxId>>,
    /// There are some.
    flush_requested: Notify,
    /// Sandboxes with something that only their journal has.
    unsynced: Mutex<HashSet<SandboxId>>,
    /// Those that are open, the one used last at the end. Held while one is used: one at a time.
    open: tokio::sync::Mutex<Vec<Opened>>,
    failures: AtomicU64,
    lost: AtomicU64,
    /// The last attempt failed: told once.
    failing: AtomicBool,
}

#[derive(Debug)]
struct Opened {
    id: SandboxId,
    journal: Journal,
    used: Instant,
}

/// Where a sandbox's table says that it has unjournaled.
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

    /// There is a journal that an earlier server wrote.
    pub(crate) fn mark_unsynced(&self) {
        lock(&self.journals.unsynced).insert(self.id.clone());
    }

    /// The table is full of what it cannot forget yet.
    pub(crate) fn request_flush(&self) {
        lock(&self.journals.urgent).push(self.id.clone());
        self.journals.flush_requested.notify_one();
    }

    /// A command is forgotten that never came into the journal.
    pub(crate) fn count_lost(&self) {
        self.journals.lost.fetch_add(1, Ordering::Relaxed);
    }
}

impl Journals {
    pub(crate) fn health(&self) -> JournalHealth {
        JournalHealth {
            behind: lock(&self.dirty).len(),
            failures: self.failures.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    /// Sandboxes with something that nobody else has.
    pub(crate) fn unsynced_sandboxes(&self) -> HashSet<SandboxId> {
        let mut all = lock(&self.unsynced).clone();
        all.extend(lock(&self.dirty).keys().cloned());
        all
    }

    /// Waits for one that presses.
    pub(crate) async fn wait_for_flush_request(&self) {
        self.flush_requested.notified().await;
    }

    /// One that presses.
    pub(crate) fn next_urgent(&self) -> Option<SandboxId> {
        lock(&self.urgent).pop()
    }

    /// Those whose unjournaled have waited, which are none for that any more.
    pub(crate) fn take_due(&self) -> Vec<SandboxId> {
        let now = Instant::now();
        let mut dirty = lock(&self.dirty);
        let due = dirty.extract_if(|_, until| *until <= now);
        due.map(|(id, _)| id).collect()
    }

    /// Closes those that nobody needs.
    pub(crate) async fn close_idle(&self) {
        let mut open = self.open.lock().await;
        close_matching(&mut open, |opened| opened.used.elapsed() >= IDLE_TIMEOUT).await;
    }

    /// Writes what a sandbox has and its journal has not.
    pub(crate) async fn write(&self, id: &SandboxId, table: &ExecTable) -> Result<(), Error> {
        // Before it is looked at: what happens meanwhile is to be found later.
        lock(&self.dirty).remove(id);
        let unjournaled = table.unjournaled();
        let rows: Vec<CommandRow> = unjournaled.commands.iter().map(|exec| row(exec)).collect();
        if !rows.is_empty() {
            // The table may forget what the journal has: that must be on the disk.
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

    /// What only the journal has, the oldest first, at max so many; what is new is written first.
    pub(crate) async fn read(
        &self,
        id: &SandboxId,
        table: &ExecTable,
        max: u32,
    ) -> Result<Vec<CommandRow>, Error> {
        self.write(id, table).await?;
        // Before it is read: what is written meanwhile is to be found later.
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

    /// Somebody else has these now.
    pub(crate) async fn mark_synced(
        &self,
        id: &SandboxId,
        table: &ExecTable,
        rows: &[CommandRow],
    ) -> Result<(), Error> {
        let prune = table.count_synced(rows.len());
        self.with_journal(id, table, async |journal| {
            journal.synced(rows).await?;
            if prune { journal.prune().await } else { Ok(()) }
        })
        .await
    }

    /// They could not be taken: they are to be read again.
    pub(crate) fn mark_unsynced(&self, id: &SandboxId) {
        lock(&self.unsynced).insert(id.clone());
    }

    /// All that nobody else has of a sandbox that is about to be gone, perhaps with something that somebody has. No
    /// file is made for it.
    pub(crate) async fn drain(&self, id: &SandboxId, table: &ExecTable) -> Vec<CommandRow> {
        let mut rows = Vec::new();
        if table.journal().exists() {
            // If it cannot be read, the unjournaled are all that the table and the records know.
            let read =
                self.with_journal(id, table, async |journal| journal.unsynced(u32::MAX).await);
            rows = read.await.unwrap_or_else(|_| {
                table.mark_all_unjournaled();
                Vec::new()
            });
        }
        // Nobody takes one twice at a time.
        let unjournaled = table.unjournaled().commands;
        let newer: HashSet<&ExecId> = unjournaled.iter().map(|exec| &exec.id).collect();
        rows.retain(|row| !newer.contains(&row.id));
        rows.extend(unjournaled.iter().map(|exec| row(exec)));
        rows
    }

    /// The sandbox is gone.
    pub(crate) async fn remove(&self, id: &SandboxId) {
        lock(&self.dirty).remove(id);
        lock(&self.unsynced).remove(id);
        let mut open = self.open.lock().await;
        close_matching(&mut open, |opened| opened.id == *id).await;
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        let mut open = self.open.lock().await;
        close_matching(&mut open, |_| true).await;
    }

    /// Does something with a sandbox's journal, which is made if there is none. One that cannot be understood is set
    /// aside, and begun again from what the records of commands tell.
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
            if error.is_damage() {
                rename_broken(&table.journal());
                tracing::warn!(sandbox = %id, "its journal cannot be read and is set aside as broken.db");
                table.mark_all_unjournaled();
            }
        }
        drop(open);
        self.log_transition(id, done.as_ref().err());
        done
    }

    /// Tells the first failure, and that it is over.
    fn log_transition(&self, id: &SandboxId, failure: Option<&Error>) {
        let before = self.failing.swap(failure.is_some(), Ordering::AcqRel);
        let Some(error) = failure else {
            if before {
                tracing::info!(sandbox = %id, "journals can be written again");
            }
            return;
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        if !before {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(sandbox = %id, cause, "a journal cannot be written; commands go on");
        }
    }
}

/// The journal of a sandbox, opened if it is not; the one that was used longest ago makes room.
async fn open_journal<'a>(
    open: &'a mut Vec<Opened>,
    id: &SandboxId,
    path: &Path,
) -> Result<&'a mut Journal, Error> {
    let mut one = match open.iter().position(|opened| opened.id == *id) {
        Some(at) => open.remove(at),
        None => Opened {
            id: id.clone(),
            journal: Journal::open(path).await?,
            used: Instant::now(),
        },
    };
    one.used = Instant::now();
    if open.len() >= MAX_OPEN {
        // Nothing is lost if it cannot be closed in order.
        let _ = open.remove(0).journal.close().await;
    }
    Ok(&mut open.push_mut(one).journal)
}

/// Closes some.
async fn close_matching(open: &mut Vec<Opened>, which: impl Fn(&Opened) -> bool) {
    for opened in open.extract_if(.., |opened| which(opened)) {
        let _ = opened.journal.close().await;
    }
}

/// Takes a file out of the way that is no journal.
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

/// What history has of a command: not its variables, and not more of its words than is useful.
fn row(exec: &ExecState) -> CommandRow {
    let (spec, progress) = (&exec.spec, exec.progress());
    let mut left = MAX_COMMAND_BYTES;
    let mut cut = false;
    let mut keep = |bytes: &[u8]| {
        let kept = bytes.get(..left).unwrap_or(bytes);
        left -= kept.len();
        cut |= kept.len() < bytes.len();
        String::from_utf8_lossy(kept).into_owned()
    };
    let (command, args) = match &spec.program {
        Program::Shell(line) => (keep(line.as_bytes()), Vec::new()),
        Program::Argv(argv) => {
            let mut words = argv.iter();
            let command = keep(words.next().map_or(b"", |word| word));
            // Empty words cost something too.
            (command, words.take(256).map(|word| keep(word)).collect())
        }
    };
    if matches!(&spec.program, Program::Argv(argv) if argv.len() > 257) {
        cut = true;
    }
    CommandRow {
        kind: match spec.terminal {
            Some(_) => CommandKind::Terminal,
            None => CommandKind::Plain,
        },
        command,
        args,
        cut,
        cwd: spec.directory.as_deref().map(truncate_text),
        user: spec.user.as_deref().map(str::as_bytes).map(truncate_text),
        tag: spec.tag.as_deref().map(str::as_bytes).map(truncate_text),
        started_at: exec.started_at,
        // One whose end nobody saw ended when that was noticed.
        ended: progress
            .status
            .map(|status| (progress.ended_at.unwrap_or_else(crate::exec::now), status)),
        output_bytes: exec.log.bounds().1 as i64,
        id: exec.id.clone(),
    }
}

/// The beginning of something that should be short.
fn truncate_text(bytes: &[u8]) -> String {
    let max = bytes.len().min(MAX_COMMAND_BYTES);
    String::from_utf8_lossy(bytes.get(..max).unwrap_or(bytes)).into_owned()
}
