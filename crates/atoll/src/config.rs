//! Configuration from the environment. No other module reads environment variables.

pub(crate) mod profiles;

use std::path::PathBuf;

use atoll_model::Error;
use atoll_worker::Storage;

/// Values of environment variables.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The data directory: `ATOLL_DATA_DIR`, else `/var/lib/atoll`.
    pub(crate) data: PathBuf,
    /// Directory of templates that several data directories share: `ATOLL_TEMPLATES_DIR`.
    templates: Option<PathBuf>,
    /// `ATOLL_STORAGE`: storage of sandboxes' files. `None`: the default of the command.
    pub(crate) storage: Option<Storage>,
    /// URL of the PostgreSQL database of a server: `ATOLL_DATABASE_URL`.
    pub(crate) database_url: Option<String>,
    /// URL of the server: `ATOLL_URL`.
    pub(crate) url: Option<String>,
    /// Key for the server: `ATOLL_API_KEY`.
    pub(crate) api_key: Option<String>,
    /// File with the certificate authorities to trust instead of the system's: `ATOLL_CA_FILE`.
    pub(crate) authorities: Option<PathBuf>,
    /// File of profiles: `atoll/config.toml` in `XDG_CONFIG_HOME`, else in `~/.config`.
    pub(crate) profiles: Option<PathBuf>,
}

impl Config {
    pub(crate) fn read() -> Result<Self, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let place = |name| variable(name).map(PathBuf::from);
        let text = |name| variable(name).map(|value| value.to_string_lossy().into_owned());
        let storage = text("ATOLL_STORAGE").map(|storage| storage.parse());
        let home = place("HOME").map(|home| home.join(".config"));
        let settings = place("XDG_CONFIG_HOME").filter(|place| place.is_absolute());
        Ok(Self {
            templates: place("ATOLL_TEMPLATES_DIR"),
            data: place("ATOLL_DATA_DIR").unwrap_or_else(|| "/var/lib/atoll".into()),
            storage: storage.transpose()?,
            database_url: text("ATOLL_DATABASE_URL"),
            url: text("ATOLL_URL"),
            api_key: text("ATOLL_API_KEY"),
            authorities: place("ATOLL_CA_FILE"),
            profiles: settings.or(home).map(|at| at.join("atoll/config.toml")),
        })
    }

    /// Storage of a run without a server.
    pub(crate) fn storage_of_run(&self) -> Storage {
        self.storage.unwrap_or(Storage::Plain)
    }

    /// Directory of templates; the default is `templates/` in the data directory.
    pub(crate) fn templates(&self) -> PathBuf {
        let shared = self.templates.clone();
        shared.unwrap_or_else(|| self.data.join("templates"))
    }
}
