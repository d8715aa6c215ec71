//! The sandbox's system call policy as data, and its way into the kernel as a filter.
//!
//! ```text
//! table ─┐
//!        ├─> SyscallPolicy ─> compile ─> program ─ message ─> PID 1: for_init, install   (once, inherited by all)
//! rules ─┘
//! ```
//!
//! Invariant: only listed calls of the native ABI pass; a known call that is refused answers `EPERM` (or what a kernel
//! without it would say), an unknown number or a foreign ABI `ENOSYS`. The filter never kills: a program that is refused
//! can say so. It is the second wall, behind namespaces and capabilities, and looks at registers only: what a pointer
//! points at may change after the look. That is why `clone3` answers `ENOSYS`, and the C library falls back to `clone`,
//! whose flags are in a register. PID 1, which needs it, has a cookie (`for_init`).

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the system call policy knows x86-64 and aarch64 only");

mod conditions;
mod program;
mod rule;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::program::{Instruction, from_bytes, install, to_bytes};
use self::rule::SyscallRule;
use self::table::{Call, TABLE};

/// What each system call may do in a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SyscallPolicy {
    /// By number. The numbers that are not here answer `ENOSYS`.
    rules: BTreeMap<u32, SyscallRule>,
}

/// What `bwrap` and other makers of sandboxes need: the namespaces and the mounts in them.
const NESTING: &[&str] = &[
    "chroot",
    "clone",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "pivot_root",
    "setdomainname",
    "sethostname",
    "setns",
    "umount2",
    "unshare",
];

impl SyscallPolicy {
    /// The policy of a sandbox whose template asks for nothing special.
    pub fn standard() -> SyscallPolicy {
        let rules = TABLE
            .iter()
            .flat_map(|(rule, calls)| calls.iter().map(|call| (call.number, *rule)))
            .collect();
        SyscallPolicy { rules }
    }

    /// A template's wish: sandboxes within the sandbox. It opens much of the kernel that only a root in a namespace of
    /// its own can reach. `clone3` stays away, its users fall back to `clone`.
    pub fn allow_user_namespaces(&mut self) {
        for name in NESTING {
            self.allow(name);
        }
    }

    /// Lifts all that is held against one call, conditions on its arguments too; `false` if there is no such call.
    /// Attack tests use it to show that a probe fails because of this line and not by accident.
    pub fn allow(&mut self, name: &str) -> bool {
        let Some(call) = calls().find(|call| call.name == name) else {
            return false;
        };
        self.rules.insert(call.number, SyscallRule::ALLOW);
        true
    }

    /// The policy for a reader, a line a call, by name.
    pub fn lines(&self) -> Vec<String> {
        let name = |number| syscall_name(number).map_or_else(|| format!("{number}"), str::to_owned);
        let mut lines: Vec<_> = self
            .rules
            .iter()
            .map(|(&number, rule)| format!("{} {rule}", name(number)))
            .collect();
        lines.sort();
        lines.push("(any other number, any other ABI) ENOSYS".to_owned());
        lines
    }

    /// The filter that PID 1 installs.
    pub fn compile(&self) -> Vec<Instruction> {
        program::compile(&self.rules)
    }
}

/// What PID 1 passes in the third and fourth argument register of `clone3`.
pub(crate) type Clone3Cookie = [u64; 2];

/// The filter with an exception for PID 1: `clone3` passes with the cookie. No process inside can read the memory of PID 1
/// or of its helpers, or the filter.
pub(crate) fn for_init(filter: &[Instruction], cookie: &Clone3Cookie) -> Vec<Instruction> {
    program::with_cookie(filter, libc::SYS_clone3 as u32, cookie)
}

/// The name of a system call of this architecture.
pub fn syscall_name(number: u32) -> Option<&'static str> {
    calls()
        .find(|call| call.number == number)
        .map(|call| call.name)
}

fn calls() -> impl Iterator<Item = &'static Call> {
    TABLE.iter().flat_map(|(_, calls)| *calls)
}
