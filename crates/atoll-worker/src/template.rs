//! Templates: the sealed file trees that sandboxes start from, one directory each under `templates/`.
//!
//! ```text
//! templates/.lock            held for the length of a rename or of taking a lease, never longer
//! templates/.lock-base       held by whoever builds `base`; others wait for the result
//! templates/NAME/            lock  template.json  layer/
//! templates/.new-XXXX/       the same, being built; its builder holds `lock` exclusively
//! templates/.old-XXXX/       the same, replaced or removed, waiting until no sandbox needs it
//! templates/.data-XXXX       names a data directory elsewhere whose sandboxes are made from these
//! ```
//!
//! Invariant: a layer never changes after it got its name, and is deleted only by someone who holds its `lock` exclusively
//! and finds no record of a sandbox that names it. A server holds that lock shared (its lease) for each running sandbox; a
//! record counts for those that stand still, and for those whose server is gone. So replacing a template under a sandbox is safe.
//! Names change by rename under `.lock`, so a template is either complete or absent, whenever a process dies.
//!
//! It does not mount anything, and knows of sandboxes only what their records say of layers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::tree;

mod accounts;
mod archive;
mod base;
mod build;
mod copy;
mod error;
mod import;
mod inside;
mod lease;
mod meta;
mod meter;
mod stream;
#[cfg(test)]
mod tests;
mod users;

use build::{Build, Taken};
pub use error::Error;
use error::failed;
use import::Input;
pub use meta::{Meta, Options, Source, User};
use meter::Meter;
pub use meter::{Progress, Report, Stage};
pub use stream::{Sender, Stream, stream};

/// The template that is made from the host's own system.
pub const BASE: &str = "base";

/// A sandbox knows this many ids; every id in a layer is below it.
const IDS: u32 = 65_536;

/// `nobody`: the owner of what belongs to an id that a sandbox does not have.
const NOBODY: u32 = 65_534;

/// A template, leased: its layer stays as it is until this value is dropped.
#[derive(Debug)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// The directory that becomes the lowest layer. The path is that of the moment: after a replacement it leads to the new
    /// layer, so whoever mounts uses `root`.
    pub layer: PathBuf,
    /// What is known of it.
    pub meta: Meta,
    /// The layer by descriptor (`O_PATH`).
    pub root: OwnedFd,
    /// Keep this open as long as the layer is mounted. It is closed on exec.
    pub lease: File,
}

impl Template {
    /// Another template has its name by now, or none.
    pub fn is_replaced(&self) -> bool {
        let identity = |found: rustix::io::Result<rustix::fs::Stat>| {
            found.ok().map(|found| (found.st_dev, found.st_ino))
        };
        identity(rustix::fs::fstat(&self.root)) != identity(rustix::fs::stat(&self.layer))
    }
}

