//! Files of sandboxes without a row or with a corrupt record. They are moved to `orphaned/`, where
//! an operator can recover data, and removed after a week.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{Error, SandboxId};

use crate::LocalRuntime;
use crate::exec::now;
use crate::instance::remove_directory;
use crate::sandbox::run_blocking;
use crate::storage::StorageBackend;

/// Time until the files of an orphan are removed.
pub const RETENTION: Duration = Duration::from_hours(7 * 24);
/// File with the time of the move, in microseconds since 1970.
const MARKER_FILE: &str = "aside";

/// A sandbox whose files are in `orphaned/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Id that the sandbox had.
    pub id: SandboxId,
    /// Time of the move, in microseconds since 1970.
    pub orphaned_at: i64,
    /// Directory of its files.
    pub directory: PathBuf,
}

/// Directory of the orphans in a data directory.
pub(crate) fn directory(data: &Path) -> PathBuf {
    data.join("orphaned")
}

/// The orphans of a data directory, oldest first.
pub fn list(data: &Path) -> Vec<Orphan> {
    let entries = fs::read_dir(directory(data))
        .into_iter()
        .flatten()
        .flatten();
    let orphan = |entry: fs::DirEntry| {
        Some(Orphan {
            id: entry.file_name().to_str()?.parse().ok()?,
            orphaned_at: orphaned_at(&entry.path())?,
            directory: entry.path(),
        })
    };
    let mut all: Vec<Orphan> = entries.filter_map(orphan).collect();
    all.sort_by_key(|orphan| orphan.orphaned_at);
    all
}

/// From the marker file. Without one, from the directory's ctime, which a move updates.
fn orphaned_at(directory: &Path) -> Option<i64> {
    let written = fs::read_to_string(directory.join(MARKER_FILE)).ok();
    written
        .and_then(|text| text.trim().parse().ok())
        .or_else(|| Some(fs::metadata(directory).ok()?.ctime() * 1_000_000))
}

/// Writes the marker file with the current time.
pub(crate) fn write_marker(directory: &Path) {
    // Without space for the marker, the directory's ctime is used.
    let _ = fs::write(directory.join(MARKER_FILE), now().to_string());
}

/// Removes the marker file.
pub(crate) fn remove_marker(directory: &Path) {
    let _ = fs::remove_file(directory.join(MARKER_FILE));
}

impl LocalRuntime {
    /// Removes orphans that were moved before a time, in microseconds since 1970. The caller passes
    /// it because it knows whether the clock can be trusted.
    pub async fn remove_orphans(&self, before: i64) -> Result<(), Error> {
        let runtime = self.clone();
        run_blocking(move || {
            let instance = &runtime.shared().instance;
            remove(&instance.directory, before, instance.storage.as_ref());
            Ok(())
        })
        .await
    }
}

fn remove(data: &Path, before: i64, storage: &dyn StorageBackend) {
    for orphan in list(data) {
        if orphan.orphaned_at < before && storage.remove(&orphan.id).is_ok() {
            let _ = remove_directory(&orphan.directory);
        }
    }
}
