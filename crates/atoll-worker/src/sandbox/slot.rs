//! Files of a slot: a sandbox's directory, its storage and the mounts that need no process.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_jail::plan::Plan;
use atoll_jail::{rootfs, wire};
use atoll_model::{Bytes, Error, SandboxId};

use super::remove_files;
use crate::error::{host_file_error, jail};
use crate::runtime::RuntimeState;
use crate::storage;

/// Files of a slot, open and ready for PID 1.
#[derive(Debug)]
pub(super) struct SlotFiles {
    id: SandboxId,
    pub(super) directory: PathBuf,
    pub(super) storage_dir: OwnedFd,
    /// Mounts that PID 1 cannot make itself, in the plan's order.
    pub(super) mounts: Vec<OwnedFd>,
    /// Whether the files existed before, as at a restart.
    pub(super) preexisting: bool,
}

impl SlotFiles {
    pub(super) fn create(
        shared: &RuntimeState,
        id: SandboxId,
        plan: &Plan,
        size: Bytes,
        preexisting: bool,
    ) -> Result<Self, Error> {
        let directory = shared.instance.sandbox(&id);
        let storage = &shared.instance.storage;
        let prepared = (|| {
            let create_dir = |path: &Path| {
                fs::create_dir(path).map_err(|error| host_file_error("create", path, &error))
            };
            let files = storage.directory(&id);
            if preexisting {
                if files.exists() {
                    // overlayfs refuses the `work` directory of an earlier mount.
                    crate::instance::remove_directory(&files.join("work"))?;
                    for part in ["upper", "work"] {
                        make_if_absent(&files.join(part))?;
                    }
                } else {
                    // Only a power failure shortly after the create removes the storage of a
                    // sandbox.
                    storage.create(&id, size)?;
                }
            } else {
                create_dir(&directory)?;
                create_dir(&directory.join("execs"))?;
                storage.create(&id, size)?;
            }
            Ok((open_directory(&files)?, prepare_mounts(plan, Vec::new())?))
        })();
        match prepared {
            Ok((storage_dir, mounts)) => Ok(Self {
                id,
                directory,
                storage_dir,
                mounts,
                preexisting,
            }),
            Err(error) => {
                if !preexisting {
                    let _ = storage.remove(&id);
                    let _ = crate::instance::remove_directory(&directory);
                }
                Err(error)
            }
        }
    }

    /// Removes the files unless they existed before.
    pub(super) async fn discard(self, shared: &Arc<RuntimeState>) {
        if self.preexisting {
            return;
        }
        let held = (self.storage_dir, self.mounts);
        let _ = tokio::task::spawn_blocking(move || drop(held)).await;
        remove_files(shared, &self.id, &self.directory).await;
    }
}

/// Creates a directory of the overlay. After a power failure one may be missing.
fn make_if_absent(path: &Path) -> Result<(), Error> {
    match storage::make_directory(path) {
        Err(_) if path.is_dir() => Ok(()),
        created => created,
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Error> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| host_file_error("open", path, &error.into()))
}

/// Prepares the mounts that PID 1 cannot make itself, in the plan's order. `ready` are the ones
/// that every sandbox has, if they exist; they come first.
pub(super) fn prepare_mounts(plan: &Plan, ready: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, Error> {
    let mut ready = ready.into_iter();
    let mounts = plan
        .inside
        .mounts
        .iter()
        .filter_map(|mount| match &mount.source {
            wire::Source::Devices => {
                Some(ready.next().map_or_else(|| rootfs::devices(plan.ids), Ok))
            }
            wire::Source::Terminals => {
                Some(ready.next().map_or_else(|| rootfs::terminals(plan.ids), Ok))
            }
            wire::Source::Handed { path } => Some(rootfs::host_mount(Path::new(path))),
            _ => None,
        });
    mounts
        .map(|mount| mount.map_err(|error| jail(&error)))
        .collect()
}

/// The devpts among the prepared mounts.
pub(super) fn find_devpts(plan: &Plan, mounts: Vec<OwnedFd>) -> Option<OwnedFd> {
    let prepared = plan.inside.mounts.iter().filter(|mount| {
        use wire::Source::{Devices, Handed, Terminals};
        matches!(mount.source, Devices | Terminals | Handed { .. })
    });
    let mut both = prepared.zip(mounts);
    both.find_map(|(mount, fd)| (mount.source == wire::Source::Terminals).then_some(fd))
}
