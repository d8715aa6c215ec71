//! File calls on a sandbox from outside. Every test runs with a `base` template and with a static one.

mod copies;
mod describing;
mod listing;
mod paths;
mod reading;
mod replacing;
mod tree;
mod writing;

use atoll_model::{Authority, Code, Error, FileEntry, RunAs, SandboxId, WriteOptions};

use crate::harness::World;

/// The template's user with its own rights.
fn user() -> RunAs {
    RunAs::default()
}

/// The template's user with root's rights.
fn owner() -> RunAs {
    RunAs {
        authority: Authority::Root,
        ..RunAs::default()
    }
}

const REPLACE: WriteOptions = WriteOptions {
    mode: None,
    in_place: false,
    parents: false,
};

const IN_PLACE: WriteOptions = WriteOptions {
    in_place: true,
    ..REPLACE
};

/// File calls of one sandbox by text.
struct Files<'a> {
    world: &'a World,
    id: &'a SandboxId,
}

impl<'a> Files<'a> {
    fn of(world: &'a World, id: &'a SandboxId) -> Self {
        Self { world, id }
    }

    async fn try_write(
        &self,
        caller: &RunAs,
        path: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<FileEntry, Error> {
        let runtime = &self.world.runtime;
        let mut writer = runtime
            .write_file(self.id, caller, path.as_ref(), options)
            .await?;
        for piece in bytes.as_ref().chunks(100_000) {
            writer.write(piece).await?;
        }
        writer.commit().await
    }

    /// Writes as root.
    async fn write(&self, path: impl AsRef<[u8]>, bytes: impl AsRef<[u8]>) -> FileEntry {
        let path = path.as_ref();
        let written = self.try_write(&RunAs::root(), path, bytes, REPLACE).await;
        written.unwrap()
    }

    async fn try_read(&self, caller: &RunAs, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let runtime = &self.world.runtime;
        let reader = runtime.read_file(self.id, caller, path.as_ref()).await?;
        reader.read_to_end(usize::MAX).await
    }

    /// Reads as root.
    async fn read(&self, path: impl AsRef<[u8]>) -> Vec<u8> {
        self.try_read(&RunAs::root(), path).await.unwrap()
    }

    /// Reads text as root.
    async fn text(&self, path: impl AsRef<[u8]>) -> String {
        String::from_utf8(self.read(path).await).unwrap()
    }

    async fn try_stat(&self, path: impl AsRef<[u8]>) -> Result<FileEntry, Error> {
        let root = RunAs::root();
        let stat = self
            .world
            .runtime
            .stat(self.id, &root, path.as_ref(), false);
        stat.await
    }

    /// Describes a path without following a link.
    async fn stat(&self, path: impl AsRef<[u8]>) -> FileEntry {
        self.try_stat(path).await.unwrap()
    }

    async fn exists(&self, path: impl AsRef<[u8]>) -> bool {
        match self.try_stat(path).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.code, Code::FileNotFound, "{error:?}");
                false
            }
        }
    }

    /// The names in a directory.
    async fn names(&self, path: impl AsRef<[u8]>) -> Vec<String> {
        let root = RunAs::root();
        let listed = self
            .world
            .runtime
            .list_files(self.id, &root, path.as_ref(), 1, 10_000);
        let (entries, truncated) = listed.await.unwrap();
        assert!(!truncated);
        let name = |entry: FileEntry| String::from_utf8_lossy(&entry.path).into_owned();
        entries.into_iter().map(name).collect()
    }

    /// Creates a directory and its parents as root.
    async fn mkdir(&self, path: impl AsRef<[u8]>) {
        let root = RunAs::root();
        let made = self
            .world
            .runtime
            .make_directory(self.id, &root, path.as_ref(), 0o755, true);
        made.await.unwrap();
    }

    /// Creates a symbolic link as root.
    async fn link(&self, target: &str, path: &str) {
        crate::harness::stdout_text(
            &self
                .world
                .probe(self.id, "root", &["link", target, path])
                .await,
        );
    }
}

/// The code of what must fail.
#[track_caller]
fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Code {
    result.unwrap_err().code
}
