//! Runs with a name: each is a lasting instance of its own below the data directory. Looking at them
//! changes nothing and waits for nobody.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use atoll_model::{ExecInfo, RunName, SandboxInfo, SandboxSpec, SandboxState};

use super::registry::{self, read_tag};
use super::remove_directory;
use crate::exec::record::ExecRecord;
use crate::exec::record_log::RecordLog;
use crate::sandbox::{Record, boot};
use crate::storage;

/// Where they are in a data directory.
pub const DIRECTORY: &str = "named";

/// What a directory that is being removed is called: no name can begin so.
const ASIDE: &str = ".gone-";

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What it is called.
    pub name: RunName,
    /// The data directory of its instance.
    pub directory: PathBuf,
}

/// What can be seen of an instance from outside.
#[derive(Debug, Clone)]
pub struct Glimpse {
    /// The process that serves it now.
    pub served: Option<i32>,
    /// It has a server or a keeper.
    pub alive: bool,
    /// Its sandboxes as they are written down, with what was asked for and their commands.
    pub sandboxes: Vec<(SandboxInfo, SandboxSpec, Vec<ExecInfo>)>,
}

impl Place {
    /// The place of a name.
    pub fn of(data: &Path, name: &RunName) -> Self {
        Self {
            name: name.clone(),
            directory: data.join(DIRECTORY).join(name.as_str()),
        }
    }

    /// Looks at it; nothing if there is nothing.
    pub fn look(&self) -> Option<Glimpse> {
        if !self.directory.is_dir() {
            return None;
        }
        let served = self.server();
        let alive = served.is_some()
            || read_tag(&self.directory).is_some_and(|tag| is_locked(&registry::path().join(tag)));
        let entries = fs::read_dir(self.directory.join("sandboxes"));
        let sandboxes = entries.into_iter().flatten().flatten().filter_map(|entry| {
            let mut record = Record::read(&entry.path()).ok()??;
            if record.boot != boot() || !alive {
                record.info.state = SandboxState::Stopped;
            }
            let log = RecordLog::open(entry.path().join("execs"));
            let execs = ExecRecord::read_all(&log).unwrap_or_default();
            let execs = execs.iter().map(ExecRecord::info).collect();
            Some((record.info, record.spec, execs))
        });
        let sandboxes = sandboxes.collect();
        Some(Glimpse {
            served,
            alive,
            sandboxes,
        })
    }

    fn server(&self) -> Option<i32> {
        let path = self.directory.join("lock");
        is_locked(&path).then(|| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        })
    }
}

/// All of a data directory, by name.
pub fn all(data: &Path) -> Vec<Place> {
    let entries = fs::read_dir(data.join(DIRECTORY)).into_iter().flatten();
    let names = entries.flatten().filter_map(|entry| {
        let name: RunName = entry.file_name().to_str()?.parse().ok()?;
        Some(Place::of(data, &name))
    });
    let mut all: Vec<Place> = names.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Whether a directory is where runs with a name are.
pub(super) fn holds(directory: &Path) -> bool {
    let parent = directory.parent().and_then(Path::file_name);
    parent.is_some_and(|name| name == DIRECTORY)
}

/// Where a directory is put while it is removed.
pub(super) fn aside(directory: &Path, tag: &str) -> PathBuf {
    directory.with_file_name(format!("{ASIDE}{tag}"))
}

/// Removes what is left of directories that were being removed; what could not be.
pub(super) fn sweep(data: &Path) -> Vec<String> {
    let entries = fs::read_dir(data.join(DIRECTORY)).into_iter().flatten();
    let gone = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(ASIDE))
    });
    let removed = gone.map(|entry| {
        storage::dismantle(&entry.path()).and_then(|()| remove_directory(&entry.path()))
    });
    removed
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect()
}

/// Whether somebody holds a file locked. Asked by a lock that others may share for that moment.
fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_err())
}
