//! Errors of template operations.

use std::io;
use std::path::PathBuf;

/// Why a template could not be created, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Malformed template name.
    #[error(
        "{0:?} is not a template name: use 1 to 63 of a-z 0-9 . _ - and begin with a letter or a digit, such as \"node-22\""
    )]
    Name(String),
    /// The name is reserved for the template that is built from this machine.
    #[error(
        "\"base\" is built from this machine's own system: choose another name, or rebuild \"base\" on this machine"
    )]
    Reserved,
    /// The user cannot have an account.
    #[error(
        "user {0:?} is invalid: a name is 1 to 32 of a-z 0-9 _ - and begins with a letter or _, ids are below 65536, \
         and a home is an absolute path without `..`, colons and line ends"
    )]
    User(String),
    /// There is no such template.
    #[error("there is no template {name:?}; {}", known_names(.known))]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of existing templates.
        known: Vec<String>,
    },
    /// The name is taken.
    #[error("a template {name:?} exists already: choose another name, or ask to replace it")]
    Exists {
        /// The taken name.
        name: String,
    },
    /// Sandboxes use it.
    #[error(
        "template {name:?} is in use by {}: delete the sandboxes that were made from it first", in_use_by(.sandboxes)
    )]
    InUse {
        /// The template.
        name: String,
        /// Known sandboxes that use it, running or not; empty if the only one is running and has no
        /// record.
        sandboxes: Vec<String>,
    },
    /// The layer that a sandbox was created from is gone; the template's name may have another one.
    #[error("the layer of template {name:?} that the sandbox was created from no longer exists")]
    LayerMissing {
        /// Name of the template.
        name: String,
    },
    /// The template's description cannot be parsed.
    #[error(
        "the description of template {name:?} is damaged ({path}): add the template again with replace"
    )]
    Damaged {
        /// The template.
        name: String,
        /// Its `template.json`.
        path: PathBuf,
        /// Parse error.
        source: serde_json::Error,
    },
    /// The host has no system that `base` can be built from.
    #[error(
        "{0} does not exist, so no template can be built from this machine's system: add one from an archive instead"
    )]
    Host(PathBuf),
    /// An entry of an archive or a directory is not allowed.
    #[error("entry {entry:?} is not allowed: {reason}")]
    Refused {
        /// Its name in the archive.
        entry: String,
        /// Reason and remedy.
        reason: String,
    },
    /// The archive cannot be read.
    #[error("{path} cannot be read as a tar archive: {reason}")]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tree is larger than allowed.
    #[error("the template would be larger than {0} bytes: remove files from it, or allow more")]
    TooLarge(u64),
    /// The tree has more entries than allowed.
    #[error("the template would have more than {0} entries: remove files from it")]
    TooManyEntries(u64),
    /// The disk is full.
    #[error("the disk of the data directory is full")]
    Full,
    /// A system call failed.
    #[error("cannot {step} {path}")]
    Io {
        /// The operation.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

impl From<Error> for atoll_model::Error {
    /// The error for API clients.
    fn from(error: Error) -> Self {
        use atoll_model::Code;
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        let code = match &error {
            Error::Unknown { .. } | Error::LayerMissing { .. } => Code::TemplateNotFound,
            Error::Exists { .. } | Error::InUse { .. } => Code::Conflict,
            Error::Full => Code::DiskFull,
            Error::Io { source, .. } if full(source) => Code::DiskFull,
            Error::Io { .. } | Error::Damaged { .. } => Code::Internal,
            _ => Code::InvalidRequest,
        };
        let mut message = error.to_string();
        if let Some(source) = std::error::Error::source(&error)
            && !message.ends_with(&source.to_string())
        {
            message = format!("{message}: {source}");
        }
        Self::new(code, message)
    }
}

/// The first sandbox and the number of others.
fn in_use_by(sandboxes: &[String]) -> String {
    match sandboxes {
        [] => "a running sandbox".to_owned(),
        [one] => format!("sandbox {one}"),
        [one, rest @ ..] => format!("sandbox {one} and {} more", rest.len()),
    }
}

fn known_names(known: &[String]) -> String {
    if known.is_empty() {
        "there are no templates yet".to_owned()
    } else {
        format!("there are: {}", known.join(", "))
    }
}

/// Creates an [`Error::Io`] for a failed operation on `path`.
pub(super) fn failed<E: Into<io::Error>>(
    step: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> Error {
    move |source| Error::Io {
        step,
        path: path.into(),
        source: source.into(),
    }
}
