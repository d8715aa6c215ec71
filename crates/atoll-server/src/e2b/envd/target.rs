//! The sandbox and user of an E2B file call. Calls have root's permissions, as in E2B; created
//! files belong to the user.

use atoll_core::{SandboxAccess, SandboxRef};
use atoll_model::runtime::Runtime;
use atoll_model::{Authority, Error, FileKind, RunAs, SandboxId};

/// An open sandbox, and the user of a file call.
#[derive(Debug)]
pub(super) struct FileTarget {
    pub(super) access: SandboxAccess,
    pub(super) run_as: RunAs,
}

impl FileTarget {
    /// Opens the sandbox for this user, by default the template's.
    pub(super) async fn open(sandbox: &SandboxRef, user: Option<String>) -> Result<Self, Error> {
        let access = sandbox.open().await?;
        let run_as = RunAs {
            user: user.filter(|user| !user.is_empty()),
            authority: Authority::Root,
        };
        Ok(Self { access, run_as })
    }

    pub(super) fn runtime(&self) -> &dyn Runtime {
        self.access.runtime()
    }

    pub(super) fn id(&self) -> &SandboxId {
        self.access.id()
    }

    /// Whether a path is a directory.
    pub(super) async fn is_directory(&self, path: &str) -> bool {
        let found = self.runtime();
        let found = found.stat(self.id(), &self.run_as, path.as_bytes(), true);
        found
            .await
            .is_ok_and(|found| found.kind == FileKind::Directory)
    }
}

/// envd's message for an unknown user.
pub(super) fn invalid_username(run_as: &RunAs) -> String {
    let user = run_as.user.as_deref().unwrap_or_default();
    format!("invalid username: '{user}'")
}

/// Cleans a path as envd does (Go's `path.Clean`). Relative paths and `~` start at the user's home.
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

/// Parent directory of a clean path; `None` if it always exists.
pub(super) fn parent(path: &str) -> Option<&str> {
    let (parent, _) = path.rsplit_once('/')?;
    (!parent.is_empty()).then_some(parent)
}

/// Last component of a clean path.
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
    fn paths_are_cleaned_as_in_envd() {
        for (input, expected) in [
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
            assert_eq!(clean_path(input), expected, "{input:?}");
        }
    }

    #[test]
    fn parent_and_file_name() {
        assert_eq!((parent("a"), file_name("a")), (None, "a"));
        assert_eq!((parent("/a"), file_name("/a")), (None, "a"));
        assert_eq!((parent("/a/b"), file_name("/a/b")), (Some("/a"), "b"));
        assert_eq!(file_name("/"), "/");
    }
}
