//! Which layers are needed by sandboxes that nobody serves now: those that are stopped, and those whose server is gone. Their
//! records say it, in the data directory that the store is in and in those that said they use it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::Deserialize;

use super::{Error, Store, failed, random};

/// Where a data directory has sandboxes with records.
const PARTS: [&str; 2] = ["sandboxes", "orphaned"];
/// What names of files begin with that name a data directory.
const DATA: &str = ".data-";

/// What the records of sandboxes say.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// By the id of their layer.
    layers: BTreeMap<String, Vec<User>>,
    /// Those from before layers had ids.
    old: Vec<User>,
}

#[derive(Debug)]
struct User {
    sandbox: String,
    template: String,
}

/// As much of a record as matters here.
#[derive(Deserialize)]
struct Record {
    spec: Spec,
    #[serde(default)]
    layer: Option<String>,
    #[serde(default)]
    pooled: bool,
}

#[derive(Deserialize)]
struct Spec {
    template: String,
}

impl Users {
    /// Some sandbox needs the layer with this id. Of one without it is not known.
    pub(super) fn need(&self, id: Option<&str>) -> bool {
        match id {
            Some(id) => self.layers.contains_key(id),
            None => !self.old.is_empty(),
        }
    }

    /// The sandboxes that need the layer that a template has now.
    pub(super) fn of(&self, name: &str, id: Option<&str>) -> Vec<String> {
        let by_id = id.and_then(|id| self.layers.get(id)).into_iter().flatten();
        let old = self.old.iter().filter(|user| user.template == name);
        by_id.chain(old).map(|user| user.sandbox.clone()).collect()
    }

    /// What the template of a layer was called, and how many sandboxes need it.
    pub(super) fn by_layer(&self, id: &str) -> Option<(String, usize)> {
        let users = self.layers.get(id)?;
        Some((users.first()?.template.clone(), users.len()))
    }

    /// Adds those of a data directory. One that cannot be read is not one without sandboxes.
    fn add(&mut self, data: &Path) -> Result<(), Error> {
        for part in PARTS {
            let path = data.join(part);
            for entry in absent_is_empty(fs::read_dir(&path)).map_err(failed("list", &path))? {
                let entry = entry.map_err(failed("list", &path))?;
                let record = entry.path().join("record.json");
                let text = match fs::read(&record) {
                    Ok(text) => text,
                    Err(error) if is_absent(&error) => continue,
                    Err(error) => return Err(failed("read", record)(error)),
                };
                // Nothing is ever made from what cannot be understood, nor from one that nobody was told of.
                let Ok(record) = serde_json::from_slice::<Record>(&text) else {
                    continue;
                };
                if record.pooled {
                    continue;
                }
                let user = User {
                    sandbox: entry.file_name().to_string_lossy().into_owned(),
                    template: record.spec.template,
                };
                match record.layer {
                    Some(layer) => self.layers.entry(layer).or_default().push(user),
                    None => self.old.push(user),
                }
            }
        }
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn absent_is_empty(
    entries: io::Result<fs::ReadDir>,
) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match entries {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if is_absent(&error) => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

impl Store {
    /// Says that sandboxes of a data directory are made from these templates, and stay when nobody serves them.
    pub fn lend_to(&self, data: &Path) -> Result<(), Error> {
        if self.path.parent() == Some(data) {
            return Ok(());
        }
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        if self.borrowers()?.iter().any(|(_, known)| known == data) {
            return Ok(());
        }
        let path = self.path.join(format!("{DATA}{}", random()));
        fs::write(&path, data.as_os_str().as_bytes()).map_err(failed("write", path))
    }

    /// Who needs layers. The caller holds `.lock`.
    pub(super) fn users(&self) -> Result<Users, Error> {
        let mut users = Users::default();
        if let Some(own) = self.path.parent() {
            users.add(own)?;
        }
        for (_, data) in self.borrowers()? {
            users.add(&data)?;
        }
        Ok(users)
    }

    /// Forgets data directories that are not there any more. The caller holds `.lock` exclusively.
    pub(super) fn forget_data(&self) -> Result<(), Error> {
        for (file, data) in self.borrowers()? {
            if fs::metadata(&data).is_err_and(|error| is_absent(&error)) {
                fs::remove_file(&file).map_err(failed("remove", file))?;
            }
        }
        Ok(())
    }

    /// Data directories elsewhere, and the files that name them.
    fn borrowers(&self) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
        let files = self.entries()?.into_iter();
        let files = files.filter(|name| name.starts_with(DATA));
        files
            .map(|name| {
                let file = self.path.join(name);
                let named = fs::read(&file).map_err(failed("read", &file))?;
                Ok((file, OsString::from_vec(named).into()))
            })
            .collect()
    }
}
