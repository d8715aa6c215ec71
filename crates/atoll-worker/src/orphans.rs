//! Sandboxes that nobody knows of any more, or whose record nobody understands: their files are set aside in `orphaned/`, where
//! somebody may look for what is missing, and removed after a week.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use atoll_model::SandboxId;

use crate::exec::now;
use crate::instance::remove_directory;
use crate::runtime::Shared;
use crate::storage::Disk;

/// How long they are kept.
pub const KEPT: Duration = Duration::from_hours(7 * 24);
/// How often is looked for those that were kept long enough.
const EVERY: Duration = Duration::from_hours(1);
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

/// Removes those that were kept long enough.
pub(crate) fn sweep(data: &Path, disk: &dyn Disk) {
    let oldest = now() - i64::try_from(KEPT.as_micros()).unwrap_or(i64::MAX);
    for orphan in all(data) {
        if orphan.since < oldest && disk.remove(&orphan.id).is_ok() {
            let _ = remove_directory(&orphan.directory);
        }
    }
}

/// Looks after them as long as the runtime is there.
pub(crate) async fn tend(shared: Weak<Shared>) {
    let mut clock = tokio::time::interval(EVERY);
    loop {
        clock.tick().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let sweep = move || sweep(&shared.instance.directory, shared.instance.disk.as_ref());
        let _ = tokio::task::spawn_blocking(sweep).await;
    }
}
