//! What stands beside a sandbox's files and says what it is, for whoever comes after us.

use std::fs;
use std::path::Path;

use atoll_jail::plan::IdRange;
use atoll_model::{Error, SandboxInfo, SandboxSpec};
use serde::{Deserialize, Serialize};

use super::connection::Linked;
use crate::error::{host_file, internal};

/// A sandbox's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    #[serde(flatten)]
    pub(crate) info: SandboxInfo,
    /// What was asked for, to start it again.
    pub(crate) spec: SandboxSpec,
    /// The first of its ids on the host, while it runs.
    id_base: u32,
    id_count: u32,
    /// The id of the template's layer it was made from, whatever has the template's name now. Those from before layers had
    /// ids have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer: Option<String>,
    /// Its link with the world, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) linked: Option<Linked>,
    /// Which start of the host it runs in.
    pub(crate) boot: String,
    /// It waits for somebody to ask for it.
    #[serde(default)]
    pub(crate) pooled: bool,
}

impl Record {
    pub(crate) fn new(info: SandboxInfo, spec: SandboxSpec, ids: IdRange) -> Self {
        Self {
            version: 1,
            info,
            spec,
            id_base: ids.base,
            id_count: ids.count,
            layer: None,
            linked: None,
            boot: boot(),
            pooled: false,
        }
    }

    pub(crate) fn ids(&self) -> IdRange {
        IdRange {
            base: self.id_base,
            count: self.id_count,
        }
    }

    /// Puts it in a directory, whole or not at all.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), Error> {
        let text = serde_json::to_vec(self).map_err(|error| internal("write a record", &error))?;
        let (new, path) = (
            directory.join("record.json.new"),
            directory.join("record.json"),
        );
        fs::write(&new, text).map_err(|error| host_file("write", &new, &error))?;
        fs::rename(&new, &path).map_err(|error| host_file("write", &path, &error))
    }

    /// Takes it away: who finds nothing was never told of the sandbox.
    pub(crate) fn remove(directory: &Path) -> Result<(), Error> {
        let path = directory.join("record.json");
        fs::remove_file(&path).map_err(|error| host_file("remove", &path, &error))
    }

    /// Reads it back; `None` if there is none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, Unread> {
        let path = directory.join("record.json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Unread::Unknown(host_file("read", &path, &error))),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|_| Unread::Senseless)
    }
}

/// Why there is no record although there should be one.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It cannot be understood, nor ever will.
    Senseless,
    /// The host did not give it to us: what it says is not known.
    Unknown(Error),
}

/// Which start of the host this is.
pub(crate) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
