//! Disk usage of everything in a data directory, as `atoll df` shows it.
//!
//! Locks nothing and changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use atoll_model::{Bytes, DiskUsage, Error, Limits, SandboxId};
use serde::Serialize;

use super::{DiskSpace, Storage, image, plain};
use crate::sandbox::Record;

/// Instance name of sandboxes that `atoll run --keep` left.
const KEPT_INSTANCE: &str = "kept";

/// Disk usage of a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageUsage {
    /// Its sandboxes, by instance and id.
    pub sandboxes: Vec<SandboxUsage>,
    /// Space of its file system.
    pub host: DiskSpace,
    /// Disk space that storage images take.
    pub images: Bytes,
}

/// Disk usage of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxUsage {
    /// `server`, the tag or the name of a run, or `kept`.
    pub instance: String,
    /// Id of the sandbox.
    #[serde(rename = "sandboxID")]
    pub id: SandboxId,
    /// Whether it is in the warm pool.
    #[serde(rename = "pooled")]
    pub is_pooled: bool,
    /// Storage backend of its files.
    pub storage: Storage,
    /// Its usage; `None` if its image is not mounted.
    #[serde(flatten)]
    pub usage: Option<DiskUsage>,
}

/// Measures all instances of a data directory.
pub fn measure(data: &Path) -> Result<StorageUsage, Error> {
    let mut usage_report = StorageUsage {
        sandboxes: Vec::new(),
        host: DiskSpace::for_path(data)?,
        images: Bytes(0),
    };
    usage_report.add("server", data, &data.join("sandboxes"));
    for run in entries(&data.join("runs")) {
        let tag = run
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        usage_report.add(&tag, &run, &run.join("sandboxes"));
    }
    for run in crate::instance::named::list(data) {
        usage_report.add(
            run.name.as_str(),
            &run.directory,
            &run.directory.join("sandboxes"),
        );
    }
    usage_report.add(KEPT_INSTANCE, &data.join("kept"), &data.join("kept"));
    Ok(usage_report)
}

impl StorageUsage {
    /// Sum of all measured sandboxes.
    pub fn used(&self) -> Bytes {
        let used = |sandbox: &SandboxUsage| sandbox.usage.map_or(0, |usage| usage.used.0);
        Bytes(self.sandboxes.iter().map(used).sum())
    }

    /// A sandbox that ends meanwhile is left out.
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
            // A create in progress has no record yet. Kept sandboxes always belong to a user.
            let is_pooled =
                instance != KEPT_INSTANCE && record.as_ref().is_none_or(|record| record.is_pooled);
            let limit = record.map_or(Limits::default().disk, |record| record.info.limits.disk);
            // After a change of the backend a data directory may have both.
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
                self.sandboxes.push(SandboxUsage {
                    instance: instance.to_owned(),
                    id,
                    is_pooled,
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
