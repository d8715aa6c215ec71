//! Background task that syncs commits to the disk.
//!
//! SQLite syncs its write-ahead log only at a checkpoint, so without this task a power failure could undo everything
//! since then. No caller waits for a sync: one sync covers all commits of about half a second.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::Unsynced;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::Result;

/// Time in which commits are collected for one sync. A commit is on the disk after this time plus at most two syncs.
const SYNC_DELAY: Duration = Duration::from_millis(400);

/// Handle of the sync task.
#[derive(Debug, Clone)]
pub(crate) struct CommitSync {
    wal: Arc<PathBuf>,
    unsynced: Unsynced,
    /// Wakes the task. The task ends when the last sender is dropped.
    wake: Arc<Sender<()>>,
}

impl CommitSync {
    /// Syncs a database that was just opened and starts the sync task.
    pub(crate) async fn open(database: &Path) -> Result<Self> {
        let wal = wal_path(database);
        let path = wal.clone();
        let synced = tokio::task::spawn_blocking(move || {
            sync(&path)?;
            // The directory entries may be new too. SQLite synced the database itself when it created it; opening that
            // file here would release SQLite's POSIX locks when it is closed.
            match path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
            {
                Some(directory) => File::open(directory)?.sync_all(),
                None => Ok(()),
            }
        });
        let synced = synced
            .await
            .map_err(io::Error::other)
            .and_then(|synced| synced);
        synced.map_err(sqlx::Error::Io)?;
        let (wake, woken) = channel(1);
        let unsynced = Unsynced::default();
        tokio::spawn(run(wal.clone(), unsynced.clone(), woken));
        Ok(Self {
            wal: Arc::new(wal),
            unsynced,
            wake: Arc::new(wake),
        })
    }

    /// Records that there may be a new commit, and wakes the task.
    pub(crate) fn note(&self) {
        if self.unsynced.note() {
            // A full channel wakes the task as well.
            let _ = self.wake.try_send(());
        }
    }

    pub(crate) fn oldest(&self) -> Duration {
        self.unsynced.age()
    }

    /// Syncs everything that was committed before the call.
    pub(crate) async fn sync_now(&self) -> Result<()> {
        let wal = Arc::clone(&self.wal);
        let done = tokio::task::spawn_blocking(move || sync(&wal)).await;
        let done = done.map_err(io::Error::other).and_then(|done| done);
        Ok(done.map_err(sqlx::Error::Io)?)
    }
}

/// Path of the write-ahead log of a database.
pub(crate) fn wal_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Syncs a write-ahead log. SQLite holds no POSIX locks on it, so closing a descriptor of it is harmless. A missing log
/// is no error: closing the last connection removes it after a checkpoint.
pub(crate) fn sync(wal: &Path) -> io::Result<()> {
    match File::open(wal) {
        Ok(wal) => wal.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

async fn run(wal: PathBuf, unsynced: Unsynced, mut woken: Receiver<()>) {
    while woken.recv().await.is_some() {
        let mut is_synced = false;
        while !is_synced {
            tokio::time::sleep(SYNC_DELAY).await;
            let wal = wal.clone();
            unsynced.begin();
            let result = tokio::task::spawn_blocking(move || sync(&wal)).await;
            is_synced = matches!(result, Ok(Ok(())));
            unsynced.end(is_synced);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Instant;

    use super::*;

    /// In the quickest of several rounds: others may use the disk meanwhile.
    #[tokio::test]
    async fn a_commit_is_synced_within_a_second() {
        let mut quickest = Duration::MAX;
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("atoll.db");
        let committed = CommitSync::open(&database).await.unwrap();
        for _ in 0..5 {
            committed.note();
            let begin = Instant::now();
            while !committed.oldest().is_zero() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            quickest = quickest.min(begin.elapsed());
        }
        assert!(quickest < Duration::from_secs(1), "{quickest:?}");
    }
}
