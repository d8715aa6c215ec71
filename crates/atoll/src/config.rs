//! Where things are. The only place that reads environment variables.

use std::path::PathBuf;

/// What the surroundings say.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The data directory: `ATOLL_DATA_DIR`, else `/var/lib/atoll`.
    pub(crate) data: PathBuf,
}

impl Config {
    pub(crate) fn read() -> Self {
        let data = std::env::var_os("ATOLL_DATA_DIR").filter(|dir| !dir.is_empty());
        Self {
            data: data.map_or_else(|| "/var/lib/atoll".into(), PathBuf::from),
        }
    }
}
