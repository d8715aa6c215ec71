//! `--upload` and `--download` of `atoll run`. Names that come from a sandbox are not trusted: they
//! are resolved below the target directory, one normal component at a time.

use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use atoll_model::{Code, Error, FileEntry, FileKind, RunAs, SandboxId, WriteOptions};
use atoll_worker::LocalRuntime;

use crate::cli::eprint_line;

/// Source and target.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Transfer {
    pub(crate) source: String,
    pub(crate) target: String,
}

impl FromStr for Transfer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((source, target)) if !source.is_empty() && !target.is_empty() => Ok(Self {
                source: source.into(),
                target: target.into(),
            }),
            _ => Err("write it as SRC:DST".into()),
        }
    }
}

/// Maximum number of entries of one download.
const MOST: u32 = 200_000;

impl Transfer {
    /// Checks that the source of an upload exists.
    pub(crate) fn check_source(&self) -> Result<(), Error> {
        let source = Path::new(&self.source);
        let found = fs::metadata(source);
        found
            .map(|_| ())
            .map_err(|error| unreadable("upload", source, &error))
    }

    /// Uploads. If the target is a directory or ends in `/`, the source is copied into it under its
    /// own name.
    pub(crate) async fn upload(
        &self,
        runtime: &LocalRuntime,
        id: &SandboxId,
        caller: &RunAs,
    ) -> Result<(), Error> {
        let source = Path::new(&self.source);
        let found = fs::metadata(source).map_err(|error| unreadable("upload", source, &error))?;
        let mut target = PathBuf::from(&self.target);
        let there = runtime
            .stat(id, caller, target.as_os_str().as_bytes(), true)
            .await;
        let into = self.target.ends_with('/')
            || there.is_ok_and(|entry| entry.kind == FileKind::Directory);
        if into
            && let Some(name) = source
                .canonicalize()
                .ok()
                .as_deref()
                .and_then(Path::file_name)
        {
            target.push(name);
        }
        let mut skipped = 0;
        let mut waiting = vec![(source.to_path_buf(), target, found)];
        while let Some((source, target, found)) = waiting.pop() {
            if found.is_dir() {
                let mode = found.permissions().mode() & 0o777 | 0o700;
                runtime
                    .make_directory(id, caller, target.as_os_str().as_bytes(), mode, true)
                    .await?;
                let entries =
                    fs::read_dir(&source).map_err(|error| unreadable("upload", &source, &error))?;
                for entry in entries.flatten() {
                    // A link to a file is followed; a link to a directory is not, because it may
                    // form a cycle.
                    let link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                    match fs::metadata(entry.path()) {
                        Ok(found) if found.is_file() || (found.is_dir() && !link) => {
                            waiting.push((entry.path(), target.join(entry.file_name()), found));
                        }
                        _ => skipped += 1,
                    }
                }
            } else if found.is_file() {
                let file =
                    File::open(&source).map_err(|error| unreadable("upload", &source, &error))?;
                let mode = Some(found.permissions().mode() & 0o777);
                let options = WriteOptions {
                    mode,
                    parents: true,
                    ..WriteOptions::default()
                };
                let path = target.as_os_str().as_bytes();
                let mut writer = runtime.write_file(id, caller, path, options).await?;
                writer.splice_from(file).await?;
                writer.commit().await?;
            } else {
                let message = format!(
                    "the upload source {} is neither a file nor a directory",
                    source.display()
                );
                return Err(Error::invalid(
                    "upload",
                    message,
                    "name a file or a directory",
                ));
            }
        }
        if skipped > 0 {
            eprint_line(&format!(
                "atoll: --upload {}: left out {skipped} links and special files",
                self.source
            ));
        }
        Ok(())
    }

    /// Downloads. If the target is a directory, the source is copied into it under its own name.
    pub(crate) async fn download(
        &self,
        runtime: &LocalRuntime,
        id: &SandboxId,
        caller: &RunAs,
    ) -> Result<(), Error> {
        let source = self.source.as_bytes();
        let top = runtime.stat(id, caller, source, true).await?;
        let mut target = PathBuf::from(&self.target);
        if target.is_dir()
            && let Some(name) = Path::new(&self.source).file_name()
        {
            target.push(name);
        }
        match top.kind {
            FileKind::File => save(runtime, id, caller, source, &target, top.mode).await,
            FileKind::Directory => self.download_tree(runtime, id, caller, &target).await,
            _ => Err(Error::new(
                Code::NotAFile,
                format!("{:?} is neither a file nor a directory", self.source),
            )),
        }
    }

    async fn download_tree(
        &self,
        runtime: &LocalRuntime,
        id: &SandboxId,
        caller: &RunAs,
        target: &Path,
    ) -> Result<(), Error> {
        let source = self.source.as_bytes();
        let (entries, truncated) = runtime
            .list_files(id, caller, source, u32::MAX, MOST)
            .await?;
        if truncated {
            let message = format!("{:?} has more than {MOST} entries", self.source);
            return Err(Error::new(Code::QuotaExceeded, message)
                .remedy("make an archive of it inside and download that"));
        }
        make_directory(target)?;
        let mut skipped = 0;
        for FileEntry {
            path, kind, mode, ..
        } in entries
        {
            let Some(below) = plain(&path) else {
                return Err(Error::new(
                    Code::Internal,
                    "the sandbox named a path outside of its own directory",
                ));
            };
            match kind {
                FileKind::Directory => make_directory(&target.join(below))?,
                FileKind::File => {
                    let inside = [source, b"/", &path].concat();
                    save(runtime, id, caller, &inside, &target.join(below), mode).await?;
                }
                FileKind::Link | FileKind::Other => skipped += 1,
            }
        }
        if skipped > 0 {
            eprint_line(&format!(
                "atoll: --download {}: left out {skipped} links and special files",
                self.source
            ));
        }
        Ok(())
    }
}

fn unreadable(field: &str, path: &Path, error: &std::io::Error) -> Error {
    let message = format!(
        "the {field} source {} cannot be read: {error}",
        path.display()
    );
    Error::invalid(field, message, "name a file or directory of this machine")
}

/// A relative path of normal components; `None` for other paths.
fn plain(path: &[u8]) -> Option<PathBuf> {
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
        .then_some(path)
}

fn host(path: &Path, error: &std::io::Error) -> Error {
    Error::new(
        Code::Internal,
        format!("download to {}: {error}", path.display()),
    )
}

fn make_directory(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(host(path, &error)),
        _ => Ok(()),
    }
}

/// Saves one file with its permission bits, without setuid and setgid.
async fn save(
    runtime: &LocalRuntime,
    id: &SandboxId,
    caller: &RunAs,
    inside: &[u8],
    target: &Path,
    mode: u32,
) -> Result<(), Error> {
    let reader = runtime.read_file(id, caller, inside).await?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode & 0o777 | 0o600)
        .open(target)
        .map_err(|error| host(target, &error))?;
    reader.splice_to(file).await.map(|_| ())
}
