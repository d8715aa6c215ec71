//! Mounts of a sandbox.

use super::{Spec, view};
use crate::facts::Facts;
use crate::wire::{Mount, Source};

pub(super) const NOSUID: u32 = libc::MOUNT_ATTR_NOSUID as u32;
pub(super) const NODEV: u32 = libc::MOUNT_ATTR_NODEV as u32;
pub(super) const NOEXEC: u32 = libc::MOUNT_ATTR_NOEXEC as u32;
pub(super) const READ_ONLY: u32 = libc::MOUNT_ATTR_RDONLY as u32;

/// The sandbox's tmpfs mounts and their sizes in bytes: together less than its memory, so that filling
/// them fails with `ENOSPC` instead of an OOM kill.
#[must_use]
pub fn in_memory(memory: u64) -> [(&'static str, u64); 2] {
    [("/dev/shm", memory / 2), ("/run", memory / 4)]
}

/// All mounts, in order.
pub(super) fn mounts(spec: &Spec, facts: &Facts) -> Vec<Mount> {
    let mount = |source, target: &str, attributes| Mount {
        source,
        target: target.into(),
        attributes,
    };
    let view = |path: &str| Source::View { path: path.into() };
    let new = |kind: &str, options: &[(&str, &str)]| Source::New {
        kind: kind.into(),
        options: options
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
    };
    let [(shared, half), (run, quarter)] = in_memory(spec.memory);
    let (half, quarter) = (half.to_string(), quarter.to_string());
    let mut mounts = vec![
        mount(new("proc", &[]), "/proc", NOSUID | NODEV | NOEXEC),
        mount(Source::Devices, "/dev", NOSUID | NOEXEC | READ_ONLY),
        mount(Source::Terminals, "/dev/pts", NOSUID | NOEXEC),
        mount(
            new(
                "tmpfs",
                &[("mode", "1777"), ("size", &half), ("nr_inodes", "65536")],
            ),
            shared,
            NOSUID | NODEV,
        ),
        mount(new("mqueue", &[]), "/dev/mqueue", NOSUID | NODEV | NOEXEC),
        mount(
            new(
                "tmpfs",
                &[("mode", "0755"), ("size", &quarter), ("nr_inodes", "65536")],
            ),
            run,
            NOSUID | NODEV,
        ),
        mount(
            Source::View { path: "sys".into() },
            "/sys",
            NOSUID | NODEV | NOEXEC | READ_ONLY,
        ),
    ];
    for path in &facts.proc_paths {
        let name = path.trim_end_matches('/');
        let target = format!("/proc/{name}");
        let source = match (crate::facts::HIDDEN.contains(&name), path.ends_with('/')) {
            (false, _) => Source::Again,
            (true, true) => view(view::EMPTY_DIRECTORY),
            (true, false) => view(view::EMPTY_FILE),
        };
        mounts.push(mount(source, &target, NOSUID | NODEV | NOEXEC | READ_ONLY));
    }
    for (path, target) in [
        ("meminfo", "/proc/meminfo"),
        ("boot_id", "/proc/sys/kernel/random/boot_id"),
    ] {
        let attributes = NOSUID | NODEV | NOEXEC | READ_ONLY;
        mounts.push(mount(view(path), target, attributes));
    }
    for (source, target) in &spec.host_mounts {
        let source = Source::Handed {
            path: source.to_string_lossy().into_owned(),
        };
        mounts.push(mount(source, target, NOSUID | NODEV | READ_ONLY));
    }
    mounts
}
