//! Brings commits to the disk in the background. SQLite syncs its write-ahead log only at a checkpoint; without this a
//! power cut could undo everything since then. No caller waits for a sync: one covers all commits of half a second.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::Unsynced;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::Result;

/// How long commits are gathered for one sync. A commit is on the disk this much later, and the time of two syncs at most.
const GATHER: Duration = Duration::from_millis(400);

/// State of the sync task.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    unsynced: Unsynced,
    /// Wakes the task; it ends with the last of these.
    wake: Arc<Sender<()>>,
}

impl Committed {
    /// Syncs a database that was just opened, and begins to sync what is committed to it.
    pub(crate) async fn open(database: &Path) -> Result<Self> {
        let log = log_of(database);
        let new = log.clone();
        let made = tokio::task::spawn_blocking(move || {
            sync(&new)?;
            // The names may be new as well. The database itself was synced by SQLite when it was made, and is not opened here:
            // with the descriptor SQLite's locks would go.
            match new.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                Some(directory) => File::open(directory)?.sync_all(),
                None => Ok(()),
            }
        });
        let made = made.await.map_err(io::Error::other).and_then(|made| made);
        made.map_err(sqlx::Error::Io)?;
        let (wake, woken) = channel(1);
        let unsynced = Unsynced::default();
        tokio::spawn(tend(log, unsynced.clone(), woken));
        let wake = Arc::new(wake);
        Ok(Self { unsynced, wake })
    }

    /// Something may have been committed.
    pub(crate) fn note(&self) {
        if self.unsynced.note() {
            // One that is full wakes the task as well.
            let _ = self.wake.try_send(());
        }
    }

    pub(crate) fn oldest(&self) -> Duration {
        self.unsynced.age()
    }
}

/// The write-ahead log of a database.
pub(crate) fn log_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// The log is removed when the last connection is closed, after everything in it was synced elsewhere. Unlike those of
/// the database itself, its locks do not end when a descriptor of it is closed: it has none.
pub(crate) fn sync(log: &Path) -> io::Result<()> {
    match File::open(log) {
        Ok(log) => log.sync_data(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

async fn tend(log: PathBuf, unsynced: Unsynced, mut woken: Receiver<()>) {
    while woken.recv().await.is_some() {
        let mut is_synced = false;
        while !is_synced {
            tokio::time::sleep(GATHER).await;
            let log = log.clone();
            unsynced.begin();
            let done = tokio::task::spawn_blocking(move || sync(&log)).await;
            is_synced = matches!(done, Ok(Ok(())));
            unsynced.end(is_synced);
        }
    }
}
