//! Attacks, named by their case in the list of attacks. Each attacked subsystem has its own file.

mod bombs;
mod capabilities;
mod cgroups;
mod descriptors;
mod devices;
mod fuzz;
mod greed;
mod kernel;
mod memory;
mod mounts;
mod namespaces;
mod pid1;
mod race;
mod roots;
mod shared;
mod sockets;
mod syscalls;
mod terminals;
mod tracing;
mod trees;

use std::path::PathBuf;

use crate::{Command, nr, sys};

pub(crate) fn commands() -> impl Iterator<Item = &'static Command> {
    [
        descriptors::COMMANDS,
        devices::COMMANDS,
        mounts::COMMANDS,
        trees::COMMANDS,
        roots::COMMANDS,
        capabilities::COMMANDS,
        cgroups::COMMANDS,
        pid1::COMMANDS,
        terminals::COMMANDS,
        syscalls::COMMANDS,
        fuzz::COMMANDS,
        namespaces::COMMANDS,
        kernel::COMMANDS,
        sockets::COMMANDS,
        shared::COMMANDS,
        bombs::COMMANDS,
        greed::COMMANDS,
        memory::COMMANDS,
        race::COMMANDS,
        tracing::COMMANDS,
    ]
    .into_iter()
    .flatten()
}

/// A directory of our own in the first place that lets us make one; gone when dropped.
struct Nook(PathBuf);

impl Nook {
    fn new() -> Option<Self> {
        let name = format!("probe-nook-{}", sys::pid());
        [
            "/tmp",
            ".",
            "/run",
            "/dev/shm",
            "/var/tmp",
            "/home/user",
            "/root",
            "/",
        ]
        .iter()
        .find_map(|place| {
            let path = std::path::Path::new(place).join(&name);
            std::fs::create_dir(&path).ok().map(|()| Self(path))
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Nook {
    fn drop(&mut self) {
        const MNT_DETACH: u64 = 2;
        // The removal must not delete files of a mount that an attempt left here.
        while sys::call(nr::UMOUNT2, &[sys::text(&sys::c_path(&self.0)), MNT_DETACH]).is_ok() {}
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
