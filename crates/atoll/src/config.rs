//! Where things are. The only place that reads environment variables.

use std::path::PathBuf;

use atoll_model::Error;
use atoll_worker::Storage;

/// What the surroundings say.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The data directory: `ATOLL_DATA_DIR`, else `/var/lib/atoll`.
    pub(crate) data: PathBuf,
    /// Where templates are, if several data directories share them: `ATOLL_TEMPLATES_DIR`.
    templates: Option<PathBuf>,
    /// What sandboxes' files are on: `ATOLL_STORAGE`, else `plain`.
    pub(crate) storage: Storage,
}

impl Config {
    pub(crate) fn read() -> Result<Self, Error> {
        let data = std::env::var_os("ATOLL_DATA_DIR").filter(|dir| !dir.is_empty());
        let storage = std::env::var_os("ATOLL_STORAGE").filter(|storage| !storage.is_empty());
        let storage = storage.map(|storage| storage.to_string_lossy().parse());
        let templates = std::env::var_os("ATOLL_TEMPLATES_DIR").filter(|dir| !dir.is_empty());
        Ok(Self {
            templates: templates.map(PathBuf::from),
            data: data.map_or_else(|| "/var/lib/atoll".into(), PathBuf::from),
            storage: storage.transpose()?.unwrap_or_default(),
        })
    }

    /// Where templates are: by default `templates/` in the data directory.
    pub(crate) fn templates(&self) -> PathBuf {
        let shared = self.templates.clone();
        shared.unwrap_or_else(|| self.data.join("templates"))
    }
}
