//! Rules for system calls, and their text form.
//!
//! All parts are `'static` data, so that a policy is `Copy`. A rule sees only the six argument registers and never follows
//! a pointer; therefore no rule can decide `clone3` by its flags.

use std::fmt;

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    Errno(i32),
}

/// The first case whose tests all hold decides; without one, `otherwise`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SyscallRule {
    pub(super) cases: &'static [Case],
    pub(super) otherwise: Verdict,
}

/// One branch of a rule.
#[derive(Debug, PartialEq)]
pub(super) struct Case {
    pub(super) tests: &'static [Test],
    pub(super) then: Verdict,
}

/// Holds if `argument & mask` is one of `any_of`.
///
/// The mask selects the bits that the kernel uses. The kernel truncates an `int` to the low half of the register, so a test of
/// an `int` must ignore the upper half: bits set there would bypass the test.
#[derive(Debug, PartialEq)]
pub(super) struct Test {
    /// Index of the argument, from 0.
    pub(super) argument: u8,
    pub(super) name: &'static str,
    pub(super) mask: Value,
    pub(super) any_of: &'static [Value],
}

/// A constant with its name in the headers.
#[derive(Debug, PartialEq)]
pub(super) struct Value {
    pub(super) number: u64,
    pub(super) name: &'static str,
}

/// The mask of an `int` compared whole.
pub(super) const INT: Value = Value {
    number: 0xffff_ffff,
    name: "",
};

impl SyscallRule {
    pub(super) const ALLOW: SyscallRule = SyscallRule::always(Verdict::Allow);

    pub(super) const fn always(verdict: Verdict) -> SyscallRule {
        SyscallRule {
            cases: &[],
            otherwise: verdict,
        }
    }
}

impl fmt::Display for SyscallRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in self.cases {
            for (index, test) in case.tests.iter().enumerate() {
                let word = if index == 0 { "if" } else { " and" };
                write!(out, "{word} {test}")?;
            }
            write!(out, ": {}; else ", case.then)?;
        }
        write!(out, "{}", self.otherwise)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.name)?;
        if self.mask != INT {
            write!(out, " & {}", self.mask.name)?;
        }
        let names: Vec<_> = self.any_of.iter().map(|value| value.name).collect();
        write!(out, " is {}", names.join("|"))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Allow => out.write_str("allow"),
            Verdict::Errno(libc::EPERM) => out.write_str("EPERM"),
            Verdict::Errno(libc::ENOSYS) => out.write_str("ENOSYS"),
            Verdict::Errno(libc::EAFNOSUPPORT) => out.write_str("EAFNOSUPPORT"),
            Verdict::Errno(libc::EPROTONOSUPPORT) => out.write_str("EPROTONOSUPPORT"),
            Verdict::Errno(number) => write!(out, "errno {number}"),
        }
    }
}
