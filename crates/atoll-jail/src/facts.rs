//! Features of this host, read once: [`crate::plan`] makes no system calls.
//!
//! A fact is reported by the kernel. Whether the features also work together is tested by `atoll doctor`, which creates a
//! sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Paths of `/proc` that are hidden from a sandbox where the host has them.
pub const HIDDEN: [&str; 17] = [
    "acpi",
    "asound",
    "bus",
    "config.gz",
    "driver",
    "dynamic_debug",
    "fs",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "latency_stats",
    "modules",
    "sched_debug",
    "scsi",
    "timer_list",
];
/// Paths of `/proc` that a sandbox may read and not write.
pub const READ_ONLY: [&str; 3] = ["pressure", "sys", "sysrq-trigger"];

/// The first kernel whose overlays accept detached layers. On older kernels, with or without a backport, attached layers
/// work.
const DETACHED_LAYERS: (u32, u32) = (6, 15);

/// Features of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Major and minor version of the kernel.
    pub kernel: (u32, u32),
    /// The complete release, for messages.
    pub release: String,
    /// Whether this process is root in the initial user namespace.
    pub root: bool,
    /// Our effective capabilities.
    pub capabilities: u64,
    /// Processors we may run on.
    pub processors: Vec<u32>,
    /// Physical memory in bytes.
    pub memory: u64,
    /// Whether user namespaces can be created.
    pub user_namespaces: bool,
    /// File systems the kernel knows.
    pub filesystems: Vec<String>,
    /// Whether an overlay accepts detached layers.
    pub detached_layers: bool,
    /// System call filters are supported.
    pub seccomp: bool,
    /// The control group hierarchies.
    pub cgroups: Cgroups,
    /// Paths of [`HIDDEN`] and [`READ_ONLY`] that exist; directories end in `/`.
    pub proc_paths: Vec<String>,
    /// Hard limit of open files of this process.
    pub open_files: u64,
}

/// The control group hierarchies of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cgroups {
    /// Where each v1 controller of interest is mounted.
    pub v1: BTreeMap<String, PathBuf>,
    /// Where cgroup2 is mounted.
    pub v2: Option<PathBuf>,
    /// The controllers cgroup2 has.
    pub v2_controllers: Vec<String>,
    /// Memory limits can include swap.
    pub swap: bool,
}

/// The controllers we use.
pub const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

impl Facts {
    /// Reads the facts of the host.
    pub fn read() -> Self {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let capabilities = field(&status, "CapEff:")
            .and_then(|text| u64::from_str_radix(text, 16).ok())
            .unwrap_or(0);
        // In the initial user namespace, and only there, all ids are mapped to themselves.
        let initial = fs::read_to_string("/proc/self/uid_map")
            .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
        let kernel = version(&release);
        Self {
            kernel,
            release,
            root: initial && rustix::process::geteuid().is_root(),
            capabilities,
            processors: field(&status, "Cpus_allowed_list:")
                .map(processors)
                .unwrap_or_default(),
            memory: fs::read_to_string("/proc/meminfo")
                .ok()
                .as_deref()
                .and_then(|text| field(text, "MemTotal:"))
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                * 1024,
            user_namespaces: fs::read_to_string("/proc/sys/user/max_user_namespaces")
                .is_ok_and(|text| text.trim().parse::<u64>().is_ok_and(|most| most > 0)),
            filesystems: fs::read_to_string("/proc/filesystems")
                .unwrap_or_default()
                .lines()
                .filter_map(|line| line.split_whitespace().last())
                .map(String::from)
                .collect(),
            detached_layers: kernel >= DETACHED_LAYERS,
            seccomp: field(&status, "Seccomp:").is_some(),
            cgroups: Cgroups::read(),
            proc_paths: HIDDEN
                .iter()
                .chain(&READ_ONLY)
                .filter_map(|name| {
                    let found = fs::symlink_metadata(format!("/proc/{name}")).ok()?;
                    Some(format!("{name}{}", if found.is_dir() { "/" } else { "" }))
                })
                .collect(),
            open_files: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .maximum
                .unwrap_or(1 << 20),
        }
    }
}

impl Cgroups {
    fn read() -> Self {
        let mut found = Self::default();
        for line in fs::read_to_string("/proc/self/mounts")
            .unwrap_or_default()
            .lines()
        {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, target, kind, options, ..] = fields[..] else {
                continue;
            };
            match kind {
                "cgroup2" if found.v2.is_none() => found.v2 = Some(target.into()),
                "cgroup" => {
                    for option in options
                        .split(',')
                        .filter(|option| CONTROLLERS.contains(option))
                    {
                        found
                            .v1
                            .entry(option.into())
                            .or_insert_with(|| target.into());
                    }
                }
                _ => {}
            }
        }
        if let Some(v2) = &found.v2 {
            found.v2_controllers = fs::read_to_string(v2.join("cgroup.controllers"))
                .unwrap_or_default()
                .split_whitespace()
                .map(String::from)
                .collect();
        }
        found.swap = match found.v1.get("memory") {
            Some(v1) => v1.join("memory.memsw.limit_in_bytes").exists(),
            None => found.v2.as_ref().is_some_and(|v2| has_swap_limits(v2)),
        };
        found
    }
}

/// Whether memory limits include swap. The root of cgroup2 has no limit files, so a child is examined. If no child has
/// memory limits yet, the answer is whether the kernel supports swap.
fn has_swap_limits(v2: &Path) -> bool {
    let children = || {
        let entries = fs::read_dir(v2).into_iter().flatten().flatten();
        entries.map(|child| child.path())
    };
    if children().any(|child| child.join("memory.max").exists()) {
        children().any(|child| child.join("memory.swap.max").exists())
    } else {
        Path::new("/proc/swaps").exists()
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// `0-2,5` as numbers.
fn processors(list: &str) -> Vec<u32> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_and_kernel_releases_parse() {
        assert_eq!(processors("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(processors(""), []);
        assert_eq!(version("6.1.0-25-amd64"), (6, 1));
        assert_eq!(version("6.18.44-fc-v445"), (6, 18));
    }
}
