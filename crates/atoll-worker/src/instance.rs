//! An instance: one data directory and everything the kernel holds for it, named by its tag.
//!
//! `/run/atoll/instances/TAG` names the data directory of every instance of this host and is locked
//! by it (and by its keeper) for as long as it lives. Whose lock can be had is dead: then, and only
//! then, may its control groups and files be taken away.

mod collect;
pub mod named;
mod registry;

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_jail::cgroup::Tree;
use atoll_jail::facts::Facts;
use atoll_jail::ids::Ranges;
use atoll_model::{Code, Error, SandboxId};

use crate::error::{host_file, jail};
use crate::sandbox::Record;
use crate::storage::{self, Disk, Storage};
use crate::tree;
pub use collect::{Collected, Scope, collect, stale_networks};
pub use registry::DataLock;
use registry::{read_tag, register, register_lasting};

/// What all instances of a host share.
const SHARED: &str = "/run/atoll";

/// A living instance.
#[derive(Debug)]
pub struct Instance {
    /// Its name in every name we give the kernel.
    pub tag: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Held locked.
    pub(crate) lock: File,
    /// Its claims on user ids.
    pub(crate) ranges: Ranges,
    /// The parent of its sandboxes' control groups.
    pub(crate) cgroups: Tree,
    /// What its sandboxes' files are on.
    pub(crate) disk: Box<dyn Disk>,
    /// It outlives its server; locked against a second one.
    pub(crate) lasting: Option<DataLock>,
}

impl Instance {
    /// Makes a small instance of its own below a data directory, for one run.
    pub fn ephemeral(data: &Path, storage: Storage, facts: &Facts) -> Result<Self, Error> {
        storage::require(storage, facts)?;
        data_directory(data)?;
        let registry = registry::open()?;
        let runs = data.join("runs");
        private_directory(&runs)?;
        let (tag, lock) = register(&registry, |tag| runs.join(tag))?;
        let directory = runs.join(&tag);
        for part in ["", "sandboxes", "trash"] {
            private_directory(&directory.join(part))?;
        }
        spread(&directory.join("sandboxes"));
        let ranges = Ranges::open(&Path::new(SHARED).join("ids")).map_err(|error| jail(&error))?;
        let cgroups =
            Tree::create(facts, &tag, for_sandboxes(facts.memory)).map_err(|error| jail(&error))?;
        let disk = match storage::open(storage, &directory, facts) {
            Ok(disk) => disk,
            Err(error) => {
                // What cannot be taken away now is left to a collector.
                let _ = dismantle(&tag, &directory, &cgroups);
                return Err(error);
            }
        };
        Ok(Self {
            tag,
            directory,
            lock,
            ranges,
            cgroups,
            disk,
            lasting: None,
        })
    }

    /// The instance of a data directory, which is there for good. `held` is what its keeper held, if there
    /// is one: the lock of the instance, then the claims on ids.
    pub(crate) fn lasting(
        data: &Path,
        own: DataLock,
        held: Vec<OwnedFd>,
        storage: Storage,
        facts: &Facts,
    ) -> Result<Self, Error> {
        let registry = registry::open()?;
        for part in ["sandboxes", "trash", "orphaned"] {
            private_directory(&data.join(part))?;
        }
        spread(&data.join("sandboxes"));
        storage::remembered(data, storage)?;
        let disk = storage::open(storage, data, facts)?;
        let mut held = held.into_iter();
        let (tag, lock) = match (read_tag(data), held.next()) {
            (Some(tag), Some(lock)) => (tag, File::from(lock)),
            (tag, None) => register_lasting(&registry, data, tag)?,
            (None, Some(_)) => {
                let message = format!("{} has lost its tag", data.display());
                return Err(Error::new(Code::Internal, message));
            }
        };
        let ranges = if let Some(claims) = held.next() {
            Ranges::take_over(claims)
        } else {
            // Without a keeper nobody lives, whatever is left of their groups.
            let left = Tree::of(facts, &tag).and_then(|tree| tree.destroy());
            left.map_err(|error| jail(&error))?;
            Ranges::open(&Path::new(SHARED).join("ids")).map_err(|error| jail(&error))?
        };
        let cgroups =
            Tree::create(facts, &tag, for_sandboxes(facts.memory)).map_err(|error| jail(&error))?;
        Ok(Self {
            tag,
            directory: data.to_owned(),
            lock,
            ranges,
            cgroups,
            disk,
            lasting: Some(own),
        })
    }

