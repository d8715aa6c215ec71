//! Where things are. The only place that reads environment variables.

use std::path::PathBuf;

use atoll_model::Error;
use atoll_worker::Storage;

/// What the surroundings say.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The data directory: `ATOLL_DATA_DIR`, else `/var/lib/atoll`.
    pub(crate) data: PathBuf,
    /// What sandboxes' files are on: `ATOLL_STORAGE`, else `plain`.
    pub(crate) storage: Storage,
}

impl Config {
    pub(crate) fn read() -> Result<Self, Error> {
        let data = std::env::var_os("ATOLL_DATA_DIR").filter(|dir| !dir.is_empty());
        let storage = std::env::var_os("ATOLL_STORAGE").filter(|storage| !storage.is_empty());
        let storage = storage.map(|storage| storage.to_string_lossy().parse());
        Ok(Self {
            data: data.map_or_else(|| "/var/lib/atoll".into(), PathBuf::from),
            storage: storage.transpose()?.unwrap_or_default(),
        })
    }
}
