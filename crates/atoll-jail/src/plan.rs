//! Plans a sandbox from a spec and the facts of the host: a pure function, so that every
//! decision about isolation can be read in a snapshot and taken away one by one in a test.
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
    pub policy: Option<SyscallPolicy>,
    /// What PID 1 does. Its filters are filled in from the policy by [`Plan::boot`].
    pub inside: Boot,
}

/// How layers are given to an overlay. What is mounted is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// As mounts that are attached nowhere: nothing is to be taken back.
    Detached,
    /// Attached for a moment in a private mount namespace.
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

/// Decides how a sandbox is made on this host.
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

/// Those that follow from the size, and the one that does not.
fn views(spec: &Spec, processors: usize) -> Vec<(String, String)> {
    let mut views = view::views(spec, processors);
    views.push(("boot_id".into(), format!("{}\n", spec.boot)));
    views
}
