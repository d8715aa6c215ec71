//! From what is asked for and what the host can do to what will be done: pure, so that every
//! decision about isolation can be read in a snapshot and taken away one by one in a test.
//!
//! `plan` decides; [`crate::cgroup`], [`crate::rootfs`], [`crate::keeper`] and PID 1 carry out and
//! decide nothing. A host that lacks something gets [`Error::Unsupported`], never less isolation.

mod view;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::facts::Facts;
use crate::seccomp::{self, Policy};
use crate::wire::{self, Boot, Mount, Source, User};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The sandbox's id; also its host name and the name of its cgroups.
    pub id: String,
    /// Its range of ids on the host.
    pub ids: IdRange,
    /// Processor time in thousandths of a processor.
    pub millicpus: u32,
    /// Memory in bytes, swap included.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u32,
    /// The template's user.
    pub user: User,
    /// setuid programs work (they gain root of the sandbox at most).
    pub sudo: bool,
    /// The sandbox may make user namespaces of its own.
    pub nested_user_namespaces: bool,
    /// Files and directories of the host to show, read-only: source and target.
    pub host_mounts: Vec<(PathBuf, String)>,
    /// What tells this boot of it from every other: a UUID.
    pub boot: String,
}

/// A range of user and group ids on the host; 0 inside is `base` outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first.
    pub base: u32,
    /// How many.
    pub count: u32,
}

/// What will be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sandbox's range of ids.
    pub ids: IdRange,
    /// `CLONE_NEW*` flags PID 1 is cloned with.
    pub namespaces: u64,
    /// Limits, as files of control groups.
    pub limits: Limits,
    /// The root cannot raise privileges by setuid programs.
    pub nosuid: bool,
    /// How the root's layers are given to the kernel.
    pub layers: Layers,
    /// The system call policy; `None` for none.
    pub policy: Option<Policy>,
    /// What PID 1 does. Its filters are filled in from the policy by [`Plan::boot`].
    pub inside: Boot,
}

/// How layers are given to an overlay. What is mounted is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// As mounts that are attached nowhere: nothing is to be taken back.
    Detached,
    /// Attached for a moment in a mount namespace that nobody else sees.
    Attached,
}

/// Files to write in the sandbox's control groups: name and value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// By v1 controller.
    pub v1: Vec<(String, Vec<(String, String)>)>,
    /// In cgroup2.
    pub v2: Vec<(String, String)>,
}

/// Capabilities a sandbox's root keeps, in its own user namespace: what apt-get, sudo, chown,
/// servers on low ports, gdb and strace need.
pub const CAPABILITIES: [(&str, u8); 12] = [
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("FOWNER", 3),
    ("FSETID", 4),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
    ("SETPCAP", 8),
    ("NET_BIND_SERVICE", 10),
    ("SYS_PTRACE", 19),
    ("AUDIT_WRITE", 29),
    ("SETFCAP", 31),
];

const NOSUID: u32 = libc::MOUNT_ATTR_NOSUID as u32;
const NODEV: u32 = libc::MOUNT_ATTR_NODEV as u32;
const NOEXEC: u32 = libc::MOUNT_ATTR_NOEXEC as u32;
const READ_ONLY: u32 = libc::MOUNT_ATTR_RDONLY as u32;

/// The oldest kernel that can mount overlay layers with mapped ids.
pub const OLDEST_KERNEL: (u32, u32) = (5, 19);
/// Capabilities of our own without which no sandbox can be made.
const NEEDED: [(&str, u8); 7] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_SETPCAP", 8),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_MKNOD", 27),
];

