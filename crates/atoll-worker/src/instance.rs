//! Instances: one data directory and all kernel objects that carry its tag.
//!
//! `/run/atoll/instances/TAG` contains the data directory of every instance of this host. The
//! instance and its keeper hold a lock on it as long as they live. An instance whose lock can be
//! taken is dead: then, and only then, its control groups and files may be removed.

mod gc;
pub mod named;
mod registry;

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use atoll_jail::cgroup::InstanceCgroup;
use atoll_jail::facts::Facts;
use atoll_jail::ids::Ranges;
use atoll_model::{Code, Error, SandboxId};

use crate::error::{host_file_error, jail};
use crate::sandbox::Record;
use crate::storage::{self, Storage, StorageBackend};
use crate::tree;
pub use gc::{Collected, Scope, collect, stale_networks};
pub use registry::DataLock;
use registry::{read_tag, register, register_persistent};

/// Directory that all instances of a host share.
const HOST_STATE_DIRECTORY: &str = "/run/atoll";

/// A live instance.
#[derive(Debug)]
pub struct Instance {
    /// Part of the name of each of its kernel objects.
    pub tag: String,
    /// Its data directory, or its directory below `runs/`.
    pub directory: PathBuf,
    /// Locked entry in the registry.
    pub(crate) lock: File,
    /// Its claims of uid ranges.
    pub(crate) ranges: Ranges,
    /// Parent of its sandboxes' control groups.
    pub(crate) cgroups: InstanceCgroup,
    /// Storage of its sandboxes' files.
    pub(crate) storage: Box<dyn StorageBackend>,
    /// Lock of the data directory of a persistent instance; `None` for an ephemeral one.
    pub(crate) data_lock: Option<DataLock>,
}

impl Instance {
    /// Creates an ephemeral instance below a data directory, for one run.
    pub fn create_ephemeral(data: &Path, storage: Storage, facts: &Facts) -> Result<Self, Error> {
        storage::check_host(storage, facts)?;
        data_directory(data)?;
        let registry = registry::open()?;
        let runs = data.join("runs");
        private_directory(&runs)?;
        let (tag, lock) = register(&registry, |tag| runs.join(tag))?;
        let directory = runs.join(&tag);
        for part in ["", "sandboxes", "trash"] {
            private_directory(&directory.join(part))?;
        }
        set_topdir_hint(&directory.join("sandboxes"));
        let ranges = Ranges::open(&Path::new(HOST_STATE_DIRECTORY).join("ids"))
            .map_err(|error| jail(&error))?;
        let cgroups = InstanceCgroup::create(facts, &tag, sandbox_memory(facts.memory))
            .map_err(|error| jail(&error))?;
        let backend = match storage::open(storage, &directory, facts) {
            Ok(backend) => backend,
            Err(error) => {
                // The rest is left to garbage collection.
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
            storage: backend,
            data_lock: None,
        })
    }

    /// Opens the persistent instance of a data directory. `held` are the descriptors of its keeper,
    /// if there is one: the instance's lock, then the claims of ids.
    pub(crate) fn open_persistent(
        data: &Path,
        data_lock: DataLock,
        held: Vec<OwnedFd>,
        storage: Storage,
        facts: &Facts,
    ) -> Result<Self, Error> {
        let registry = registry::open()?;
        for part in ["sandboxes", "trash", "orphaned"] {
            private_directory(&data.join(part))?;
        }
        set_topdir_hint(&data.join("sandboxes"));
        storage::check_same_kind(data, storage)?;
        let backend = storage::open(storage, data, facts)?;
        let mut held = held.into_iter();
        let (tag, lock) = match (read_tag(data), held.next()) {
            (Some(tag), Some(lock)) => (tag, File::from(lock)),
            (tag, None) => register_persistent(&registry, data, tag)?,
            (None, Some(_)) => {
                let message = format!("the file tag is missing in {}", data.display());
                return Err(Error::new(Code::Internal, message));
            }
        };
        let ranges = if let Some(claims) = held.next() {
            Ranges::take_over(claims)
        } else {
            // Without a keeper no sandbox lives; only empty control groups may be left.
            let leftover = InstanceCgroup::of(facts, &tag).and_then(|tree| tree.destroy());
            leftover.map_err(|error| jail(&error))?;
            Ranges::open(&Path::new(HOST_STATE_DIRECTORY).join("ids"))
                .map_err(|error| jail(&error))?
        };
        let cgroups = InstanceCgroup::create(facts, &tag, sandbox_memory(facts.memory))
            .map_err(|error| jail(&error))?;
        Ok(Self {
            tag,
            directory: data.to_owned(),
            lock,
            ranges,
            cgroups,
            storage: backend,
            data_lock: Some(data_lock),
        })
    }

