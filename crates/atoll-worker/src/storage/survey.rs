//! What everything below a data directory takes, for whoever asks from outside: nothing is locked,
//! opened for good or changed.

use std::fs;
use std::path::{Path, PathBuf};

use atoll_model::{Bytes, DiskUsage, Error, Limits, SandboxId};
use serde::Serialize;

use super::{Space, Storage, image, plain};
use crate::sandbox::Record;

/// The instance of sandboxes that `atoll run --keep` left.
const KEPT: &str = "kept";

/// What a data directory holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// Its sandboxes, by instance and id.
    pub sandboxes: Vec<Line>,
    /// The file system it is on.
    pub host: Space,
    /// What the images take of it.
    pub images: Bytes,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// `server`, the tag of a run, its name if it has one, or `kept`.
    pub instance: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub id: SandboxId,
    /// Prepared in advance: no user has it yet.
    pub pooled: bool,
    /// What its files are on.
    pub storage: Storage,
    /// What they take; nothing is known of an image that is not mounted.
    #[serde(flatten)]
    pub usage: Option<DiskUsage>,
}

/// Looks at all instances below a data directory.
pub fn take(data: &Path) -> Result<Survey, Error> {
    let mut survey = Survey {
        sandboxes: Vec::new(),
        host: Space::of(data)?,
        images: Bytes(0),
    };
    survey.add("server", data, &data.join("sandboxes"));
    for run in entries(&data.join("runs")) {
        let tag = run
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        survey.add(&tag, &run, &run.join("sandboxes"));
    }
    for run in crate::instance::named::all(data) {
        survey.add(
            run.name.as_str(),
            &run.directory,
            &run.directory.join("sandboxes"),
        );
    }
    survey.add(KEPT, &data.join("kept"), &data.join("kept"));
    Ok(survey)
}

impl Survey {
    /// Everything that was measured.
    pub fn used(&self) -> Bytes {
        let used = |line: &Line| line.usage.map_or(0, |usage| usage.used.0);
        Bytes(self.sandboxes.iter().map(used).sum())
    }

    /// One that ends meanwhile is left out.
    fn add(&mut self, instance: &str, directory: &Path, sandboxes: &Path) {
        use std::os::unix::fs::MetadataExt;
        let file = directory.join("storage.btrfs");
        let image = fs::symlink_metadata(&file).ok();
        if let Some(found) = &image {
            self.images.0 += found.blocks() * 512;
        }
        for path in entries(sandboxes) {
            let id = path
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            let Some(id) = id else { continue };
            let record = Record::read(&path).ok().flatten();
            // One that is only begun has no record. What was kept always belongs to a user.
            let pooled = instance != KEPT && record.as_ref().is_none_or(|record| record.is_pooled);
            let limit = record.map_or(Limits::default().disk, |record| record.info.limits.disk);
            // A data directory that changed its mind may have both.
            let storage = if path.join("upper").is_dir() {
                Storage::Plain
            } else {
                Storage::Image
            };
            let usage = match storage {
                Storage::Plain => plain::usage(&path, limit).map(Some),
                Storage::Image => image::usage(directory, &id, limit),
            };
            if let Ok(usage) = usage {
                self.sandboxes.push(Line {
                    instance: instance.to_owned(),
                    id,
                    pooled,
                    storage,
                    usage,
                });
            }
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
