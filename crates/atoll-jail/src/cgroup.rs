//! Cgroups of a sandbox: limits, a leaf for each exec, kill, counters.
//!
//! Layout, in every hierarchy that has a controller we use, and always in cgroup2:
//! `atoll-TAG/` (all sandboxes of an instance and the keeper, with a reserve for the host) / `ID/` (one sandbox,
//! its limits; PID 1 lives here) and in cgroup2 only / `x1/`, `x2/` … (each exec). Execs inherit the v1
//! groups from PID 1 and are cloned straight into their cgroup2 directory, because moving a process
//! waits for an RCU grace period. Killing is always done by cgroup2, which does it at once.
//!
//! If controllers are in cgroup2, only the root and `atoll-TAG/` enable them for their children: a directory that
//! does so cannot contain processes, and `ID/` contains PID 1. Everything below `ID/` counts against its limits.

mod directory;
mod freeze;
mod instance;
mod leaf;
mod limits;
mod usage;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::plan::Limits;
use crate::{Error, Step as _};
use directory::{create_directory, open, remove_tree, wait_empty, write};
pub use instance::InstanceCgroup;
pub use leaf::{End, Leaf};
pub use usage::Usage;

/// Cgroups of one sandbox.
#[derive(Debug, Clone)]
pub struct SandboxCgroup {
    v1: Vec<PathBuf>,
    v2: PathBuf,
    memory: PathBuf,
    pids: PathBuf,
    owner: u32,
    oom_counter: Arc<OnceLock<fs::File>>,
}

impl SandboxCgroup {
    fn create(&self, limits: &Limits, tree: &InstanceCgroup) -> Result<(), Error> {
        for path in self.v1.iter().chain([&self.v2]) {
            create_directory(path)?;
        }
        for (path, value) in self.files(limits, tree) {
            write(&path, value)?;
        }
        // PID 1 clones execs into leaves, for which it must own `cgroup.procs` of the common ancestor.
        self.chown_to_sandbox(&self.v2)
    }

    fn chown_to_sandbox(&self, directory: &Path) -> Result<(), Error> {
        let procs = directory.join("cgroup.procs");
        std::os::unix::fs::chown(&procs, Some(self.owner), Some(self.owner))
            .step(|| format!("chown {}", procs.display()))
    }

    /// Moves PID 1 into the v1 hierarchies. Its children inherit them.
    pub fn attach(&self, pid: i32) -> Result<(), Error> {
        self.v1
            .iter()
            .try_for_each(|path| write(&path.join("cgroup.procs"), &pid.to_string()))
    }

    /// Opens the sandbox's cgroup2 directory, for `CLONE_INTO_CGROUP`.
    pub fn open(&self) -> Result<OwnedFd, Error> {
        open(&self.v2)
    }

    /// Kills every process of the sandbox.
    pub fn kill(&self) -> Result<(), Error> {
        write(&self.v2.join("cgroup.kill"), "1")
    }

    /// Removes the groups after waiting for the end of their processes (with a time limit).
    pub fn remove(&self) -> Result<(), Error> {
        if self.v2.exists() {
            wait_empty(&self.v2)?;
        }
        self.v1
            .iter()
            .chain([&self.v2])
            .try_for_each(|path| remove_tree(path))
    }
}
