//! A temporary directory for one test. Dropping it removes it, without crossing mounts that a failed test left in
//! it.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::mounts;

/// A temporary data directory: below `ATOLL_TEST_DIR` if that is set, else where the system keeps temporary files.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// Makes one.
    #[allow(clippy::new_without_default, reason = "it touches the disk")]
    pub fn new() -> Self {
        let place =
            std::env::var_os("ATOLL_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        std::fs::create_dir_all(&place).expect("the place for scratch directories can be made");
        let directory = tempfile::Builder::new()
            .prefix("atoll-test-")
            .tempdir_in(&place)
            .unwrap_or_else(|problem| {
                panic!("no scratch directory in {}: {problem}", place.display())
            });
        Self { directory }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A name in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        detach_below(self.directory.path());
    }
}

/// Lazily unmounts everything at or below a path, the last mount first.
pub(crate) fn detach_below(path: &Path) {
    for mount in mounts()
        .iter()
        .rev()
        .filter(|mount| mount.point.starts_with(path))
    {
        let _ = unmount(&mount.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    }
}
