//! Templates: sealed file trees that sandboxes start from, one directory each below `templates/`.
//!
//! ```text
//! templates/.lock            held for the length of a rename or of taking a lease, never longer
//! templates/.lock-base       held while `base` is built; other processes wait for the result
//! templates/NAME/            lock  template.json  layer/
//! templates/.new-XXXX/       the same, being built; the builder holds `lock` exclusively
//! templates/.old-XXXX/       the same, replaced or removed, until no sandbox uses it
//! templates/.data-XXXX       path of another data directory whose sandboxes use these templates
//! ```
//!
//! Invariant: a layer never changes after its template got its name. It is deleted only by a
//! process that holds its `lock` exclusively and finds no sandbox record that names it. A server
//! holds that lock shared (its lease) for each running sandbox; records cover stopped sandboxes and
//! those whose server has ended. So a template can be replaced while sandboxes use it. Names change
//! by rename under `.lock`, so a template is either complete or absent, whenever a process dies.
//!
//! It mounts nothing, and reads of sandboxes only which layer their record names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use atoll_model::runtime::DEFAULT_TEMPLATE;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::tree;

mod accounts;
mod archive;
mod archive_channel;
mod base;
mod build;
mod build_limits;
mod copy;
mod error;
mod import;
mod layer_path;
mod lease;
mod meta;
mod references;
#[cfg(test)]
mod tests;

pub use archive_channel::{ArchiveReader, ArchiveSender, archive_channel};
pub use atoll_model::runtime::{TemplateInfo, TemplateOptions, TemplateUser};
use build::{Build, IfExists};
use build_limits::BuildMeter;
pub use build_limits::{Progress, Report, Stage};
pub use error::Error;
use error::failed;
use import::ArchiveSource;
pub use meta::Source;

/// Name of the template that is built from the host's own system.
pub const BASE: &str = DEFAULT_TEMPLATE;

/// Number of ids in a sandbox; every id in a layer is below it.
const ID_COUNT: u32 = 65_536;

/// `nobody`: the owner of files whose owner has an id that a sandbox does not have.
const NOBODY: u32 = 65_534;

/// A leased template: its layer does not change until this value is dropped.
#[derive(Debug)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// Path of the layer, which becomes the lowest layer of the overlay. After a replacement it
    /// names the new layer, so mounts use `root`.
    pub layer: PathBuf,
    /// Its description.
    pub meta: TemplateInfo,
    /// Descriptor of the layer (`O_PATH`).
    pub root: OwnedFd,
    /// The lease: a shared lock, released when it is closed.
    pub lease: File,
}

impl Template {
    /// Whether another template has its name, or none.
    pub fn is_replaced(&self) -> bool {
        let identity = |found: rustix::io::Result<rustix::fs::Stat>| {
            found.ok().map(|found| (found.st_dev, found.st_ino))
        };
        identity(rustix::fs::fstat(&self.root)) != identity(rustix::fs::stat(&self.layer))
    }
}

