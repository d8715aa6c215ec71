//! Storage backends for the files of sandboxes, and disk space of the host.
//!
//! `plain` uses directories of the data directory's file system and cannot enforce disk limits.
//! `image` uses a file system of our own in a sparse file, with a quota per sandbox. Records and
//! exec output are outside of both, in the instance's directory, so that a sandbox with a full disk
//! can still be stopped and deleted.
//!
//! With both backends, sandboxes leave a [`reserve`] of the disk to the host.

mod image;
mod plain;
pub mod usage;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use atoll_jail::facts::Facts;
use atoll_model::{Bytes, Code, DiskUsage, Error, SandboxId};
use serde::{Deserialize, Serialize};

use crate::error::host_file_error;
use crate::syncer::write_atomic;

/// Storage backend of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Directories of the data directory's file system. Limits are not enforced.
    #[default]
    Plain,
    /// A btrfs file system in one sparse file. Limits are enforced.
    Image,
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Image => "image",
        })
    }
}

impl FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.trim() {
            "plain" => Ok(Self::Plain),
            "image" => Ok(Self::Image),
            other => Err(Error::invalid(
                "storage",
                format!("{other:?} is not a storage backend"),
                "choose plain or image",
            )),
        }
    }
}

/// Storage of an instance's sandboxes.
pub(crate) trait StorageBackend: fmt::Debug + Send + Sync {
    /// Fails if the backend cannot enforce this limit.
    fn check_limit(&self, limit: Bytes) -> Result<(), Error>;

    /// Directory of a sandbox's `upper` and `work`.
    fn directory(&self, id: &SandboxId) -> PathBuf;

    /// Creates that directory for a sandbox whose own directory exists.
    fn create(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error>;

    /// Changes a sandbox's limit.
    fn set_limit(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error>;

    /// Current usage. Does not wait for pending writes.
    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error>;

    /// Removes a sandbox's storage, after the sandbox's own directory. An absent one is no error.
    fn remove(&self, id: &SandboxId) -> Result<(), Error>;

    /// Removes the storage of sandboxes that `known` does not return true for.
    fn sweep(&self, known: &dyn Fn(&SandboxId) -> bool) -> Result<(), Error>;

    /// Whether the kernel enforces the limits.
    fn enforces_limits(&self) -> bool;

    /// Whether the files of a sandbox can be moved with its directory.
    fn can_export(&self) -> bool;

    /// Closes the backend; a mount stays.
    fn close(&self);
}

/// Creates a directory of an overlay with mode 755, the mode of the sandbox's `/`, whatever the
/// umask is.
pub(crate) fn make_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let created = fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    created.map_err(|error| host_file_error("create", path, &error))
}

/// Opens an instance's storage; creates it if it is absent.
pub(crate) fn open(
    storage: Storage,
    directory: &Path,
    facts: &Facts,
) -> Result<Box<dyn StorageBackend>, Error> {
    Ok(match storage {
        Storage::Plain => Box::new(plain::Plain::new(directory)),
        Storage::Image => Box::new(image::Image::open(directory, facts)?),
    })
}

/// Fails if this host does not support the backend.
pub fn check_host(storage: Storage, facts: &Facts) -> Result<(), Error> {
    match (storage, image::missing_requirement(facts)) {
        (Storage::Image, Some((reason, remedy))) => Err(Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide disk limits: {reason}"),
        )
        .remedy(remedy)
        .detail("feature", "disk limits")),
        _ => Ok(()),
    }
}

/// The backend with which a data directory was last opened; `None` if it never was.
pub fn recorded_kind(data: &Path) -> Option<Storage> {
    let text = fs::read_to_string(data.join("storage.kind")).ok()?;
    text.parse().ok()
}

/// Whether a data directory has files of sandboxes. Then its backend cannot change.
pub fn has_sandboxes(data: &Path) -> bool {
    ["sandboxes", "orphaned"]
        .iter()
        .any(|part| fs::read_dir(data.join(part)).is_ok_and(|mut entries| entries.next().is_some()))
}

