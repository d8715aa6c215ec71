//! References from sandbox records to layers.
//!
//! A layer is in use by sandboxes that no server holds a lease for: stopped ones, and those whose
//! server has ended. Their records are in the data directory of the store and in registered data
//! directories.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::Deserialize;

use super::{Error, TemplateStore, failed, random_hex};

/// Directories of sandboxes with records, in a data directory.
const SANDBOX_DIRECTORIES: [&str; 2] = ["sandboxes", "orphaned"];
/// Prefix of files that contain the path of a registered data directory.
const DATA_DIR_PREFIX: &str = ".data-";

/// Sandboxes by the layer that their records name.
#[derive(Debug, Default)]
pub(super) struct LayerReferences {
    /// By layer id.
    layers: BTreeMap<String, Vec<Reference>>,
    /// Sandboxes from before layers had ids.
    old: Vec<Reference>,
}

#[derive(Debug)]
struct Reference {
    sandbox: String,
    template: String,
}

/// The fields of a record that are needed here.
#[derive(Deserialize)]
struct Record {
    spec: Spec,
    #[serde(default)]
    layer: Option<String>,
    #[serde(default, rename = "pooled")]
    is_pooled: bool,
}

#[derive(Deserialize)]
struct Spec {
    template: String,
}

impl LayerReferences {
    /// Whether a sandbox uses the layer with this id. A layer without an id counts as used if a
    /// sandbox without one exists.
    pub(super) fn is_referenced(&self, id: Option<&str>) -> bool {
        match id {
            Some(id) => self.layers.contains_key(id),
            None => !self.old.is_empty(),
        }
    }

    /// Sandboxes that use the current layer of a template.
    pub(super) fn sandboxes_of(&self, name: &str, id: Option<&str>) -> Vec<String> {
        let by_id = id.and_then(|id| self.layers.get(id)).into_iter().flatten();
        let old = self
            .old
            .iter()
            .filter(|reference| reference.template == name);
        by_id
            .chain(old)
            .map(|reference| reference.sandbox.clone())
            .collect()
    }

    /// Name of a layer's template, and the number of sandboxes that use it.
    pub(super) fn by_layer(&self, id: &str) -> Option<(String, usize)> {
        let references = self.layers.get(id)?;
        Some((references.first()?.template.clone(), references.len()))
    }

    /// Adds the sandboxes of a data directory. A record that cannot be read is an error.
    fn add(&mut self, data: &Path) -> Result<(), Error> {
        for part in SANDBOX_DIRECTORIES {
            let path = data.join(part);
            for entry in entries_if_exists(fs::read_dir(&path)).map_err(failed("list", &path))? {
                let entry = entry.map_err(failed("list", &path))?;
                let record = entry.path().join("record.json");
                let text = match fs::read(&record) {
                    Ok(text) => text,
                    Err(error) if is_not_found(&error) => continue,
                    Err(error) => return Err(failed("read", record)(error)),
                };
                // Sandboxes with a corrupt record cannot start, and warm ones belong to no caller.
                let Ok(record) = serde_json::from_slice::<Record>(&text) else {
                    continue;
                };
                if record.is_pooled {
                    continue;
                }
                let reference = Reference {
                    sandbox: entry.file_name().to_string_lossy().into_owned(),
                    template: record.spec.template,
                };
                match record.layer {
                    Some(layer) => self.layers.entry(layer).or_default().push(reference),
                    None => self.old.push(reference),
                }
            }
        }
        Ok(())
    }
}

fn is_not_found(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn entries_if_exists(
    entries: io::Result<fs::ReadDir>,
) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match entries {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if is_not_found(&error) => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

impl TemplateStore {
    /// Registers a data directory whose sandboxes are created from these templates, so that their
    /// layers are kept.
    pub fn register_data_dir(&self, data: &Path) -> Result<(), Error> {
        if self.path.parent() == Some(data) {
            return Ok(());
        }
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        if self
            .registered_data_dirs()?
            .iter()
            .any(|(_, known)| known == data)
        {
            return Ok(());
        }
        let path = self.path.join(format!("{DATA_DIR_PREFIX}{}", random_hex()));
        fs::write(&path, data.as_os_str().as_bytes()).map_err(failed("write", path))
    }

    /// References of all data directories. The caller holds `.lock`.
    pub(super) fn references(&self) -> Result<LayerReferences, Error> {
        let mut references = LayerReferences::default();
        if let Some(own) = self.path.parent() {
            references.add(own)?;
        }
        for (_, data) in self.registered_data_dirs()? {
            references.add(&data)?;
        }
        Ok(references)
    }

    /// Unregisters data directories that no longer exist. The caller holds `.lock` exclusively.
    pub(super) fn unregister_missing_data_dirs(&self) -> Result<(), Error> {
        for (file, data) in self.registered_data_dirs()? {
            if fs::metadata(&data).is_err_and(|error| is_not_found(&error)) {
                fs::remove_file(&file).map_err(failed("remove", file))?;
            }
        }
        Ok(())
    }

    /// Registered data directories, each with the file that names it.
    fn registered_data_dirs(&self) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
        let files = self.entries()?.into_iter();
        let files = files.filter(|name| name.starts_with(DATA_DIR_PREFIX));
        files
            .map(|name| {
                let file = self.path.join(name);
                let named = fs::read(&file).map_err(failed("read", &file))?;
                Ok((file, OsString::from_vec(named).into()))
            })
            .collect()
    }
}