/// Decides how a sandbox is made on this host.
pub fn plan(spec: &Spec, facts: &Facts) -> Result<Plan, Error> {
    require(facts)?;
    let mut policy = Policy::standard();
    if spec.nested_user_namespaces {
        policy.allow_user_namespaces();
    }
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS;
    let processors = processors(spec, facts);
    let count = if processors.is_empty() {
        facts.processors.len()
    } else {
        processors.len()
    };
    Ok(Plan {
        ids: spec.ids,
        namespaces: namespaces as u64,
        limits: limits(spec, facts)?,
        nosuid: !spec.sudo,
        layers: if facts.detached_layers {
            Layers::Detached
        } else {
            Layers::Attached
        },
        policy: Some(policy),
        inside: Boot {
            hostname: spec.id.clone(),
            sandbox: spec.id.clone(),
            views: views(spec, count),
            mounts: mounts(spec, facts),
            capabilities: CAPABILITIES.iter().map(|(_, bit)| 1 << bit).sum(),
            no_new_privs: !spec.sudo,
            filter: Vec::new(),
            processors,
            open_files: (facts.open_files.min(1024), facts.open_files.min(1 << 20)),
            loopback: true,
            cgroup_namespace: true,
            close_descriptors: true,
            user: spec.user.clone(),
        },
    })
}

/// The sandbox's file systems in memory, and how big they may become: together less than its memory, so that whoever fills
/// them is told that they are full, and not killed.
#[must_use]
pub fn in_memory(memory: u64) -> [(&'static str, u64); 2] {
    [("/dev/shm", memory / 2), ("/run", memory / 4)]
}

/// What follows from how much a sandbox may use, and can be changed while it runs. How big its file systems
/// in memory are is not among it: they stay as they are when the first program runs, and count for its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// Limits, as files of control groups.
    pub limits: Limits,
    views: Vec<(String, String)>,
    processors: Vec<u32>,
}

/// Decides the same of a size as [`plan`] does.
pub fn size(spec: &Spec, facts: &Facts) -> Result<Size, Error> {
    let mut processors = processors(spec, facts);
    if processors.is_empty() {
        processors.clone_from(&facts.processors);
    }
    Ok(Size {
        limits: limits(spec, facts)?,
        views: view::views(spec, processors.len()),
        processors,
    })
}

impl Size {
    /// What programs of a sandbox that had another size are told.
    pub fn since(&self, old: &Self) -> wire::Size {
        let views = self.views.iter().filter(|view| !old.views.contains(view));
        wire::Size {
            views: views.cloned().collect(),
            processors: self.processors.clone(),
        }
    }
}

impl Plan {
    /// The part for PID 1, with its filter compiled.
    pub fn boot(&self) -> Boot {
        let mut boot = self.inside.clone();
        if let Some(policy) = &self.policy {
            boot.filter = compiled(policy);
        }
        boot
    }
}

/// A policy's filter. Nearly all sandboxes have the same one, so the last is remembered.
fn compiled(policy: &Policy) -> Vec<u8> {
    static LAST: Mutex<Option<(Policy, Vec<u8>)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, filter)) = &*last
        && known == policy
    {
        return filter.clone();
    }
    let filter = seccomp::to_bytes(&policy.compile());
    *last = Some((policy.clone(), filter.clone()));
    filter
}

/// Refuses a host that cannot isolate, and says what would help.
pub fn require(facts: &Facts) -> Result<(), Error> {
    let unsupported = |feature, why: String, remedy| {
        Err(Error::Unsupported {
            feature,
            why,
            remedy,
        })
    };
    if !facts.root {
        return unsupported(
            "sandboxes without root",
            "this process is not root of the initial user namespace".into(),
            "run atoll as root (rootless mode is not there yet)",
        );
    }
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(_, bit)| facts.capabilities & (1 << bit) == 0)
        .map(|(name, _)| *name)
        .collect();
    if !missing.is_empty() {
        return unsupported(
            "privileged set-up",
            format!("this process lacks {}", missing.join(", ")),
            "run atoll as root outside of other containers, or give it these capabilities",
        );
    }
    if facts.kernel < OLDEST_KERNEL {
        return unsupported(
            "id-mapped overlay layers",
            format!("Linux {} is older than 5.19", facts.release),
            "boot a newer kernel",
        );
    }
    if !facts.user_namespaces {
        return unsupported(
            "user namespaces",
            "user.max_user_namespaces is 0".into(),
            "set it with: sysctl user.max_user_namespaces=65536",
        );
    }
    if !facts.seccomp {
        return unsupported(
            "system call filters",
            "the kernel has no seccomp".into(),
            "boot a kernel with CONFIG_SECCOMP_FILTER",
        );
    }
    for kind in ["overlay", "tmpfs", "devpts", "proc"] {
        if !facts.filesystems.iter().any(|known| known == kind) {
            return unsupported(
                "overlay root file systems",
                format!("the kernel does not know the file system {kind}"),
                "load its module, for example: modprobe overlay",
            );
        }
    }
    Ok(())
}

