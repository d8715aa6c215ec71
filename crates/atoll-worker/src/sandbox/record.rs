//! The record of a sandbox: `record.json` in its directory, from which the next server adopts it.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use atoll_jail::plan::IdRange;
use atoll_model::{Error, SandboxInfo, SandboxSpec, SandboxState, StopReason};
use serde::{Deserialize, Serialize};

use super::network::LinkRecord;
use crate::authorities::LayerRecord;
use crate::error::{host_file_error, internal};
use crate::runtime::activity::DeadlineRecord;
use crate::syncer::create_private;

const RECORD_FILE: &str = "record.json";
/// Hard link to the last record that was synced.
const SYNCED_FILE: &str = "record.synced";

/// A sandbox's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    #[serde(flatten)]
    pub(crate) info: SandboxInfo,
    /// Spec of the create, for a restart.
    pub(crate) spec: SandboxSpec,
    /// First of its uids and gids on the host, while it runs.
    id_base: u32,
    id_count: u32,
    /// Id of the template's layer that it was created from, which a later template of the same name
    /// does not have. `None` for sandboxes from before layers had ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer: Option<String>,
    /// The layer with the operator's certificate authorities, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authorities: Option<LayerRecord>,
    /// Its network link, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) linked: Option<LinkRecord>,
    /// `boot_id` of the host when the record was created.
    #[serde(rename = "boot")]
    pub(crate) boot_id: String,
    /// Its timeouts and deadlines. `None` if nothing expires, and in records of versions without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deadlines: Option<DeadlineRecord>,
    /// Whether it is in the warm pool.
    #[serde(default, rename = "pooled")]
    pub(crate) is_pooled: bool,
}

impl Record {
    pub(crate) fn new(info: SandboxInfo, spec: SandboxSpec, ids: IdRange) -> Self {
        let deadlines = spec.lifetime.map(DeadlineRecord::begin);
        Self {
            version: 1,
            info,
            spec,
            id_base: ids.base,
            id_count: ids.count,
            layer: None,
            authorities: None,
            linked: None,
            boot_id: host_boot_id(),
            deadlines,
            is_pooled: false,
        }
    }

    pub(crate) fn ids(&self) -> IdRange {
        IdRange {
            base: self.id_base,
            count: self.id_count,
        }
    }

    /// The record of the same sandbox after its processes have ended without a caller's request.
    pub(crate) fn stopped(mut self) -> Self {
        let reason = if self.boot_id == host_boot_id() {
            StopReason::Exited
        } else {
            StopReason::HostRestart
        };
        self.info.state = SandboxState::Stopped;
        self.info.reason.get_or_insert(reason);
        self
    }

    /// Writes it to a directory, atomically.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec(self).map_err(|error| internal("write a record", &error))?;
        let (new, path) = (
            directory.join("record.json.new"),
            directory.join(RECORD_FILE),
        );
        // Variables may be secrets, and a file of an earlier version may have a wider mode.
        let _ = fs::remove_file(&new);
        let written = create_private(&new).and_then(|mut file| file.write_all(&text));
        written.map_err(|error| host_file_error("write", &new, &error))?;
        fs::rename(&new, &path).map_err(|error| host_file_error("write", &path, &error))
    }

    /// Links the record that was just synced to a second name: after a power failure the file that
    /// replaces it may be empty.
    pub(crate) fn keep_synced(directory: &Path) -> Result<(), Error> {
        let (new, path) = (
            directory.join("record.synced.new"),
            directory.join(SYNCED_FILE),
        );
        let _ = fs::remove_file(&new);
        let linked =
            fs::hard_link(directory.join(RECORD_FILE), &new).and_then(|()| fs::rename(&new, &path));
        match linked {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(host_file_error("write", &path, &error))
            }
            _ => Ok(()),
        }
    }

    /// Removes it: a sandbox without a record was never acknowledged to a caller.
    pub(crate) fn remove(directory: &Path) -> Result<(), Error> {
        let path = directory.join(RECORD_FILE);
        fs::remove_file(&path).map_err(|error| host_file_error("remove", &path, &error))
    }

    /// Reads it; `None` if there is none. A corrupt one is replaced by the last synced one.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, RecordError> {
        match Self::read_file(&directory.join(RECORD_FILE)) {
            Err(RecordError::Corrupt) => match Self::read_file(&directory.join(SYNCED_FILE)) {
                Ok(Some(record)) => Ok(Some(record)),
                _ => Err(RecordError::Corrupt),
            },
            read => read,
        }
    }

    fn read_file(path: &Path) -> Result<Option<Self>, RecordError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RecordError::Io(host_file_error("read", path, &error))),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|_| RecordError::Corrupt)
    }
}

/// Why a record could not be read.
#[derive(Debug)]
pub(crate) enum RecordError {
    /// It cannot be parsed.
    Corrupt,
    /// The file cannot be read; the record may be intact.
    Io(Error),
}

/// The kernel's `boot_id`, different after each boot.
pub(crate) fn host_boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
