//! Profiles of servers, in a file that clients in other languages read too:
//!
//! ```toml
//! default = "work"
//!
//! [profiles.work]
//! url = "https://sandboxes.example.com"
//! api_key = "atl_…"
//! ```
//!
//! The file contains keys, so only its owner may read it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use atoll_model::{Code, Error};
use serde::{Deserialize, Serialize};

/// Profile of one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Profile {
    pub(crate) url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_key: Option<String>,
}

/// The contents of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Profiles {
    /// Name of the default profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<String>,
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, Profile>,
}

impl Profiles {
    /// Reads the file. A missing file, or one in a directory of another user, has no profiles.
    pub(crate) fn read(file: &Path) -> Result<Self, Error> {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {
                return Ok(Self::default());
            }
            Err(error) if error.kind() == PermissionDenied && fs::metadata(file).is_err() => {
                return Ok(Self::default());
            }
            Err(error) => return Err(wrong(file, &error.to_string())),
        };
        // Without the text of the line, which may contain a key.
        toml::from_str(&text).map_err(|error| wrong(file, error.message()))
    }

    /// Returns the profile of this name, or the default one.
    pub(crate) fn find(&self, name: Option<&str>, file: &Path) -> Result<Option<&Profile>, Error> {
        let Some(name) = name.or(self.default.as_deref()) else {
            return Ok(None);
        };
        let found = self.profiles.get(name);
        found.map(Some).ok_or_else(|| {
            let known: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "there is none".to_owned()
            } else {
                format!("there are: {}", known.join(", "))
            };
            let message = format!("no profile {name:?} in {}", file.display());
            Error::new(Code::NotFound, message).remedy(format!(
                "{known}; `atoll login --profile {name} URL` makes it"
            ))
        })
    }

    /// Writes the file atomically.
    pub(crate) fn write(&self, file: &Path) -> Result<(), Error> {
        let failed = |error: io::Error| {
            let message = format!("{} cannot be written: {error}", file.display());
            Error::new(Code::PermissionDenied, message)
                .remedy("say ATOLL_URL and ATOLL_API_KEY, or another XDG_CONFIG_HOME")
        };
        let text = toml::to_string(self)
            .map_err(|error| Error::new(Code::Internal, format!("write profiles: {error}")))?;
        let directory = file.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).map_err(failed)?;
        let new = file.with_extension(format!("new-{}", std::process::id()));
        let options = |new: &Path| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(new)
        };
        let written = options(&new).and_then(|mut opened| {
            opened.write_all(text.as_bytes())?;
            opened.sync_all()?;
            fs::rename(&new, file)
        });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written.map_err(failed)
    }
}

fn wrong(file: &Path, why: &str) -> Error {
    Error::invalid(
        "profile",
        format!("{} cannot be read: {why}", file.display()),
        "correct it, or remove it and log in again: `atoll login`",
    )
}
