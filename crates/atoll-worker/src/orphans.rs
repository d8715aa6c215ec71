//! Sandboxes that nobody knows of any more, or whose record nobody understands: their files are set aside in `orphaned/`, where
//! somebody may look for what is missing, and removed after a week.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{Error, SandboxId};

use crate::LocalRuntime;
use crate::exec::now;
use crate::instance::remove_directory;
use crate::sandbox::blocking;
use crate::storage::Disk;

/// How long they are kept.
pub const KEPT: Duration = Duration::from_hours(7 * 24);
/// Says when one was set aside, in microseconds since 1970.
const SINCE: &str = "aside";

/// A sandbox that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Which.
    pub id: SandboxId,
    /// When it was set aside, in microseconds since 1970.
    pub since: i64,
    /// Where its files are.
    pub directory: PathBuf,
}

/// Where those of a data directory are.
pub(crate) fn place(data: &Path) -> PathBuf {
    data.join("orphaned")
}

/// Those of a data directory, oldest first.
pub fn all(data: &Path) -> Vec<Orphan> {
    let entries = fs::read_dir(place(data)).into_iter().flatten().flatten();
    let orphan = |entry: fs::DirEntry| {
        Some(Orphan {
            id: entry.file_name().to_str()?.parse().ok()?,
            since: since(&entry.path())?,
            directory: entry.path(),
        })
    };
    let mut all: Vec<Orphan> = entries.filter_map(orphan).collect();
    all.sort_by_key(|orphan| orphan.since);
    all
}

/// Of those from before it was written down the kernel knows it: a directory that is moved changes.
fn since(directory: &Path) -> Option<i64> {
    let written = fs::read_to_string(directory.join(SINCE)).ok();
    written
        .and_then(|text| text.trim().parse().ok())
        .or_else(|| Some(fs::metadata(directory).ok()?.ctime() * 1_000_000))
}

/// Writes down that a sandbox is set aside now.
pub(crate) fn mark(directory: &Path) {
    // Where there is no room for it, the directory itself tells.
    let _ = fs::write(directory.join(SINCE), now().to_string());
}

/// It is set aside no longer.
pub(crate) fn unmark(directory: &Path) {
    let _ = fs::remove_file(directory.join(SINCE));
}

impl LocalRuntime {
    /// Removes the orphans that were set aside before a time. The caller decides when: it knows whether the clock can
    /// be trusted.
    pub async fn remove_orphans(&self, before: i64) -> Result<(), Error> {
        let runtime = self.clone();
        blocking(move || {
            let instance = &runtime.shared().instance;
            remove(&instance.directory, before, instance.disk.as_ref());
            Ok(())
        })
        .await
    }
}

fn remove(data: &Path, before: i64, disk: &dyn Disk) {
    for orphan in all(data) {
        if orphan.since < before && disk.remove(&orphan.id).is_ok() {
            let _ = remove_directory(&orphan.directory);
        }
    }
}
