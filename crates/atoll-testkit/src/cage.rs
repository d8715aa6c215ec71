//! Cages for tests that fill, bomb or kill: if a defence fails, the cage breaks the test and not the machine.
//!
//! A cage is a cgroup (v1 or v2) around the test's own process and what it starts. It does not reach a sandbox whose cgroup
//! is made elsewhere: give `Cage::directory` to what makes sandboxes as their parent, or rely on the sandbox's own limits.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::scratch::detach_below;
use crate::{mounts, run, wait_for};

/// Cages are named so that a dead test's can be told and that no instance takes them for its own.
pub(crate) const PREFIX: &str = "cage-atoll-";

/// A cgroup of 4,000 pids and 6 GB that holds the current process until it is dropped.
#[derive(Debug)]
pub struct Cage {
    /// Cage and where this process was before, for each hierarchy.
    places: Vec<(PathBuf, PathBuf)>,
}

impl Cage {
    /// Goes into a cage.
    #[allow(clippy::new_without_default, reason = "it moves the process")]
    pub fn new() -> Self {
        Self::with(4_000, 6 << 30)
    }

    /// Goes into a cage of another size.
    pub fn with(pids: u64, memory: u64) -> Self {
        let mut cage = Self { places: Vec::new() };
        for (controller, v1, v2, value) in [
            ("pids", "pids.max", "pids.max", pids),
            ("memory", "memory.limit_in_bytes", "memory.max", memory),
        ] {
            let hierarchy = Hierarchy::with(controller);
            remove_dead(&hierarchy.root);
            let directory = hierarchy
                .root
                .join(format!("{PREFIX}{}", std::process::id()));
            fs::create_dir_all(&directory).unwrap_or_else(|problem| {
                panic!("a cage needs root: {}: {problem}", directory.display())
            });
            if !cage.places.iter().any(|(known, _)| *known == directory) {
                cage.places.push((directory.clone(), hierarchy.current()));
            }
            put(
                &directory.join(if hierarchy.unified { v2 } else { v1 }),
                value,
            );
            if hierarchy.unified
                && controller == "memory"
                && directory.join("memory.swap.max").exists()
            {
                put(&directory.join("memory.swap.max"), 0);
            }
        }
        for (directory, _) in &cage.places {
            put(&directory.join("cgroup.procs"), std::process::id());
        }
        cage
    }

    /// The cage's directories: one on cgroup v2, one for each controller on v1.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|(cage, _)| cage.as_path())
    }

    /// A small file system of its own in a new directory `disk` of `scratch`, so that filling it fills nothing else.
    pub fn disk(scratch: &Path, bytes: u64) -> Disk {
        Disk::new(scratch, bytes)
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        for (cage, before) in &self.places {
            let mut patience = 500;
            // What a test left in there goes where the test came from; a process that ends meanwhile is no failure.
            while patience > 0 && fs::remove_dir(cage).is_err() {
                patience -= 1;
                for pid in fs::read_to_string(cage.join("cgroup.procs"))
                    .unwrap_or_default()
                    .lines()
                {
                    let _ = fs::write(before.join("cgroup.procs"), pid);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Where a controller is.
struct Hierarchy {
    root: PathBuf,
    unified: bool,
    controller: &'static str,
}

impl Hierarchy {
    fn with(controller: &'static str) -> Self {
        let mounts = mounts();
        let v1 = mounts.iter().find(|mount| {
            mount.kind == "cgroup"
                && mount
                    .super_options
                    .split(',')
                    .any(|word| word == controller)
        });
        if let Some(mount) = v1 {
            return Self {
                root: mount.point.clone(),
                unified: false,
                controller,
            };
        }
        let v2 = mounts
            .iter()
            .find(|mount| mount.kind == "cgroup2")
            .map(|mount| mount.point.clone());
        let root =
            v2.unwrap_or_else(|| panic!("no cgroup hierarchy has the controller {controller}"));
        put(
            &root.join("cgroup.subtree_control"),
            format!("+{controller}"),
        );
        Self {
            root,
            unified: true,
            controller,
        }
    }

    /// The cgroup that this process is in.
    fn current(&self) -> PathBuf {
        let text = fs::read_to_string("/proc/self/cgroup").expect("/proc is mounted");
        let path = text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let ours = if self.unified {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|word| word == self.controller)
            };
            ours.then(|| path.trim_start_matches('/'))
        });
        self.root.join(path.unwrap_or_default())
    }
}

fn put(file: &Path, value: impl std::fmt::Display) {
    fs::write(file, value.to_string())
        .unwrap_or_else(|problem| panic!("{}: {problem}", file.display()));
}

/// Removes cages whose test is dead.
fn remove_dead(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir(entry.path());
        }
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

    /// Where it is mounted.
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
            wait_for("the disk to be unmounted", Duration::from_secs(5), || {
                !mounts().iter().any(|mount| mount.point == point)
            });
        }
    }
}

#[track_caller]
fn sound(command: &mut Command) {
    let output = run(command);
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