    /// Where its sandboxes' files are.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.directory.join("sandboxes")
    }

    /// Where those of one of them are.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Where files wait to be removed.
    pub(crate) fn trash(&self) -> PathBuf {
        self.directory.join("trash")
    }

    /// Releases what the kernel holds for a lasting instance without processes: control groups, with a keeper that is
    /// on its way out, and the mount of its storage. The next server makes them again.
    pub(crate) fn rest(&self) -> Result<(), Error> {
        self.disk.close();
        self.cgroups.destroy().map_err(|error| jail(&error))?;
        storage::dismantle(&self.directory)
    }

    /// Takes everything of this instance away. Its sandboxes have ended before.
    pub(crate) fn dismantle(&self) -> Result<(), Error> {
        self.disk.close();
        if self.lasting.is_none() {
            return dismantle(&self.tag, &self.directory, &self.cgroups);
        }
        // A keeper that we did not start is on its way out, and in one of these.
        self.cgroups.destroy().map_err(|error| jail(&error))?;
        storage::dismantle(&self.directory)?;
        // At once, so that whoever comes now finds either all of it or a free name.
        let aside = named::aside(&self.directory, &self.tag);
        fs::rename(&self.directory, &aside)
            .map_err(|error| host_file("move to", &aside, &error))?;
        dismantle(&self.tag, &aside, &self.cgroups)
    }
}

/// Asks ext4 to put what is made in a directory into block groups far from each other. Otherwise all
/// sandboxes share one, and every new file there steps over all that were deleted lately.
fn spread(path: &Path) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if let Ok(directory) = File::open(path)
        && let Ok(flags) = ioctl_getflags(&directory)
    {
        // Other file systems do not know the flag, and do not need it.
        let _ = ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
}

/// What is left to sandboxes after the host's reserve.
fn for_sandboxes(memory: u64) -> u64 {
    memory.saturating_sub(crate::reserve::memory_reserve(memory))
}

/// Makes a data directory for root alone. One that is there and open to others is refused: ids in
/// it start at 0, so a setuid file of a sandbox's root would be one of the host's.
pub fn data_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    private_directory(path)?;
    let found = fs::metadata(path).map_err(|error| host_file("look at", path, &error))?;
    if !found.is_dir() || found.mode() & 0o077 != 0 || found.uid() != 0 {
        let message = format!(
            "the data directory {} is open to others than root",
            path.display()
        );
        let remedy = format!(
            "chown root {0} && chmod 700 {0}, or choose another by ATOLL_DATA_DIR",
            path.display()
        );
        return Err(Error::invalid("data directory", message, remedy));
    }
    Ok(())
}

pub(crate) fn private_directory(path: &Path) -> Result<(), Error> {
    match fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
    {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(host_file("make", path, &error))
        }
        _ => Ok(()),
    }
}

fn dismantle(tag: &str, directory: &Path, cgroups: &Tree) -> Result<(), Error> {
    cgroups.destroy().map_err(|error| jail(&error))?;
    storage::dismantle(directory)?;
    remove_directory(directory)?;
    let entry = registry::path().join(tag);
    match fs::remove_file(&entry) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(host_file("remove", &entry, &error))
        }
        _ => Ok(()),
    }
}

/// Removes a directory that may hold a hostile tree.
pub(crate) fn remove_directory(path: &Path) -> Result<(), Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = match File::open(parent) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(host_file("open", parent, &error)),
    };
    use std::os::fd::AsFd;
    tree::remove(parent.as_fd(), name).map_err(|error| host_file("remove", path, &error))
}

/// How many sandboxes of a data directory are recorded beside their files. Sandboxes of the warm pool do not count:
/// they belong to no caller.
pub fn count_recorded(data: &Path) -> usize {
    let entries = fs::read_dir(data.join("sandboxes")).into_iter().flatten();
    let is_recorded = |entry: &fs::DirEntry| match Record::read(&entry.path()) {
        Ok(record) => record.is_some_and(|record| !record.pooled),
        Err(_) => true,
    };
    entries.flatten().filter(is_recorded).count()
}

/// Where the sandboxes that users chose to keep are.
pub fn kept(data: &Path) -> PathBuf {
    data.join("kept")
}

/// Removes the sandboxes that users chose to keep; how many there were.
pub fn remove_kept(data: &Path) -> Result<usize, Error> {
    let entries = fs::read_dir(kept(data)).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.iter().try_for_each(|path| remove_directory(path))?;
    Ok(paths.len())
}
