//! What stands beside a sandbox's files and says what it is, for whoever comes after us.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use atoll_jail::plan::IdRange;
use atoll_model::{Error, SandboxInfo, SandboxSpec};
use serde::{Deserialize, Serialize};

use super::connection::Linked;
use crate::authorities::Mounted;
use crate::error::{host_file, internal};
use crate::syncer::create_private;

const NAME: &str = "record.json";
/// The last one that was synced.
const SYNCED: &str = "record.synced";

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
    /// The layer with the operator's certificate authorities, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authorities: Option<Mounted>,
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
            authorities: None,
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
        let (new, path) = (directory.join("record.json.new"), directory.join(NAME));
        // Its variables may be secrets. One that an earlier version left may be open to others.
        let _ = fs::remove_file(&new);
        let written = create_private(&new).and_then(|mut file| file.write_all(&text));
        written.map_err(|error| host_file("write", &new, &error))?;
        fs::rename(&new, &path).map_err(|error| host_file("write", &path, &error))
    }

    /// Keeps a name for the record as it is, now that it is on the disk: a power cut may empty the file that replaces it.
    pub(crate) fn keep_synced(directory: &Path) -> Result<(), Error> {
        let (new, path) = (directory.join("record.synced.new"), directory.join(SYNCED));
        let _ = fs::remove_file(&new);
        let kept = fs::hard_link(directory.join(NAME), &new).and_then(|()| fs::rename(&new, &path));
        match kept {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(host_file("write", &path, &error))
            }
            _ => Ok(()),
        }
    }

    /// Takes it away: who finds nothing was never told of the sandbox.
    pub(crate) fn remove(directory: &Path) -> Result<(), Error> {
        let path = directory.join(NAME);
        fs::remove_file(&path).map_err(|error| host_file("remove", &path, &error))
    }

    /// Reads it back; `None` if there is none.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, Unread> {
        match Self::read_file(&directory.join(NAME)) {
            Err(Unread::Senseless) => match Self::read_file(&directory.join(SYNCED)) {
                Ok(Some(record)) => Ok(Some(record)),
                _ => Err(Unread::Senseless),
            },
            read => read,
        }
    }

    fn read_file(path: &Path) -> Result<Option<Self>, Unread> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Unread::Unknown(host_file("read", path, &error))),
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
