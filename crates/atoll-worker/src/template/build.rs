//! A template being built: a `.new-…` directory that gets its name by one rename or is removed.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, Mode, RenameFlags};
use rustix::io::Errno;

use super::{
    Error, OPEN_DIRECTORY, TemplateInfo, TemplateStore, create_lock, exists, failed, flock, meta,
    random_hex,
};
use crate::tree;

/// What to do if a template of the name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfExists {
    /// Rename the existing one out of the way.
    Replace,
    /// Fail, and keep the existing one.
    Fail,
}

/// The directory of a build. It is removed unless it was published.
pub(super) struct Build<'a> {
    store: &'a TemplateStore,
    name: String,
    dir: OwnedFd,
    /// Locked while the builder lives.
    lock: File,
    published: bool,
}

impl<'a> Build<'a> {
    /// Creates the directory with its lock held and an empty `layer/`.
    pub(super) fn begin(store: &'a TemplateStore) -> Result<Self, Error> {
        let name = format!(".new-{}", random_hex());
        let path = store.path.join(&name);
        // Under `.lock`, so that a sweep does not find the directory before its lock is held.
        let names = store.lock_names(FlockOperation::LockExclusive)?;
        rustix::fs::mkdirat(&store.dir, &name, Mode::RWXU)
            .map_err(failed("create the directory", &path))?;
        let dir = rustix::fs::openat(&store.dir, &name, OPEN_DIRECTORY, Mode::empty())
            .map_err(failed("open", &path))?;
        let lock = create_lock(&dir, "lock").map_err(failed("create the lock of", &path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(failed("lock", &path))?;
        drop(names);
        let build = Self {
            store,
            name,
            dir,
            lock,
            published: false,
        };
        rustix::fs::mkdirat(&build.dir, "layer", Mode::RWXU)
            .map_err(failed("create a layer in", &path))?;
        rustix::fs::fchmod(build.layer()?, Mode::from(0o755))
            .map_err(failed("set the mode of the layer in", path))?;
        Ok(build)
    }

    /// The layer's directory.
    pub(super) fn layer(&self) -> Result<OwnedFd, Error> {
        rustix::fs::openat(&self.dir, "layer", OPEN_DIRECTORY, Mode::empty())
            .map_err(failed("open", self.path().join("layer")))
    }

    /// Writes the description and gives the template its name.
    pub(super) fn publish(
        mut self,
        name: &str,
        info: &TemplateInfo,
        if_exists: IfExists,
    ) -> Result<(), Error> {
        meta::write_info(info, &self.dir, &self.path())?;
        let target = self.store.path.join(name);
        let names = self.store.lock_names(FlockOperation::LockExclusive)?;
        flock(&self.lock, FlockOperation::Unlock).map_err(failed("unlock", self.path()))?;
        let dir = &self.store.dir;
        if !exists(dir, name) {
            rustix::fs::renameat(dir, &self.name, dir, name)
                .map_err(failed("put in place", target))?;
            self.published = true;
            return Ok(());
        }
        if if_exists == IfExists::Fail {
            return Err(Error::Exists {
                name: name.to_owned(),
            });
        }
        let old = match rustix::fs::renameat_with(dir, &self.name, dir, name, RenameFlags::EXCHANGE)
        {
            // The exchange gave the old template this build's name; a sweep removes it under that
            // name too.
            Ok(()) => self
                .store
                .rename_to_old(&self.name)
                .unwrap_or_else(|_| self.name.clone()),
            Err(Errno::INVAL | Errno::NOSYS) => {
                let old = self.store.rename_to_old(name)?;
                if let Err(error) = rustix::fs::renameat(dir, &self.name, dir, name) {
                    let _ = rustix::fs::renameat(dir, &old, dir, name);
                    return Err(failed("put in place", target)(error));
                }
                old
            }
            Err(error) => return Err(failed("put in place", target)(error)),
        };
        self.published = true;
        // The new template is in place. If the old one is in use, or a step fails, a sweep removes
        // it later.
        let unused = self
            .store
            .references()
            .and_then(|references| self.store.try_lock_unreferenced(&old, &references));
        drop(names);
        if let Ok(Some(_lock)) = unused {
            let _ = tree::remove(dir.as_fd(), old.as_ref());
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.store.path.join(&self.name)
    }
}

impl Drop for Build<'_> {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed now is removed by a sweep, because its lock is released with
            // this value.
            let _ = tree::remove(self.store.dir.as_fd(), self.name.as_ref());
        }
    }
}
