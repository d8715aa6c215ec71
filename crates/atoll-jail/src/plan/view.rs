//! Views: small files that show programs the limits of the sandbox instead of the size of the host.

use std::fmt::Write as _;

use super::Spec;

/// An empty file, mounted over files that must not be readable.
pub(super) const EMPTY_FILE: &str = "empty/file";
/// An empty directory, mounted over directories that must not be readable.
pub(super) const EMPTY_DIRECTORY: &str = "empty/directory/";

/// Path and contents of each view: `meminfo` for `/proc`, and a replacement of `/sys` with the few files that programs
/// read. `processors` is the number of processors that the sandbox may use.
pub(super) fn views(spec: &Spec, processors: usize) -> Vec<(String, String)> {
    let online = match processors {
        0 | 1 => "0\n".to_owned(),
        n => format!("0-{}\n", n - 1),
    };
    let file = |path: &str, contents: String| (path.to_owned(), contents);
    vec![
        file(EMPTY_FILE, String::new()),
        file(EMPTY_DIRECTORY, String::new()),
        file("meminfo", meminfo(spec.memory)),
        file("sys/devices/system/cpu/online", online.clone()),
        file("sys/devices/system/cpu/possible", online.clone()),
        file("sys/devices/system/cpu/present", online),
        file(
            "sys/fs/cgroup/cpu.max",
            format!("{} 100000\n", u64::from(spec.millicpus) * 100),
        ),
        file("sys/fs/cgroup/memory.max", format!("{}\n", spec.memory)),
        file("sys/fs/cgroup/pids.max", format!("{}\n", spec.pids)),
        file(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n".into(),
        ),
    ]
}

/// `/proc/meminfo` of a machine with this much memory, all of it free, and without swap.
fn meminfo(memory: u64) -> String {
    let mut text = String::new();
    for (name, bytes) in [
        ("MemTotal", memory),
        ("MemFree", memory),
        ("MemAvailable", memory),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
    ] {
        let _ = writeln!(text, "{:<16}{:>8} kB", format!("{name}:"), bytes / 1024);
    }
    text
}
