//! A15: attempts to reach and change the sandbox's own cgroup limits.

use std::fs;

use super::Nook;
use crate::sys::{Errno, c_path, text};
use crate::{Args, Command, Outcome, mountinfo, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::inside(
    "a15-cgroup",
    "(finds, mounts and opens cgroups)",
    reach,
)];

const FILES: [&str; 12] = [
    "release_agent",
    "notify_on_release",
    "cgroup.procs",
    "cgroup.subtree_control",
    "tasks",
    "memory.max",
    "memory.limit_in_bytes",
    "pids.max",
    "cpu.max",
    "cpu.cfs_quota_us",
    "devices.allow",
    "cgroup.freeze",
];

/// Opens the limit files in a directory for writing and prints their number and the results.
fn try_files(directory: &str) {
    for name in FILES {
        let path = format!("{directory}/{name}");
        match sys::open(&path, 1) {
            Ok(_) => out::ok(&format!("open-write:{path}"), ""),
            Err(Errno(2)) => {}
            Err(errno) => out::refused(&format!("open-write:{path}"), errno, ""),
        }
    }
    let child = format!("{directory}/probe");
    match fs::create_dir(&child) {
        Ok(()) => {
            out::ok(&format!("mkdir:{child}"), "");
            let _ = fs::remove_dir(&child);
        }
        Err(problem) => out::refused(&format!("mkdir:{child}"), Errno::of(&problem), ""),
    }
}

fn reach(_: &Args) -> Outcome {
    match fs::read_to_string("/proc/self/cgroup") {
        Ok(text) => text.lines().for_each(|line| out::ok("self", line)),
        Err(problem) => out::refused("self", Errno::of(&problem), ""),
    }
    for mount in mountinfo::mounts() {
        if mount.kind.starts_with("cgroup") {
            let point = mount.point.display().to_string();
            out::ok(
                &format!("mounted:{point}"),
                &format!(
                    "{} {} root={}",
                    mount.kind,
                    mount.options,
                    mount.root.display()
                ),
            );
            try_files(&point);
        }
    }
    for directory in [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/pids",
        "/sys/fs/cgroup/unified",
    ] {
        try_files(directory);
    }
    let nook = Nook::new();
    let place = nook
        .as_ref()
        .map_or_else(|| "/".to_owned(), |nook| nook.0.display().to_string());
    let target = c_path(&place);
    for (kind, options) in [
        (c"cgroup2", c""),
        (c"cgroup", c"memory"),
        (c"cgroup", c"pids"),
        (c"cgroup", c"rdma"),
        (c"cgroup", c"none,name=probe"),
        (c"cgroup", c"none,name=systemd"),
    ] {
        let what = format!(
            "mount:{}:{}",
            kind.to_string_lossy(),
            options.to_string_lossy()
        );
        let words = [text(c"none"), text(&target), text(kind), 0, text(options)];
        if out::attempt(&what, sys::call(nr::MOUNT, &words)) {
            try_files(&place);
            let _ = sys::call(nr::UMOUNT2, &[text(&target), 2]);
        }
    }
    Ok(0)
}