    /// Directory of its sandboxes.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.directory.join("sandboxes")
    }

    /// Directory of one sandbox.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Directory of files to remove.
    pub(crate) fn trash(&self) -> PathBuf {
        self.directory.join("trash")
    }

    /// Releases the kernel objects of a persistent instance without processes: control groups and
    /// the mount of its storage. The next server creates them again.
    pub(crate) fn release_kernel_objects(&self) -> Result<(), Error> {
        self.storage.close();
        self.cgroups.destroy().map_err(|error| jail(&error))?;
        storage::unmount(&self.directory)
    }

    /// Removes the instance. Its sandboxes have ended before.
    pub(crate) fn dismantle(&self) -> Result<(), Error> {
        self.storage.close();
        if self.data_lock.is_none() {
            return dismantle(&self.tag, &self.directory, &self.cgroups);
        }
        // A keeper that this server did not start is exiting, in one of these groups.
        self.cgroups.destroy().map_err(|error| jail(&error))?;
        storage::unmount(&self.directory)?;
        // One rename, so that another process finds the whole directory or a free name.
        let removing = named::removal_path(&self.directory, &self.tag);
        fs::rename(&self.directory, &removing)
            .map_err(|error| host_file_error("move to", &removing, &error))?;
        dismantle(&self.tag, &removing, &self.cgroups)
    }
}

/// Sets ext4's TOPDIR flag, which places subdirectories in block groups far from each other.
/// Otherwise all sandboxes share one, and each new file skips all recently deleted ones.
fn set_topdir_hint(path: &Path) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if let Ok(directory) = File::open(path)
        && let Ok(flags) = ioctl_getflags(&directory)
    {
        // Other file systems do not support the flag and do not need it.
        let _ = ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
}

/// Memory for sandboxes, without the host's reserve.
fn sandbox_memory(memory: u64) -> u64 {
    memory.saturating_sub(crate::reserve::memory_reserve(memory))
}

/// Creates a data directory with mode 700. An existing one that is open to others is refused: ids
/// in it start at 0, so a setuid file of a sandbox's root would be one of the host's.
pub fn data_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    private_directory(path)?;
    let found = fs::metadata(path).map_err(|error| host_file_error("examine", path, &error))?;
    if !found.is_dir() || found.mode() & 0o077 != 0 || found.uid() != 0 {
        let message = format!(
            "the data directory {} is accessible to users other than root",
            path.display()
        );
        let remedy = format!(
            "chown root {0} && chmod 700 {0}, or choose another with ATOLL_DATA_DIR",
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
            Err(host_file_error("create", path, &error))
        }
        _ => Ok(()),
    }
}

fn dismantle(tag: &str, directory: &Path, cgroups: &InstanceCgroup) -> Result<(), Error> {
    cgroups.destroy().map_err(|error| jail(&error))?;
    storage::unmount(directory)?;
    remove_directory(directory)?;
    let entry = registry::path().join(tag);
    match fs::remove_file(&entry) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(host_file_error("remove", &entry, &error))
        }
        _ => Ok(()),
    }
}

/// Removes a directory that may contain a hostile tree.
pub(crate) fn remove_directory(path: &Path) -> Result<(), Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = match File::open(parent) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(host_file_error("open", parent, &error)),
    };
    use std::os::fd::AsFd;
    tree::remove(parent.as_fd(), name).map_err(|error| host_file_error("remove", path, &error))
}

/// Sandboxes in a data directory, by their records. Warm sandboxes are left out: they belong to no
/// caller.
pub fn recorded(data: &Path) -> Vec<SandboxId> {
    let entries = fs::read_dir(data.join("sandboxes")).into_iter().flatten();
    let is_recorded = |entry: &fs::DirEntry| match Record::read(&entry.path()) {
        Ok(record) => record.is_some_and(|record| !record.is_pooled),
        Err(_) => true,
    };
    let recorded = entries.flatten().filter(is_recorded);
    recorded
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Directory of the sandboxes that users kept with `atoll run --keep`.
pub fn kept_directory(data: &Path) -> PathBuf {
    data.join("kept")
}

/// Removes the kept sandboxes; returns their number.
pub fn remove_kept(data: &Path) -> Result<usize, Error> {
    let entries = fs::read_dir(kept_directory(data))
        .into_iter()
        .flatten()
        .flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.iter().try_for_each(|path| remove_directory(path))?;
    Ok(paths.len())
}
