//! What sandboxes' files are on, and how much of it they may take.
//!
//! Two ways: `plain` directories below the data directory, whose limits are what is expected of a
//! sandbox, and an `image` of a file system of our own, whose limits are kept. Records and the output
//! of commands are beside either, in the instance's own directories: a sandbox that is full can still be
//! written down, and deleted.
//!
//! Whichever it is, a [`reserve`] of the host's disk is nobody's.

mod image;
mod plain;
pub mod survey;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use atoll_jail::facts::Facts;
use atoll_model::{Bytes, Code, DiskUsage, Error, SandboxId};
use serde::{Deserialize, Serialize};

use crate::error::host_file_error;
use crate::syncer::write_atomic;

/// What sandboxes' files are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Directories of the data directory's file system. Limits are not kept.
    #[default]
    Plain,
    /// One sparse file with a btrfs in it. Limits are kept.
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
                format!("{other:?} is not a storage"),
                "choose plain or image",
            )),
        }
    }
}

/// The seam: everything that differs between the two.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Refuses a limit that it would not keep.
    fn check(&self, limit: Bytes) -> Result<(), Error>;

    /// Where a sandbox's `upper` and `work` are.
    fn place(&self, id: &SandboxId) -> PathBuf;

    /// Makes that place for a sandbox whose directory is there.
    fn make(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error>;

    /// Gives it another limit.
    fn limit(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error>;

    /// What it takes now. Never waits for the disk to be quiet.
    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error>;

    /// Takes it away; the sandbox's directory has gone before. One that is not there is fine.
    fn remove(&self, id: &SandboxId) -> Result<(), Error>;

    /// Takes away what belongs to sandboxes that are not there any more.
    fn sweep(&self, known: &dyn Fn(&SandboxId) -> bool) -> Result<(), Error>;

    /// What a sandbox left can be moved elsewhere with its directory.
    fn can_keep(&self) -> bool;

    /// Has nothing to do with it from here on; what is mounted stays.
    fn close(&self);
}

/// Makes a directory of an overlay. Its mode is that of the sandbox's `/`, whatever our umask is.
pub(crate) fn make_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let made = fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)));
    made.map_err(|error| host_file_error("create", path, &error))
}

/// Opens what an instance's sandboxes are on, making it if there is none.
pub(crate) fn open(
    storage: Storage,
    directory: &Path,
    facts: &Facts,
) -> Result<Box<dyn Disk>, Error> {
    Ok(match storage {
        Storage::Plain => Box::new(plain::Plain::new(directory)),
        Storage::Image => Box::new(image::Image::open(directory, facts)?),
    })
}

/// Refuses a host that cannot have such a storage.
pub fn require(storage: Storage, facts: &Facts) -> Result<(), Error> {
    match (storage, image::missing(facts)) {
        (Storage::Image, Some((why, remedy))) => Err(Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide disk limits: {why}"),
        )
        .remedy(remedy)
        .detail("feature", "disk limits")),
        _ => Ok(()),
    }
}

/// What a data directory was opened with last, if ever.
pub fn kind(data: &Path) -> Option<Storage> {
    let text = fs::read_to_string(data.join("storage.kind")).ok()?;
    text.parse().ok()
}

/// What a data directory has, which stays as it is as long as there are sandboxes.
pub(crate) fn check_same_kind(data: &Path, wanted: Storage) -> Result<(), Error> {
    let path = data.join("storage.kind");
    let had = match fs::read_to_string(&path) {
        Ok(text) => Some(text.parse()?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(host_file_error("read", &path, &error)),
    };
    if had == Some(wanted) {
        return Ok(());
    }
    // From before there was a choice.
    let had = had.unwrap_or_default();
    let inhabited = ["sandboxes", "orphaned"].iter().any(|part| {
        fs::read_dir(data.join(part)).is_ok_and(|mut entries| entries.next().is_some())
    });
    if had != wanted && inhabited {
        let message = format!("{} has storage {had}, not {wanted}", data.display());
        return Err(Error::new(Code::Conflict, message)
            .remedy(format!(
                "open it with storage = {had}, or delete its sandboxes first"
            ))
            .detail("storage", had.to_string()));
    }
    write_atomic(&path, format!("{wanted}\n").as_bytes())
}

/// Takes what is mounted for a dead instance away.
pub(crate) fn dismantle(directory: &Path) -> Result<(), Error> {
    image::dismantle(directory)
}

/// A file system of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Space {
    /// All of it.
    pub size: Bytes,
    /// What may be written.
    pub free: Bytes,
    /// What sandboxes leave to the host.
    pub reserve: Bytes,
}

impl Space {
    /// That of a path.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let found = rustix::fs::statvfs(path)
            .map_err(|error| host_file_error("examine the disk of", path, &error.into()))?;
        let size = found.f_blocks * found.f_frsize;
        Ok(Self {
            size: Bytes(size),
            free: Bytes(found.f_bavail * found.f_frsize),
            reserve: reserve(Bytes(size)),
        })
    }

    /// What sandboxes may still take.
    pub fn left(&self) -> Bytes {
        Bytes(self.free.0.saturating_sub(self.reserve.0))
    }

    /// Refuses to make something new where only the reserve is left.
    pub(crate) fn require(&self, path: &Path) -> Result<(), Error> {
        // A file system in memory may not know its size.
        if self.left() > Bytes(0) || self.size == Bytes(0) {
            return Ok(());
        }
        Err(Error::new(
            Code::DiskFull,
            format!(
                "{} are left on the disk of {}, which are the host's reserve ({})",
                self.free,
                path.display(),
                self.reserve
            ),
        )
        .remedy("free some space, or run atoll gc; atoll df shows what takes it"))
    }
}

/// The part of a disk that is the host's: 5 %, at least 2 GiB, at most 16 GiB, and never more than a
/// quarter of a small one.
pub fn reserve(size: Bytes) -> Bytes {
    Bytes((size.0 / 20).clamp(2 << 30, 16 << 30).min(size.0 / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_a_part_of_the_disk() {
        let of = |gib: u64| reserve(Bytes(gib << 30)).0 >> 20;
        assert_eq!(of(1), 256);
        assert_eq!(of(8), 2 * 1024);
        assert_eq!(of(100), 5 * 1024);
        assert_eq!(of(10_000), 16 * 1024);
    }

    #[test]
    fn a_data_directory_remembers_what_it_has() {
        let data = tempfile::tempdir().expect("a directory");
        let data = data.path();
        check_same_kind(data, Storage::Image).expect("a new one may have either");
        check_same_kind(data, Storage::Plain).expect("nobody lives there");
        fs::create_dir_all(data.join("sandboxes/x")).expect("a sandbox");
        check_same_kind(data, Storage::Plain).expect("as it was");
        let error = check_same_kind(data, Storage::Image).expect_err("it has the other");
        assert_eq!(error.code, Code::Conflict);
        assert_eq!(error.details["storage"], "plain");
    }
}
