#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

mod archives;
mod bases;
mod references;
mod stores;

fn no_progress() -> impl FnMut(Progress) {
    |_| {}
}

/// A store in a temporary directory that also has room for sources.
struct Fixture {
    temp: tempfile::TempDir,
    store: TemplateStore,
}

impl Fixture {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = TemplateStore::open(temp.path().join("templates")).unwrap();
        Self { temp, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn add(&self, name: &str, source: &Source, options: &TemplateOptions) -> Result<Report, Error> {
        self.store.add(name, source, options, &mut no_progress())
    }

    /// A directory with one file, as a source.
    fn small(&self, contents: &str) -> Source {
        let path = self.path(&format!("small-{contents}"));
        fs::create_dir_all(path.join("etc")).unwrap();
        fs::write(path.join("etc/version"), contents).unwrap();
        Source::Directory(path)
    }

    /// Names in the store without its lock files.
    fn entries(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path("templates"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".lock"))
            .collect();
        names.sort();
        names
    }

    fn layer(&self, name: &str) -> PathBuf {
        self.path("templates").join(name).join("layer")
    }
}

fn write(root: &Path, name: &str, contents: &str, mode: u32) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, contents).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}
