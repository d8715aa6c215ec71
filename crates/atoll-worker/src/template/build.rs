//! A template being built: a `.new-…` directory that either gets its name by one rename or is gone.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, Mode, RenameFlags};
use rustix::io::Errno;

use super::{Error, Meta, OPEN_DIRECTORY, Store, create_lock, exists, failed, flock, random};
use crate::tree;

/// What happens to a template that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is set aside.
    Replace,
    /// It stays, and the build fails.
    Refuse,
}

/// The directory, and the sign that its builder lives. Dropped before it is placed, it is removed.
pub(super) struct Build<'a> {
    store: &'a Store,
    name: String,
    dir: OwnedFd,
    /// Says that the builder lives.
    lock: File,
    placed: bool,
}

impl<'a> Build<'a> {
    /// Makes the directory with its lock held and an empty `layer/`.
    pub(super) fn begin(store: &'a Store) -> Result<Self, Error> {
        let name = format!(".new-{}", random());
        let path = store.path.join(&name);
        // A sweep in between would take the directory for one that nobody builds any more.
        let names = store.lock_names(FlockOperation::LockExclusive)?;
        rustix::fs::mkdirat(&store.dir, &name, Mode::RWXU)
            .map_err(failed("make the directory", &path))?;
        let dir = rustix::fs::openat(&store.dir, &name, OPEN_DIRECTORY, Mode::empty())
            .map_err(failed("open", &path))?;
        let lock = create_lock(&dir, "lock").map_err(failed("make the lock of", &path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(failed("lock", &path))?;
        drop(names);
        let build = Self {
            store,
            name,
            dir,
            lock,
            placed: false,
        };
        rustix::fs::mkdirat(&build.dir, "layer", Mode::RWXU)
            .map_err(failed("make a layer in", &path))?;
        rustix::fs::fchmod(build.layer()?, Mode::from(0o755))
            .map_err(failed("set the mode of the layer in", path))?;
        Ok(build)
    }

    /// The layer's directory.
    pub(super) fn layer(&self) -> Result<OwnedFd, Error> {
        rustix::fs::openat(&self.dir, "layer", OPEN_DIRECTORY, Mode::empty())
            .map_err(failed("open", self.path().join("layer")))
    }

    /// Describes the template and gives it its name, in place of what had it.
    pub(super) fn place(mut self, name: &str, meta: &Meta, taken: Taken) -> Result<(), Error> {
        meta.write(&self.dir, &self.path())?;
        let target = self.store.path.join(name);
        let names = self.store.lock_names(FlockOperation::LockExclusive)?;
        flock(&self.lock, FlockOperation::Unlock).map_err(failed("unlock", self.path()))?;
        let dir = &self.store.dir;
        if !exists(dir, name) {
            rustix::fs::renameat(dir, &self.name, dir, name)
                .map_err(failed("put in place", target))?;
            self.placed = true;
            return Ok(());
        }
        if taken == Taken::Refuse {
            return Err(Error::Exists {
                name: name.to_owned(),
            });
        }
        let old = match rustix::fs::renameat_with(dir, &self.name, dir, name, RenameFlags::EXCHANGE)
        {
            // From here on the old template has this build's name, which a sweep treats the same way.
            Ok(()) => self
                .store
                .set_aside(&self.name)
                .unwrap_or_else(|_| self.name.clone()),
            Err(Errno::INVAL | Errno::NOSYS) => {
                let old = self.store.set_aside(name)?;
                if let Err(error) = rustix::fs::renameat(dir, &self.name, dir, name) {
                    let _ = rustix::fs::renameat(dir, &old, dir, name);
                    return Err(failed("put in place", target)(error));
                }
                old
            }
            Err(error) => return Err(failed("put in place", target)(error)),
        };
        self.placed = true;
        // The new template is in place, which is what was asked for: what is in use, and what fails, is left to a sweep.
        let free = self
            .store
            .users()
            .and_then(|users| self.store.free(&old, &users));
        drop(names);
        if let Ok(Some(_lock)) = free {
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
        if !self.placed {
            // What cannot be removed now is removed by a sweep: its lock is free once this value is gone.
            let _ = tree::remove(self.store.dir.as_fd(), self.name.as_ref());
        }
    }
}