/// The templates of one directory.
#[derive(Debug)]
pub struct TemplateStore {
    path: PathBuf,
    dir: OwnedFd,
    host: PathBuf,
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl TemplateStore {
    /// Opens the store in the directory `path`, which is created if it is absent.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        // Mode 700: layers contain setuid files that other users of the host must not reach.
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("create the directory", path)(error)),
        }
        let dir = rustix::fs::open(&path, OPEN_DIRECTORY, Mode::empty())
            .map_err(failed("open", &path))?;
        Ok(Self {
            path,
            dir,
            host: "/".into(),
        })
    }

    /// Builds `base` from the system under `root` instead of `/`.
    #[must_use]
    pub fn with_host_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.host = root.into();
        self
    }

    /// Directory of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all templates, sorted.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        let mut names: Vec<_> = self
            .entries()?
            .into_iter()
            .filter(|name| check_name(name).is_ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Creates the template `name` from `source`. If it fails, nothing is left.
    pub fn add(
        &self,
        name: &str,
        source: &Source,
        options: &TemplateOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, Error> {
        self.add_with(name, options, progress, |layer, meter| match source {
            Source::Directory(path) => {
                import::directory(path, layer, self.directory_id()?, meter)?;
                Ok(format!("directory {}", path.display()))
            }
            Source::Archive(path) => {
                import::archive(ArchiveSource::File(path), layer, meter)?;
                Ok(format!("archive {}", path.display()))
            }
        })
    }

    /// Creates the template `name` from a tar archive (plain, gzip or zstd). If it fails, also
    /// because the stream ends too early, nothing is left.
    pub fn add_stream(
        &self,
        name: &str,
        stream: impl Read + 'static,
        options: &TemplateOptions,
    ) -> Result<Report, Error> {
        self.add_with(name, options, &mut |_| {}, |layer, meter| {
            import::archive(ArchiveSource::Stream(Box::new(stream)), layer, meter)?;
            Ok("uploaded archive".to_owned())
        })
    }

    /// Creates a template whose layer is filled by `fill`, which returns a description of the
    /// source.
    fn add_with(
        &self,
        name: &str,
        options: &TemplateOptions,
        progress: &mut dyn FnMut(Progress),
        fill: impl FnOnce(&OwnedFd, &mut BuildMeter<'_>) -> Result<String, Error>,
    ) -> Result<Report, Error> {
        check_name(name)?;
        if name == BASE {
            return Err(Error::Reserved);
        }
        meta::check_user(&options.user)?;
        if !options.replace && self.list()?.iter().any(|known| known == name) {
            return Err(Error::Exists {
                name: name.to_owned(),
            });
        }
        let build = Build::begin(self)?;
        let mut meter = BuildMeter::limited(options.max_bytes, progress);
        let description = fill(&build.layer()?, &mut meter)?;
        import::complete(&build.layer()?, &options.user)?;
        let report = meter.finish();
        let meta = TemplateInfo {
            user: options.user.clone(),
            env: options.env.clone(),
            sudo: options.sudo,
            nested_user_namespaces: options.nested_user_namespaces,
            ..meta::new_info(description, report)
        };
        let if_exists = if options.replace {
            IfExists::Replace
        } else {
            IfExists::Fail
        };
        build.publish(name, &meta, if_exists)?;
        Ok(report)
    }

    /// Builds `base` from the host's system, and replaces an existing one.
    pub fn rebuild_base(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
        let _building = self.lock_base(progress)?;
        self.build_base(progress)
    }

    /// Leases `base`, which is built from the host's system if it is absent.
    pub fn ensure_base(&self, progress: &mut dyn FnMut(Progress)) -> Result<Template, Error> {
        match self.get(BASE) {
            Err(Error::Unknown { .. }) => {}
            found => return found,
        }
        let _building = self.lock_base(progress)?;
        match self.get(BASE) {
            Err(Error::Unknown { .. }) => {}
            found => return found,
        }
        self.build_base(progress)?;
        self.get(BASE)
    }

    /// Removes the template `name`. Fails if a sandbox uses it, running or not.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let path = self.path.join(name);
        let names = self.lock_names(FlockOperation::LockExclusive)?;
        let dir = self.open_tree(name)?;
        let references = self.references()?;
        // A corrupt one can be removed too.
        let id = meta::read_info(&dir, name, &path)
            .ok()
            .and_then(|meta| meta.id);
        let sandboxes = references.sandboxes_of(name, id.as_deref());
        let in_use = |sandboxes| Error::InUse {
            name: name.to_owned(),
            sandboxes,
        };
        if !sandboxes.is_empty() {
            return Err(in_use(sandboxes));
        }
        let Some(_lock) = try_lock(&dir, &path)? else {
            return Err(in_use(sandboxes));
        };
        let old = self.rename_to_old(name)?;
        drop(names);
        tree::remove(self.dir.as_fd(), old.as_ref()).map_err(failed("remove", self.path.join(&old)))
    }

    /// Removes unfinished builds and replaced templates that no sandbox uses any more. Returns the
    /// number of removed trees.
    pub fn sweep(&self) -> Result<usize, Error> {
        let names = self.lock_names(FlockOperation::LockExclusive)?;
        let references = self.references()?;
        self.unregister_missing_data_dirs()?;
        let mut unused = Vec::new();
        for name in self.unnamed_trees()? {
            if let Some(lock) = self.try_lock_unreferenced(&name, &references)? {
                unused.push((name, lock));
            }
        }
        drop(names);
        for (name, _lock) in &unused {
            tree::remove(self.dir.as_fd(), name.as_ref())
                .map_err(failed("remove", self.path.join(name)))?;
        }
        Ok(unused.len())
    }

    fn build_base(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
        let build = Build::begin(self)?;
        let mut meter = BuildMeter::unlimited(progress);
        base::build(
            &self.host,
            &build.layer()?,
            self.directory_id()?,
            &mut meter,
        )?;
        let report = meter.finish();
        let meta = TemplateInfo {
            env: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
            ..meta::new_info("host system".to_owned(), report)
        };
        build.publish(BASE, &meta, IfExists::Replace)?;
        Ok(report)
    }

    /// Renames a template to `.old-…`. The caller holds `.lock` exclusively.
    fn rename_to_old(&self, name: &str) -> Result<String, Error> {
        let old = format!(".old-{}", random_hex());
        rustix::fs::renameat(&self.dir, name, &self.dir, &old)
            .map_err(failed("rename", self.path.join(name)))?;
        Ok(old)
    }

    fn entries(&self) -> Result<Vec<String>, Error> {
        let step = || failed("list", &self.path);
        let entries = rustix::fs::Dir::read_from(&self.dir).map_err(|error| step()(error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| step()(error))?;
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Device and inode of the store's directory, which a copy must skip.
    fn directory_id(&self) -> Result<(u64, u64), Error> {
        let stat = rustix::fs::fstat(&self.dir).map_err(failed("examine", &self.path))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    fn lock_names(&self, operation: FlockOperation) -> Result<File, Error> {
        let file = self.lock_file(".lock")?;
        flock(&file, operation).map_err(failed("lock", self.path.join(".lock")))?;
        Ok(file)
    }

    fn lock_base(&self, progress: &mut dyn FnMut(Progress)) -> Result<File, Error> {
        let file = self.lock_file(".lock-base")?;
        let step = || failed("lock", self.path.join(".lock-base"));
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                progress(Progress {
                    stage: Stage::Waiting,
                    files: 0,
                    bytes: 0,
                    total_files: None,
                });
                flock(&file, FlockOperation::LockExclusive).map_err(|error| step()(error))?;
            }
            answer => answer.map_err(|error| step()(error))?,
        }
        Ok(file)
    }

    fn lock_file(&self, name: &str) -> Result<File, Error> {
        create_lock(&self.dir, name).map_err(failed("open", self.path.join(name)))
    }
}

/// Checks the form of a template name.
fn check_name(name: &str) -> Result<(), Error> {
    let starts_well =
        name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    let is_allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    if starts_well && name.len() <= 63 && name.bytes().all(is_allowed) {
        Ok(())
    } else {
        Err(Error::Name(name.to_owned()))
    }
}

fn create_lock(dir: &OwnedFd, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn open_lock(dir: &OwnedFd, path: &Path) -> Result<File, Error> {
    create_lock(dir, "lock").map_err(failed("open the lock of", path))
}

/// Locks a tree exclusively; `None` if another process holds its lock.
fn try_lock(dir: &OwnedFd, path: &Path) -> Result<Option<File>, Error> {
    let lock = open_lock(dir, path)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(failed("lock", path)(error)),
    }
}

fn flock(file: &File, operation: FlockOperation) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation))
}

/// Sixteen random hexadecimal digits.
fn random_hex() -> String {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{:016x}", hasher.finish())
}

/// Whether an entry `name` of any kind exists in `dir`.
fn exists(dir: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
