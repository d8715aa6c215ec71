//! Plans a sandbox from a spec and the facts of the host: a pure function, so that every
//! decision about isolation is visible in a snapshot and can be removed one by one in a test.
//!
//! `plan` decides; [`crate::cgroup`], [`crate::rootfs`], [`crate::keeper`] and PID 1 carry out and
//! decide nothing. A host that lacks something gets [`Error::Unsupported`], never less isolation.

mod mounts;
mod require;
mod size;
mod view;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::facts::Facts;
use crate::seccomp::{self, SyscallPolicy};
use crate::wire::{Boot, User};
pub use mounts::in_memory;
use mounts::mounts;
pub use require::{OLDEST_KERNEL, require};
pub use size::{Limits, Size, size};
use size::{limits, processors};

/// The requested sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The sandbox's id; also its host name and the name of its cgroups.
    pub id: String,
    /// Range of ids on the host.
    pub ids: IdRange,
    /// Processor time in thousandths of a processor.
    pub millicpus: u32,
    /// Memory in bytes, swap included.
    pub memory: u64,
    /// Maximum number of processes and threads.
    pub pids: u32,
    /// The template's user.
    pub user: User,
    /// Whether setuid programs work (they gain root of the sandbox at most).
    pub sudo: bool,
    /// Whether the sandbox may create user namespaces.
    pub nested_user_namespaces: bool,
    /// Files and directories of the host to mount read-only: source and target.
    pub host_mounts: Vec<(PathBuf, String)>,
    /// UUID of this boot, for `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
}

/// A range of user and group ids on the host; 0 inside is `base` outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// First id.
    pub base: u32,
    /// Number of ids.
    pub count: u32,
}

/// The plan of a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Range of ids on the host.
    pub ids: IdRange,
    /// `CLONE_NEW*` flags PID 1 is cloned with.
    pub namespaces: u64,
    /// Limits as cgroup files.
    pub limits: Limits,
    /// Whether the root is mounted `nosuid`.
    pub nosuid: bool,
    /// How the layers of the root are passed to the kernel.
    pub layers: Layers,
    /// The system call policy; `None` for none.
    pub policy: Option<SyscallPolicy>,
    /// Configuration of PID 1. [`Plan::boot`] adds the filter of the policy.
    pub inside: Boot,
}

/// How layers are passed to an overlay. The resulting mount is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// As detached mounts.
    Detached,
    /// Attached temporarily in a private mount namespace.
    Attached,
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

/// Plans a sandbox on this host.
pub fn plan(spec: &Spec, facts: &Facts) -> Result<Plan, Error> {
    require(facts)?;
    let mut policy = SyscallPolicy::standard();
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

impl Plan {
    /// The part for PID 1, with the compiled filter.
    pub fn boot(&self) -> Boot {
        let mut boot = self.inside.clone();
        if let Some(policy) = &self.policy {
            boot.filter = compiled(policy);
        }
        boot
    }
}

/// Compiled filter of a policy. Nearly all sandboxes have the same policy, so the last filter is cached.
fn compiled(policy: &SyscallPolicy) -> Vec<u8> {
    static LAST: Mutex<Option<(SyscallPolicy, Vec<u8>)>> = Mutex::new(None);
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

/// All views: those that depend on the size, and `boot_id`.
fn views(spec: &Spec, processors: usize) -> Vec<(String, String)> {
    let mut views = view::views(spec, processors);
    views.push(("boot_id".into(), format!("{}\n", spec.boot)));
    views
}
