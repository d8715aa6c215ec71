//! Where E2B's file calls work and as whom: with root's rights, whoever asks; what is made belongs to the user.

use atoll_core::{SandboxAccess, SandboxRef};
use atoll_model::{Authority, Error, FileKind, RunAs, SandboxId};
use atoll_worker::LocalRuntime;

/// A sandbox, and as whom somebody works on its files.
#[derive(Debug)]
pub(super) struct FileTarget {
    pub(super) access: SandboxAccess,
    pub(super) run_as: RunAs,
}

impl FileTarget {
    /// As the user of this name, or the template's.
    pub(super) async fn enter(sandbox: &SandboxRef, user: Option<String>) -> Result<Self, Error> {
        let access = sandbox.open().await?;
        let run_as = RunAs {
            user: user.filter(|user| !user.is_empty()),
            authority: Authority::Root,
        };
        Ok(Self { access, run_as })
    }

    pub(super) fn runtime(&self) -> &LocalRuntime {
        self.access.runtime()
    }

    pub(super) fn id(&self) -> &SandboxId {
        self.access.id()
    }

    /// Whether a path leads to a directory.
    pub(super) async fn is_directory(&self, path: &str) -> bool {
        let found = self.runtime();
        let found = found.stat(self.id(), &self.run_as, path.as_bytes(), true);
        found
            .await
            .is_ok_and(|found| found.kind == FileKind::Directory)
    }
}

/// A user who is not there, in the words that E2B's clients and their users know.
pub(super) fn invalid_username(run_as: &RunAs) -> String {
    let user = run_as.user.as_deref().unwrap_or_default();
    format!("invalid username: '{user}'")
}

/// A path as their daemon reads it, without `.`, `..` and doubled slashes; what is not absolute begins at the user's
/// home, for which `~` is another word.
pub(super) fn clean_path(path: &str) -> String {
    let absolute = path.starts_with('/');
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => path,
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if absolute => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    match (absolute, path.is_empty()) {
        (true, _) => format!("/{path}"),
        (false, true) => ".".to_owned(),
        (false, false) => path,
    }
}

/// The directory above a clean path, if it has one that may have to be made.
pub(super) fn parent(path: &str) -> Option<&str> {
    let (parent, _) = path.rsplit_once('/')?;
    (!parent.is_empty()).then_some(parent)
}

/// The last part of a clean path.
pub(super) fn file_name(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((_, file_name)) if !file_name.is_empty() => file_name,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_their_daemon_does() {
        for (given, meant) in [
            ("", "."),
            ("~", "."),
            ("~/a", "a"),
            ("~a/b", "~a/b"),
            ("a//b/./c/", "a/b/c"),
            ("a/../../b", "../b"),
            ("../../b", "../../b"),
            ("/", "/"),
            ("/..", "/"),
            ("/a/../../b/", "/b"),
            ("//tmp//x", "/tmp/x"),
        ] {
            assert_eq!(clean_path(given), meant, "{given:?}");
        }
    }

    #[test]
    fn what_is_above_and_the_name_are_found() {
        assert_eq!((parent("a"), file_name("a")), (None, "a"));
        assert_eq!((parent("/a"), file_name("/a")), (None, "a"));
        assert_eq!((parent("/a/b"), file_name("/a/b")), (Some("/a"), "b"));
        assert_eq!(file_name("/"), "/");
    }
}