/// Limits as cgroup files, in whichever hierarchy has each controller.
fn limits(spec: &Spec, facts: &Facts) -> Result<Limits, Error> {
    let cgroups = &facts.cgroups;
    if cgroups.v2.is_none() {
        return Err(Error::Unsupported {
            feature: "control groups",
            why: "no cgroup2 hierarchy is mounted".into(),
            remedy: "mount one: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
        });
    }
    let mut limits = Limits::default();
    // A ceiling above the roof is none, and keeping accounts of it costs time.
    let unbounded = spec.millicpus as usize >= facts.processors.len() * 1000;
    let file = |name: &str, value: String| (name.to_owned(), value);
    for controller in crate::facts::CONTROLLERS {
        if cgroups.v1.contains_key(controller) {
            let mut files = match controller {
                "cpu" if unbounded => Vec::new(),
                "cpu" => vec![
                    file("cpu.cfs_period_us", "100000".into()),
                    file(
                        "cpu.cfs_quota_us",
                        (u64::from(spec.millicpus) * 100).to_string(),
                    ),
                ],
                "memory" => vec![file("memory.limit_in_bytes", spec.memory.to_string())],
                _ => vec![file("pids.max", spec.pids.to_string())],
            };
            if controller == "memory" && cgroups.swap {
                files.push(file("memory.memsw.limit_in_bytes", spec.memory.to_string()));
            }
            limits.v1.push((controller.into(), files));
        } else if cgroups
            .v2_controllers
            .iter()
            .any(|known| known == controller)
        {
            match controller {
                "cpu" if unbounded => {}
                "cpu" => limits.v2.push(file(
                    "cpu.max",
                    format!("{} 100000", u64::from(spec.millicpus) * 100),
                )),
                "memory" => {
                    limits.v2.push(file("memory.max", spec.memory.to_string()));
                    if cgroups.swap {
                        limits.v2.push(file("memory.swap.max", "0".into()));
                    }
                }
                _ => limits.v2.push(file("pids.max", spec.pids.to_string())),
            }
        } else {
            return Err(Error::Unsupported {
                feature: "control groups",
                why: format!("no hierarchy has the {controller} controller"),
                remedy: "enable the controller on the kernel command line (cgroup_enable=NAME)",
            });
        }
    }
    Ok(limits)
}

/// So many processors as the quota can use, spread over the host by the id range; empty for all.
fn processors(spec: &Spec, facts: &Facts) -> Vec<u32> {
    let wanted = spec.millicpus.div_ceil(1000).max(1) as usize;
    let all = &facts.processors;
    if wanted >= all.len() {
        return Vec::new();
    }
    let first = (spec.ids.base / spec.ids.count.max(1)) as usize * wanted;
    let mut chosen: Vec<u32> = (0..wanted).map(|n| all[(first + n) % all.len()]).collect();
    chosen.sort_unstable();
    chosen
}

/// Those that follow from the size, and the one that does not.
fn views(spec: &Spec, processors: usize) -> Vec<(String, String)> {
    let mut views = view::views(spec, processors);
    views.push(("boot_id".into(), format!("{}\n", spec.boot)));
    views
}

fn mounts(spec: &Spec, facts: &Facts) -> Vec<Mount> {
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
