//! The keeper's own root.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};

use crate::rootfs::new_mount;
use crate::{Error, Step};

/// Mount point in the keeper's root for the root of a new sandbox before `pivot_root`.
pub(crate) const NEW_ROOT: &str = "/root";

/// Replaces the mounts of the host by a minimal root. In a process with threads this affects the calling thread only.
pub(crate) fn build_root() -> Result<(), Error> {
    // SAFETY: a new mount namespace comes with file system state of its own; descriptors are not concerned.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .step(|| "unshare mounts".into())?;
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .step(|| "make mounts private".into())?;
    let root = new_mount("tmpfs", &[("mode", "0755"), ("size", "1m")])?;
    let proc = new_mount("proc", &[])?;
    let any = |step: &'static str| move || step.to_owned();
    // Any existing directory can be the mount point of the new root.
    move_mount(
        root.as_fd(),
        c"",
        CWD,
        c"/proc",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step(any("attach the keeper's root"))?;
    rustix::process::fchdir(&root).step(any("enter the keeper's root"))?;
    rustix::process::pivot_root(c".", c".").step(any("pivot to the keeper's root"))?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).step(any("leave the host's root"))?;
    rustix::process::chdir(c"/").step(any("enter the keeper's root"))?;
    for directory in ["proc", "dev"] {
        fs::create_dir(Path::new("/").join(directory)).step(|| format!("mkdir {directory}"))?;
    }
    fs::create_dir(NEW_ROOT).step(any("mkdir the new root"))?;
    move_mount(
        proc.as_fd(),
        c"",
        CWD,
        c"/proc",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step(any("attach proc"))?;
    let null = rustix::fs::makedev(1, 3);
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, c"/dev/null", FileType::CharacterDevice, mode, null)
        .step(any("make /dev/null"))
}