/// Fails if a data directory with sandboxes has another backend, and records the backend otherwise.
pub(crate) fn check_same_kind(data: &Path, wanted: Storage) -> Result<(), Error> {
    let path = data.join("storage.kind");
    let current = match fs::read_to_string(&path) {
        Ok(text) => Some(text.parse()?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(host_file_error("read", &path, &error)),
    };
    if current == Some(wanted) {
        return Ok(());
    }
    // Before backends were recorded it was the default.
    let current = current.unwrap_or_default();
    if current != wanted && has_sandboxes(data) {
        let message = format!("{} has storage {current}, not {wanted}", data.display());
        return Err(Error::new(Code::Conflict, message)
            .remedy(format!(
                "open it with storage = {current}, or delete its sandboxes first"
            ))
            .detail("storage", current.to_string()));
    }
    write_atomic(&path, format!("{wanted}\n").as_bytes())
}

/// Unmounts the storage of a dead instance.
pub(crate) fn unmount(directory: &Path) -> Result<(), Error> {
    image::unmount(directory)
}

/// Space of a file system of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DiskSpace {
    /// Total size.
    pub size: Bytes,
    /// Free for unprivileged writes.
    pub free: Bytes,
    /// Reserved for the host.
    pub reserve: Bytes,
}

impl DiskSpace {
    /// Space of the file system that contains `path`.
    pub fn for_path(path: &Path) -> Result<Self, Error> {
        let found = rustix::fs::statvfs(path)
            .map_err(|error| host_file_error("examine the disk of", path, &error.into()))?;
        let size = found.f_blocks * found.f_frsize;
        Ok(Self {
            size: Bytes(size),
            free: Bytes(found.f_bavail * found.f_frsize),
            reserve: reserve(Bytes(size)),
        })
    }

    /// Space that sandboxes may still use.
    pub fn available(&self) -> Bytes {
        Bytes(self.free.0.saturating_sub(self.reserve.0))
    }

    /// Fails if only the reserve is left.
    pub(crate) fn require(&self, path: &Path) -> Result<(), Error> {
        // A file system in memory may report size 0.
        if self.available() > Bytes(0) || self.size == Bytes(0) {
            return Ok(());
        }
        Err(Error::new(
            Code::DiskFull,
            format!(
                "only {} is free on the disk of {}, and {} is reserved for the host",
                self.free,
                path.display(),
                self.reserve
            ),
        )
        .remedy("free some space, or run atoll gc; atoll df shows what uses it"))
    }
}

/// Space reserved for the host: 5 %, at least 2 GiB, at most 16 GiB, and never more than a quarter
/// of the disk.
pub fn reserve(size: Bytes) -> Bytes {
    Bytes((size.0 / 20).clamp(2 << 30, 16 << 30).min(size.0 / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_reserve_is_a_clamped_share() {
        let of = |gib: u64| reserve(Bytes(gib << 30)).0 >> 20;
        assert_eq!(of(1), 256);
        assert_eq!(of(8), 2 * 1024);
        assert_eq!(of(100), 5 * 1024);
        assert_eq!(of(10_000), 16 * 1024);
    }

    #[test]
    fn data_directory_keeps_its_storage_backend() {
        let data = tempfile::tempdir().expect("a directory");
        let data = data.path();
        check_same_kind(data, Storage::Image).expect("a new one can have either");
        check_same_kind(data, Storage::Plain).expect("it has no sandboxes");
        fs::create_dir_all(data.join("sandboxes/x")).expect("a sandbox");
        check_same_kind(data, Storage::Plain).expect("unchanged");
        let error = check_same_kind(data, Storage::Image).expect_err("it has the other");
        assert_eq!(error.code, Code::Conflict);
        assert_eq!(error.details["storage"], "plain");
    }
}
