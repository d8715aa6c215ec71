//! What can go wrong with a template, said to whoever asked for it.

use std::io;
use std::path::PathBuf;

/// Why a template could not be made, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is not one a template can have.
    #[error(
        "{0:?} is not a template name: use 1 to 63 of a-z 0-9 . _ - and begin with a letter or a digit, such as \"node-22\""
    )]
    Name(String),
    /// The name belongs to the template that is made from this machine.
    #[error(
        "\"base\" is made from this machine's own system: choose another name, or run `atoll template rebuild base`"
    )]
    Reserved,
    /// The user is not one that can have an account.
    #[error(
        "user {0:?} cannot be: a name is 1 to 32 of a-z 0-9 _ - and begins with a letter or _, ids are below 65536, \
         and a home is an absolute path without `..`, colons and line ends"
    )]
    User(String),
    /// There is no such template.
    #[error("no template is called {name:?}; {}", known_names(.known))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The name is taken.
    #[error("a template {name:?} exists already: choose another name, or ask to replace it")]
    Exists {
        /// The taken name.
        name: String,
    },
    /// Sandboxes need it.
    #[error(
        "template {name:?} is in use by {}: delete the sandboxes that were made from it first", who(.sandboxes)
    )]
    InUse {
        /// The template.
        name: String,
        /// Those that are known, running or not; nobody if one runs that has no record.
        sandboxes: Vec<String>,
    },
    /// What a sandbox was made from is gone, whatever has its name now.
    #[error("the layer of template {name:?} that the sandbox was made from is gone")]
    Gone {
        /// What the template was called.
        name: String,
    },
    /// The template's description cannot be read.
    #[error(
        "the description of template {name:?} is damaged ({path}): add the template again with replace"
    )]
    Damaged {
        /// The template.
        name: String,
        /// Its `template.json`.
        path: PathBuf,
        /// What is wrong in it.
        source: serde_json::Error,
    },
    /// The host's system is not one that `base` can be made from.
    #[error(
        "{0} is not there, so no template can be made from this machine's system: add one from an archive instead"
    )]
    Host(PathBuf),
    /// An entry of an archive or a directory was refused.
    #[error("entry {entry:?} is refused: {why}")]
    Refused {
        /// Its name, as it stands in the archive.
        entry: String,
        /// The reason and the remedy.
        why: String,
    },
    /// The archive cannot be read.
    #[error("{path} cannot be read as a tar archive: {why}")]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The tree is larger than allowed.
    #[error("the template would be larger than {0} bytes: remove files from it, or allow more")]
    TooLarge(u64),
    /// The tree has more entries than allowed.
    #[error("the template would have more than {0} entries: remove files from it")]
    TooMany(u64),
    /// There is no room for it.
    #[error("the disk of the data directory is full")]
    Full,
    /// The system refused a step.
    #[error("cannot {step} {path}")]
    Io {
        /// What was being done.
        step: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl From<Error> for atoll_model::Error {
    /// As a caller is told of it.
    fn from(error: Error) -> Self {
        use atoll_model::Code;
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        let code = match &error {
            Error::Unknown { .. } | Error::Gone { .. } => Code::TemplateNotFound,
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

/// Sandboxes by name, as far as one wants to read that.
fn who(sandboxes: &[String]) -> String {
    match sandboxes {
        [] => "a running sandbox".to_owned(),
        [one] => format!("sandbox {one}"),
        [one, rest @ ..] => format!("sandbox {one} and {} more", rest.len()),
    }
}

fn known_names(known: &[String]) -> String {
    if known.is_empty() {
        "there are none yet".to_owned()
    } else {
        format!("there are: {}", known.join(", "))
    }
}

/// Makes an [`Error::Io`] of a failed step on `path`.
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
