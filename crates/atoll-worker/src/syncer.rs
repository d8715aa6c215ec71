//! Syncs what the server writes about sandboxes: records and exec records in the background, at
//! most half a second after the write; a sandbox's files before its stop is acknowledged.
//!
//! No create and no exec waits for the disk. Directory entries are synced with their files: the
//! sandbox's directory and the directory of all sandboxes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use atoll_model::{Error, SandboxId, Unsynced};
use tokio::sync::Notify;

use crate::error::host_file_error;
use crate::runtime::RuntimeState;
use crate::sandbox::{Record, run_blocking};
use crate::sync::lock;

/// Delay after a change, so that one sync covers several.
const BATCH_DELAY: Duration = Duration::from_millis(400);

/// Files of a sandbox that need a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncScope {
    /// The record log of its execs.
    Execs,
    /// Also its record and directory entries.
    All,
}

/// Tracks changes that are not on disk.
#[derive(Debug, Default)]
pub(crate) struct Syncer {
    changed: Mutex<HashMap<SandboxId, SyncScope>>,
    unsynced: Unsynced,
    wake: Notify,
    files: FileSystemSync,
}

/// Calls of `syncfs` on the file system of the sandboxes' files. Concurrent stops share one.
#[derive(Debug, Default)]
struct FileSystemSync {
    requested: AtomicU64,
    synced: tokio::sync::Mutex<u64>,
}

impl Syncer {
    /// The record of a sandbox has changed, or its directory is new.
    pub(crate) fn note_record(&self, id: &SandboxId) {
        self.mark_dirty(id, SyncScope::All);
    }

    /// An exec of a sandbox has started or ended.
    pub(crate) fn note_command(&self, id: &SandboxId) {
        self.mark_dirty(id, SyncScope::Execs);
    }

    fn mark_dirty(&self, id: &SandboxId, scope: SyncScope) {
        let mut changed = lock(&self.changed);
        match changed.get_mut(id) {
            Some(SyncScope::All) => {}
            Some(known) => *known = scope,
            None => drop(changed.insert(id.clone(), scope)),
        }
        // Under the lock: a sync takes the change and the time together.
        if self.unsynced.note() {
            self.wake.notify_one();
        }
    }

    /// Age of the oldest change that is not on disk.
    pub(crate) fn oldest_age(&self) -> Duration {
        self.unsynced.age()
    }

    /// Syncs the files of all sandboxes. A sync that starts after this call covers it.
    pub(crate) async fn sync_files(&self, path: PathBuf) -> Result<(), Error> {
        let request = self.files.requested.fetch_add(1, Ordering::AcqRel) + 1;
        let mut synced = self.files.synced.lock().await;
        if *synced >= request {
            return Ok(());
        }
        let covered = self.files.requested.load(Ordering::Acquire);
        run_blocking(move || {
            let synced = File::open(&path).and_then(|opened| Ok(rustix::fs::syncfs(opened)?));
            synced.map_err(|error| host_file_error("sync", &path, &error))
        })
        .await?;
        *synced = covered;
        Ok(())
    }

    /// Syncs changes until the runtime is dropped.
    pub(crate) async fn run(shared: Weak<RuntimeState>) {
        let Some(syncer) = shared.upgrade().map(|shared| Arc::clone(&shared.syncer)) else {
            return;
        };
        let mut is_failing = false;
        loop {
            // After a failure there are changes already.
            if syncer.oldest_age().is_zero() {
                syncer.wake.notified().await;
            }
            tokio::time::sleep(BATCH_DELAY).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let directory = shared.instance.sandboxes();
            drop(shared);
            let failed = syncer.sync(directory).await.err();
            if let Some(error) = failed.as_ref().filter(|_| !is_failing) {
                tracing::warn!(%error, "cannot sync sandbox records: a power failure may undo the last changes");
            }
            is_failing = failed.is_some();
        }
    }

    /// Syncs all changes so far.
    pub(crate) async fn sync(&self, sandboxes: PathBuf) -> Result<(), Error> {
        let changed = {
            let mut changed = lock(&self.changed);
            self.unsynced.begin();
            std::mem::take(&mut *changed)
        };
        let (synced, changed) =
            run_blocking(move || Ok((sync_all(&sandboxes, &changed), changed))).await?;
        if synced.is_err() {
            for (id, scope) in changed {
                self.mark_dirty(&id, scope);
            }
        }
        self.unsynced.end(synced.is_ok());
        synced
    }
}

/// Syncs a sandbox's record, its exec records and the directories above them.
pub(crate) fn sync_record(directory: &Path) -> Result<(), Error> {
    sync_one(directory, SyncScope::All)?;
    directory.parent().map_or(Ok(()), sync_path)
}

fn sync_all(sandboxes: &Path, changed: &HashMap<SandboxId, SyncScope>) -> Result<(), Error> {
    for (id, scope) in changed {
        sync_one(&sandboxes.join(id.as_str()), *scope)?;
    }
    if changed.values().any(|scope| *scope == SyncScope::All) {
        sync_path(sandboxes)?;
    }
    Ok(())
}

fn sync_one(directory: &Path, scope: SyncScope) -> Result<(), Error> {
    let execs = directory.join("execs");
    sync_path(&execs.join("records"))?;
    if scope == SyncScope::All {
        sync_path(&directory.join("record.json"))?;
        Record::keep_synced(directory)?;
        sync_path(&execs)?;
        sync_path(directory)?;
    }
    Ok(())
}

/// Syncs a file or a directory. An absent one is no error.
pub(crate) fn sync_path(path: &Path) -> Result<(), Error> {
    match File::open(path).and_then(|opened| opened.sync_all()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(host_file_error("sync", path, &error))
        }
        _ => Ok(()),
    }
}

/// Writes a file atomically and durably, readable by root alone. It syncs, so it is for rare
/// writes.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = create_private(&new).and_then(|mut file| {
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    });
    written.map_err(|error| host_file_error("write", path, &error))?;
    path.parent().map_or(Ok(()), sync_path)
}

/// Creates or truncates a file with mode 600.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}
