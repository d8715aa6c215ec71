//! Who holds a layer: by the template's name for a new sandbox, by the layer's own id for one that was made before.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::users::Users;
use super::{
    Error, Meta, OPEN_DIRECTORY, Store, Template, check_name, failed, flock, open_lock, random,
    try_lock,
};

impl Store {
    /// The template `name`, leased.
    pub fn get(&self, name: &str) -> Result<Template, Error> {
        check_name(name)?;
        let names = self.lock_names(FlockOperation::LockShared)?;
        let mut template = self.lease(name, name)?;
        drop(names);
        if template.meta.id.is_none() {
            // Without one it is found by its name as before.
            template.meta.id = self.identify(name, &template).ok();
        }
        Ok(template)
    }

    /// The very layer that a sandbox was made from, leased, whatever has its name by now. Sandboxes from before layers had
    /// ids have what has the name.
    pub fn get_layer(&self, name: &str, id: Option<&str>) -> Result<Template, Error> {
        let Some(id) = id else {
            return self.get(name);
        };
        check_name(name)?;
        let _names = self.lock_names(FlockOperation::LockShared)?;
        let is_it = |meta: &Meta| meta.id.as_deref() == Some(id);
        match self.lease(name, name) {
            Ok(template) if is_it(&template.meta) => return Ok(template),
            // Its description may be whole where the new one's is not.
            Ok(_) | Err(Error::Unknown { .. } | Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        for tree in self.aside()? {
            let path = self.path.join(&tree);
            let meta = self
                .open_tree(&tree)
                .and_then(|dir| Meta::read(&dir, name, &path));
            if meta.is_ok_and(|meta| is_it(&meta)) {
                return self.lease(name, &tree);
            }
        }
        Err(Error::Gone {
            name: name.to_owned(),
        })
    }

    /// What is in `tree`, leased as the template `name`. The caller holds `.lock`.
    fn lease(&self, name: &str, tree: &str) -> Result<Template, Error> {
        let path = self.path.join(tree);
        let dir = self.open_tree(tree)?;
        let lease = open_lock(&dir, &path)?;
        flock(&lease, FlockOperation::LockShared).map_err(failed("lease", &path))?;
        let meta = Meta::read(&dir, name, &path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&dir, "layer", flags, Mode::empty())
            .map_err(failed("open", path.join("layer")))?;
        Ok(Template {
            name: name.to_owned(),
            layer: self.path.join(name).join("layer"),
            meta,
            root,
            lease,
        })
    }

    /// Gives the layer of a template from before there were ids one.
    fn identify(&self, name: &str, template: &Template) -> Result<String, Error> {
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        let path = self.path.join(name);
        let dir = self.open_tree(name)?;
        let mut meta = Meta::read(&dir, name, &path)?;
        if template.is_replaced() {
            return Err(Error::Gone {
                name: name.to_owned(),
            });
        }
        let id = meta.id.get_or_insert_with(random).clone();
        meta.write(&dir, &path)?;
        Ok(id)
    }

    pub(super) fn open_tree(&self, name: &str) -> Result<OwnedFd, Error> {
        match rustix::fs::openat(&self.dir, name, OPEN_DIRECTORY, Mode::empty()) {
            Ok(dir) => Ok(dir),
            Err(Errno::NOENT) => Err(Error::Unknown {
                name: name.to_owned(),
                known: self.list()?,
            }),
            Err(error) => Err(failed("open", self.path.join(name))(error)),
        }
    }

    /// Trees without a name: replaced templates, and what is built or was.
    pub(super) fn aside(&self) -> Result<Vec<String>, Error> {
        let aside = |name: &String| name.starts_with(".new-") || name.starts_with(".old-");
        Ok(self.entries()?.into_iter().filter(aside).collect())
    }

    /// The lock of a tree without a name that nobody needs. The caller holds `.lock` exclusively.
    pub(super) fn free(&self, tree: &str, users: &Users) -> Result<Option<File>, Error> {
        let path = self.path.join(tree);
        let dir = match self.open_tree(tree) {
            Err(Error::Unknown { .. }) => return Ok(None),
            opened => opened?,
        };
        let Some(lock) = try_lock(&dir, &path)? else {
            return Ok(None);
        };
        // One that was not finished has no description, and nobody.
        let needed = Meta::read(&dir, tree, &path).is_ok_and(|meta| users.need(meta.id.as_deref()));
        Ok((!needed).then_some(lock))
    }

    /// Replaced layers that are there only for sandboxes made from them: the template's name and how many.
    pub fn replaced(&self) -> Result<Vec<(String, usize)>, Error> {
        let _names = self.lock_names(FlockOperation::LockShared)?;
        let users = self.users()?;
        let mut all = Vec::new();
        for tree in self.aside()? {
            let path = self.path.join(&tree);
            let meta = self
                .open_tree(&tree)
                .and_then(|dir| Meta::read(&dir, &tree, &path));
            let id = meta.ok().and_then(|meta| meta.id);
            all.extend(id.and_then(|id| users.by_layer(&id)));
        }
        all.sort();
        Ok(all)
    }
}
