//! A07, A08: every writable file of `/proc` and `/sys`, and those that must not be readable.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::sys::{Errno, fd, open, slice};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::inside(
        "a07-write",
        "(opens every file of /proc and /sys for writing)",
        write,
    ),
    Command::new("a08-read", "[PATH]… (secret paths)", read),
];

const O_WRONLY: u64 = 1;
const O_NONBLOCK: u64 = 0o4_000;
const O_NOFOLLOW: u64 = 0o400_000;

const SECRETS: [&str; 30] = [
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/keys",
    "/proc/key-users",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/kmsg",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/kpagecgroup",
    "/proc/sysrq-trigger",
    "/proc/vmallocinfo",
    "/proc/slabinfo",
    "/proc/pagetypeinfo",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/interrupts",
    "/proc/modules",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/asound",
    "/proc/fs",
    "/sys/firmware",
    "/sys/class/dmi",
    "/sys/kernel",
    "/sys/module",
    "/sys/devices/virtual/powercap",
    "/dev/mem",
];

/// Writing these back would do something although the value is the same.
const DO_NOT_WRITE: [&str; 5] = [
    "drop_caches",
    "compact_memory",
    "stats_clear",
    "ns_last_pid",
    "cad_pid",
];

/// Whether to write the current contents back. Only sysctls and similar files do not change by that: elsewhere a
/// write has an effect (`driver_override` reads `(null)` and takes that for a name).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    Write,
    OpenOnly,
}

#[derive(Default)]
struct Tally {
    files: u64,
    opened: u64,
    refused: BTreeMap<Errno, u64>,
}

impl Tally {
    /// Opens for writing; on success writes the contents back, to distinguish a permission from a read-only mount.
    fn try_file(&mut self, path: &Path, back: Back) {
        self.files += 1;
        let file = match open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW) {
            Ok(file) => file,
            Err(errno) => {
                *self.refused.entry(errno).or_default() += 1;
                return;
            }
        };
        self.opened += 1;
        let acts = path
            .file_name()
            .is_some_and(|name| DO_NOT_WRITE.iter().any(|other| name == *other));
        let same = if back == Back::OpenOnly || acts {
            "untried".to_owned()
        } else {
            write_back(path, fd(&file))
        };
        out::ok(&format!("open:{}", path.display()), &format!("same={same}"));
    }

    fn walk(&mut self, path: &Path, back: Back, depth: u32) {
        let Ok(about) = fs::symlink_metadata(path) else {
            return;
        };
        if about.is_file() {
            self.try_file(path, back);
        } else if about.is_dir() && depth < 16 {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                self.walk(&entry.path(), back, depth + 1);
            }
        }
    }

    fn summary(&self, of: &str) {
        let refused: Vec<_> = self
            .refused
            .iter()
            .map(|(errno, count)| format!("{errno}:{count}"))
            .collect();
        let detail = format!(
            "files={} opened={} refused={}",
            self.files,
            self.opened,
            refused.join(",")
        );
        out::ok(&format!("summary:{of}"), &detail);
    }
}

/// `ok`, or the errno's name; a file with nothing to read is left alone.
fn write_back(path: &Path, file: u64) -> String {
    let mut value = [0_u8; 4096];
    match open(path, O_NONBLOCK | O_NOFOLLOW).and_then(|file| sys::read(fd(&file), &mut value)) {
        Ok(count @ 1..) => match sys::call(nr::WRITE, &[file, slice(&value), count as u64]) {
            Ok(_) => "ok".to_owned(),
            Err(errno) => errno.to_string(),
        },
        _ => "untried".to_owned(),
    }
}

fn write(_: &Args) -> Outcome {
    for (tree, back) in [("/proc/sys", Back::Write), ("/sys", Back::OpenOnly)] {
        let mut tally = Tally::default();
        tally.walk(Path::new(tree), back, 0);
        tally.summary(tree);
    }
    // The rest of /proc, without its processes.
    let mut tally = Tally::default();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name != "sys" && name.parse::<u32>().is_err() {
            tally.walk(&entry.path(), Back::OpenOnly, 1);
        }
    }
    tally.summary("/proc");
    let mut tally = Tally::default();
    for entry in fs::read_dir("/proc/1").into_iter().flatten().flatten() {
        let back = if entry.file_name() == "oom_score_adj" {
            Back::Write
        } else {
            Back::OpenOnly
        };
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            tally.try_file(&entry.path(), back);
        }
    }
    tally.summary("/proc/1");
    Ok(0)
}

/// Reads one byte of a file, or checks whether a directory is empty.
fn look(what: &str, path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|about| about.is_dir()) {
        out::answer(what, &fs::read_dir(path).map(Iterator::count), |count| {
            format!("directory entries={count}")
        });
        return;
    }
    let mut head = [0_u8; 64];
    match open(path, O_NONBLOCK).and_then(|file| sys::read(fd(&file), &mut head)) {
        Ok(0) => out::ok(what, "empty"),
        Ok(count) => out::ok(
            what,
            &format!(
                "data head={}",
                out::word(&head[..count].escape_ascii().to_string())
            ),
        ),
        Err(errno) => out::refused(what, errno, ""),
    }
}

/// Whether the paths that should be masked below a `/proc` are.
pub(super) fn masked(what: &str, proc: &Path) {
    for name in [
        "kcore",
        "kallsyms",
        "keys",
        "timer_list",
        "sysrq-trigger",
        "acpi",
        "irq",
        "scsi",
    ] {
        look(&format!("{what}:/proc/{name}"), &proc.join(name));
    }
    let core = proc.join("sys/kernel/core_pattern");
    match open(core, O_WRONLY) {
        Ok(_) => out::ok(&format!("{what}:open-write:core_pattern"), ""),
        Err(errno) => out::refused(&format!("{what}:open-write:core_pattern"), errno, ""),
    }
}

fn read(args: &Args) -> Outcome {
    for path in SECRETS {
        look(path, Path::new(path));
    }
    for path in args.all() {
        look(&path.to_string_lossy(), Path::new(path));
    }
    Ok(0)
}
