//! A directory of the host that must not change, and file calls that try to reach the directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use atoll_model::{Error, RunAs, SandboxId, WriteOptions};
use atoll_testkit::Scratch;

use crate::harness::{World, data};

/// Contents of the canary.
pub(super) const HOST: &[u8] = b"known to the host alone";

/// A directory of the host with a file `f` that no sandbox may see or change.
pub(super) struct Canary {
    scratch: Scratch,
    before: [State; 2],
}

/// Inode, size, mode, owner and time of the last change.
type State = (u64, u64, u32, u32, i64, i64);

impl Canary {
    pub(super) fn new() -> Self {
        let scratch = Scratch::new();
        fs::write(scratch.join("f"), HOST).expect("it can be written");
        let before = state(&scratch);
        Self { scratch, before }
    }

    pub(super) fn directory(&self) -> String {
        let path = self.scratch.path().to_str();
        path.expect("it has a plain name").to_owned()
    }

    pub(super) fn file(&self) -> String {
        format!("{}/f", self.directory())
    }

    /// Asserts that the directory is unchanged.
    #[track_caller]
    pub(super) fn assert_untouched(&self, by: &str) {
        assert_eq!(state(&self.scratch), self.before, "{by}");
        let found = fs::read(self.scratch.join("f")).expect("it can be read");
        assert_eq!(found, HOST, "{by}");
        let names = fs::read_dir(self.scratch.path()).expect("it can be listed");
        assert_eq!(names.count(), 1, "{by}");
    }
}

fn state(scratch: &Scratch) -> [State; 2] {
    [scratch.path().to_path_buf(), scratch.join("f")].map(|path| {
        let it = fs::metadata(path).expect("it is there");
        let changed = (it.ctime(), it.ctime_nsec());
        (
            it.ino(),
            it.size(),
            it.mode(),
            it.uid(),
            changed.0,
            changed.1,
        )
    })
}

/// Path of a sandbox's upper directory on the host.
pub(super) fn upper(world: &World, id: &SandboxId) -> PathBuf {
    let sandboxes = data()
        .join("runs")
        .join(world.runtime.tag())
        .join("sandboxes");
    sandboxes.join(id.as_str()).join("upper")
}

pub(super) async fn read(
    world: &World,
    id: &SandboxId,
    caller: &RunAs,
    path: &str,
) -> Result<Vec<u8>, Error> {
    let reader = world.runtime.read_file(id, caller, path.as_bytes()).await?;
    reader.read_to_end(1 << 20).await
}

/// Contents that [`write`] writes.
pub(super) const GUEST: &[u8] = b"written by a guest";

pub(super) async fn write(
    world: &World,
    id: &SandboxId,
    caller: &RunAs,
    path: &str,
    options: WriteOptions,
) -> Result<(), Error> {
    let write = world
        .runtime
        .write_file(id, caller, path.as_bytes(), options);
    let mut writer = write.await?;
    writer.write(GUEST).await?;
    writer.commit().await.map(drop)
}
