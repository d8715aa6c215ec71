//! Named runs: each is a persistent instance of its own in the data directory.
//!
//! Inspecting one changes nothing and takes no lock that another process waits for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use atoll_model::{ExecInfo, RunName, SandboxInfo, SandboxSpec, SandboxState};

use super::registry::{self, read_tag};
use super::remove_directory;
use crate::exec::record::ExecRecord;
use crate::exec::record_log::RecordLog;
use crate::sandbox::{Record, host_boot_id};
use crate::storage;

/// Directory of named runs in a data directory.
pub const DIRECTORY: &str = "named";

/// Prefix of directories that are being removed; no run name begins with a dot.
const REMOVING_PREFIX: &str = ".gone-";

/// A named run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRun {
    /// Its name.
    pub name: RunName,
    /// Data directory of its instance.
    pub directory: PathBuf,
}

/// State of a named run as seen from outside.
#[derive(Debug, Clone)]
pub struct RunStatus {
    /// Pid of the process that serves it now.
    pub served: Option<i32>,
    /// Whether it has a server or a keeper.
    pub alive: bool,
    /// Its sandboxes by their records, with spec and execs.
    pub sandboxes: Vec<(SandboxInfo, SandboxSpec, Vec<ExecInfo>)>,
}

impl NamedRun {
    /// The run with this name; it need not exist.
    pub fn new(data: &Path, name: &RunName) -> Self {
        Self {
            name: name.clone(),
            directory: data.join(DIRECTORY).join(name.as_str()),
        }
    }

    /// Its state; `None` if it does not exist.
    pub fn inspect(&self) -> Option<RunStatus> {
        if !self.directory.is_dir() {
            return None;
        }
        let served = self.server();
        let alive = served.is_some()
            || read_tag(&self.directory).is_some_and(|tag| is_locked(&registry::path().join(tag)));
        let entries = fs::read_dir(self.directory.join("sandboxes"));
        let sandboxes = entries.into_iter().flatten().flatten().filter_map(|entry| {
            let mut record = Record::read(&entry.path()).ok()??;
            if record.boot_id != host_boot_id() || !alive {
                record.info.state = SandboxState::Stopped;
            }
            let log = RecordLog::open(entry.path().join("execs"));
            let execs = ExecRecord::read_all(&log).unwrap_or_default();
            let execs = execs.iter().map(ExecRecord::info).collect();
            Some((record.info, record.spec, execs))
        });
        let sandboxes = sandboxes.collect();
        Some(RunStatus {
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

/// All named runs of a data directory, by name.
pub fn list(data: &Path) -> Vec<NamedRun> {
    let entries = fs::read_dir(data.join(DIRECTORY)).into_iter().flatten();
    let names = entries.flatten().filter_map(|entry| {
        let name: RunName = entry.file_name().to_str()?.parse().ok()?;
        Some(NamedRun::new(data, &name))
    });
    let mut all: Vec<NamedRun> = names.collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Whether a directory is one of a named run.
pub(super) fn is_run_directory(directory: &Path) -> bool {
    let parent = directory.parent().and_then(Path::file_name);
    parent.is_some_and(|name| name == DIRECTORY)
}

/// Path of a run's directory while it is removed.
pub(super) fn removal_path(directory: &Path, tag: &str) -> PathBuf {
    directory.with_file_name(format!("{REMOVING_PREFIX}{tag}"))
}

/// Removes directories whose removal was interrupted; returns the errors.
pub(super) fn sweep(data: &Path) -> Vec<String> {
    let entries = fs::read_dir(data.join(DIRECTORY)).into_iter().flatten();
    let gone = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.starts_with(REMOVING_PREFIX))
    });
    let removed = gone.map(|entry| {
        storage::unmount(&entry.path()).and_then(|()| remove_directory(&entry.path()))
    });
    removed
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect()
}

/// Whether another process holds an exclusive lock on a file. Tested with a shared lock for a
/// moment.
fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_err())
}
