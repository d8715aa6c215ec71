//! Leases of layers: by the template's name for a new sandbox, by the layer's id for an existing
//! one.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::references::LayerReferences;
use super::{
    Error, OPEN_DIRECTORY, Template, TemplateInfo, TemplateStore, check_name, failed, flock, meta,
    open_lock, random_hex, try_lock,
};

impl TemplateStore {
    /// Leases the template `name`.
    pub fn get(&self, name: &str) -> Result<Template, Error> {
        check_name(name)?;
        let names = self.lock_names(FlockOperation::LockShared)?;
        let mut template = self.lease(name, name)?;
        drop(names);
        if template.meta.id.is_none() {
            // If that fails it has no id, and is found by its name as before.
            template.meta.id = self.identify(name, &template).ok();
        }
        Ok(template)
    }

    /// Leases the layer that a sandbox was created from, even if the template was replaced. Without
    /// an id (older sandboxes) it is the template's current layer.
    pub fn get_layer(&self, name: &str, id: Option<&str>) -> Result<Template, Error> {
        let Some(id) = id else {
            return self.get(name);
        };
        check_name(name)?;
        let _names = self.lock_names(FlockOperation::LockShared)?;
        let has_id = |meta: &TemplateInfo| meta.id.as_deref() == Some(id);
        match self.lease(name, name) {
            Ok(template) if has_id(&template.meta) => return Ok(template),
            // A replaced layer may be intact even if the current template is not.
            Ok(_) | Err(Error::Unknown { .. } | Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        for tree in self.unnamed_trees()? {
            let path = self.path.join(&tree);
            let meta = self
                .open_tree(&tree)
                .and_then(|dir| meta::read_info(&dir, name, &path));
            if meta.is_ok_and(|meta| has_id(&meta)) {
                return self.lease(name, &tree);
            }
        }
        Err(Error::LayerMissing {
            name: name.to_owned(),
        })
    }

    /// Leases `tree` as the template `name`. The caller holds `.lock`.
    fn lease(&self, name: &str, tree: &str) -> Result<Template, Error> {
        let path = self.path.join(tree);
        let dir = self.open_tree(tree)?;
        let lease = open_lock(&dir, &path)?;
        flock(&lease, FlockOperation::LockShared).map_err(failed("lease", &path))?;
        let meta = meta::read_info(&dir, name, &path)?;
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

    /// Adds an id to a template from before there were ids.
    fn identify(&self, name: &str, template: &Template) -> Result<String, Error> {
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        let path = self.path.join(name);
        let dir = self.open_tree(name)?;
        let mut meta = meta::read_info(&dir, name, &path)?;
        if template.is_replaced() {
            return Err(Error::LayerMissing {
                name: name.to_owned(),
            });
        }
        let id = meta.id.get_or_insert_with(random_hex).clone();
        meta::write_info(&meta, &dir, &path)?;
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

    /// Directories of replaced templates and of builds.
    pub(super) fn unnamed_trees(&self) -> Result<Vec<String>, Error> {
        let is_unnamed = |name: &String| name.starts_with(".new-") || name.starts_with(".old-");
        Ok(self.entries()?.into_iter().filter(is_unnamed).collect())
    }

    /// Locks such a directory if nothing uses it; `None` otherwise. The caller holds `.lock`
    /// exclusively.
    pub(super) fn try_lock_unreferenced(
        &self,
        tree: &str,
        references: &LayerReferences,
    ) -> Result<Option<File>, Error> {
        let path = self.path.join(tree);
        let dir = match self.open_tree(tree) {
            Err(Error::Unknown { .. }) => return Ok(None),
            opened => opened?,
        };
        let Some(lock) = try_lock(&dir, &path)? else {
            return Ok(None);
        };
        // An unfinished build has no description, and no sandbox uses it.
        let in_use = meta::read_info(&dir, tree, &path)
            .is_ok_and(|meta| references.is_referenced(meta.id.as_deref()));
        Ok((!in_use).then_some(lock))
    }

    /// Replaced layers that sandboxes still use: the template's name and the number of sandboxes.
    pub fn replaced(&self) -> Result<Vec<(String, usize)>, Error> {
        let _names = self.lock_names(FlockOperation::LockShared)?;
        let references = self.references()?;
        let mut all = Vec::new();
        for tree in self.unnamed_trees()? {
            let path = self.path.join(&tree);
            let meta = self
                .open_tree(&tree)
                .and_then(|dir| meta::read_info(&dir, &tree, &path));
            let id = meta.ok().and_then(|meta| meta.id);
            all.extend(id.and_then(|id| references.by_layer(&id)));
        }
        all.sort();
        Ok(all)
    }
}
