//! Size-limited file systems for tests that fill a disk: if a defence fails, only that file system is full. Fork
//! bombs need none: a sandbox's instance has a cgroup, and such a test lowers its limits.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::scratch::detach_below;
use crate::{mounts, run, wait_for};

/// Limits the effects of a test on the machine.
#[derive(Debug)]
pub struct Cage;

impl Cage {
    /// A small file system of its own in a new directory `disk` of `scratch`, so that filling it fills nothing else.
    pub fn disk(scratch: &Path, bytes: u64) -> Disk {
        Disk::new(scratch, bytes)
    }
}

/// A sparse image with ext4 in it, mounted until it is dropped.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    point: PathBuf,
}

impl Disk {
    fn new(scratch: &Path, bytes: u64) -> Self {
        let (image, point) = (scratch.join("disk.image"), scratch.join("disk"));
        let file = fs::File::create_new(&image).expect("the image can be made");
        file.set_len(bytes).expect("a sparse file can be made");
        fs::create_dir(&point).expect("the mount point can be made");
        // No journal, no tables to write: ready in milliseconds.
        let disk = Self { image, point };
        sound(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-m", "0", "-O", "^has_journal"])
                .arg(&disk.image),
        );
        sound(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&disk.image)
                .arg(&disk.point),
        );
        disk
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        detach_below(&self.point);
        let _ = fs::remove_dir(&self.point);
        let _ = fs::remove_file(&self.image);
        if !std::thread::panicking() {
            let point = self.point.clone();
            wait_for("the disk to be unmounted", Duration::from_mins(1), || {
                !mounts().iter().any(|mount| mount.point == point)
            });
        }
    }
}

/// Runs a command that must succeed.
#[track_caller]
pub(crate) fn sound(command: &mut Command) {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