/// The templates of one instance.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    dir: OwnedFd,
    host: PathBuf,
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Store {
    /// Opens the store in the directory `path`, which is made if it is absent.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        // Only root may walk in: layers hold setuid files that must not be reachable on the host.
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make the directory", path)(error)),
        }
        let dir = rustix::fs::open(&path, OPEN_DIRECTORY, Mode::empty())
            .map_err(failed("open", &path))?;
        Ok(Self {
            path,
            dir,
            host: "/".into(),
        })
    }

    /// Makes `base` from the system under `root` instead of `/`.
    #[must_use]
    pub fn with_host_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.host = root.into();
        self
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all templates, in order.
    pub fn list(&self) -> Result<Vec<String>, Error> {
        let mut names: Vec<_> = self
            .entries()?
            .into_iter()
            .filter(|name| check_name(name).is_ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Makes the template `name` from `source`. When it fails, nothing of it is left.
    pub fn add(
        &self,
        name: &str,
        source: &Source,
        options: &Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, Error> {
        self.add_with(name, options, progress, |layer, meter| match source {
            Source::Directory(path) => {
                import::directory(path, layer, self.id()?, meter)?;
                Ok(format!("directory {}", path.display()))
            }
            Source::Archive(path) => {
                import::archive(Input::File(path), layer, meter)?;
                Ok(format!("archive {}", path.display()))
            }
        })
    }

    /// Makes the template `name` from a tar archive (plain, gzip or zstd) that comes from elsewhere. When it fails, also
    /// because the stream fails before its end, nothing of it is left.
    pub fn add_stream(
        &self,
        name: &str,
        stream: impl Read + 'static,
        options: &Options,
    ) -> Result<Report, Error> {
        self.add_with(name, options, &mut |_| {}, |layer, meter| {
            import::archive(Input::Stream(Box::new(stream)), layer, meter)?;
            Ok("uploaded archive".to_owned())
        })
    }

    /// Makes a template by filling its layer; what fills it says what it came from.
    fn add_with(
        &self,
        name: &str,
        options: &Options,
        progress: &mut dyn FnMut(Progress),
        fill: impl FnOnce(&OwnedFd, &mut Meter<'_>) -> Result<String, Error>,
    ) -> Result<Report, Error> {
        check_name(name)?;
        if name == BASE {
            return Err(Error::Reserved);
        }
        options.user.check()?;
        if !options.replace && self.list()?.iter().any(|known| known == name) {
            return Err(Error::Exists {
                name: name.to_owned(),
            });
        }
        let build = Build::begin(self)?;
        let mut meter = Meter::limited(options.max_bytes, progress);
        let described = fill(&build.layer()?, &mut meter)?;
        import::settle(&build.layer()?, &options.user)?;
        let report = meter.finish();
        let meta = Meta {
            user: options.user.clone(),
            env: options.env.clone(),
            sudo: options.sudo,
            nested_user_namespaces: options.nested_user_namespaces,
            ..Meta::new(described, report)
        };
        let taken = if options.replace {
            Taken::Replace
        } else {
            Taken::Refuse
        };
        build.place(name, &meta, taken)?;
        Ok(report)
    }

    /// Makes `base` from the host's system, anew if there is one already.
    pub fn rebuild_base(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
        let _building = self.lock_base(progress)?;
        self.build_base(progress)
    }

    /// The template `base`, made from the host's system if there is none yet.
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

    /// Removes the template `name`, which no sandbox may need, running or not.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let path = self.path.join(name);
        let names = self.lock_names(FlockOperation::LockExclusive)?;
        let dir = self.open_tree(name)?;
        let users = self.users()?;
        // A damaged one can be removed too.
        let id = Meta::read(&dir, name, &path).ok().and_then(|meta| meta.id);
        let sandboxes = users.of(name, id.as_deref());
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
        let old = self.set_aside(name)?;
        drop(names);
        tree::remove(self.dir.as_fd(), old.as_ref()).map_err(failed("remove", self.path.join(&old)))
    }

    /// Removes what killed builds, and replaced templates whose last sandbox is gone, left behind. Answers how many trees it
    /// removed. What is still in use stays for the next time.
    pub fn sweep(&self) -> Result<usize, Error> {
        let names = self.lock_names(FlockOperation::LockExclusive)?;
        let users = self.users()?;
        self.forget_data()?;
        let mut free = Vec::new();
        for name in self.aside()? {
            if let Some(lock) = self.free(&name, &users)? {
                free.push((name, lock));
            }
        }
        drop(names);
        for (name, _lock) in &free {
            tree::remove(self.dir.as_fd(), name.as_ref())
                .map_err(failed("remove", self.path.join(name)))?;
        }
        Ok(free.len())
    }

    fn build_base(&self, progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
        let build = Build::begin(self)?;
        let mut meter = Meter::unlimited(progress);
        base::build(&self.host, &build.layer()?, self.id()?, &mut meter)?;
        let report = meter.finish();
        let meta = Meta {
            env: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
            ..Meta::new("host system".to_owned(), report)
        };
        build.place(BASE, &meta, Taken::Replace)?;
        Ok(report)
    }

    /// Renames a template out of the way. The caller holds `.lock` exclusively.
    fn set_aside(&self, name: &str) -> Result<String, Error> {
        let old = format!(".old-{}", random());
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

    /// The store's own directory, which no copy may walk into.
    fn id(&self) -> Result<(u64, u64), Error> {
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

/// Refuses what is not a template name.
fn check_name(name: &str) -> Result<(), Error> {
    let begins =
        name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    let fits = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    if begins && name.len() <= 63 && name.bytes().all(fits) {
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

/// Takes a tree's lock exclusively, unless someone has it.
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

/// Sixteen hexadecimal digits that no other process comes up with.
fn random() -> String {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{:016x}", hasher.finish())
}

/// Whether `name` in `dir` is there, whatever it is.
fn exists(dir: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
