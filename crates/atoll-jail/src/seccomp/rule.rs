//! What a rule for one system call can say, and how it reads.
//!
//! Everything is `'static` data, so that a policy copies without thought. A rule sees only the six argument words:
//! it never follows a pointer, which is why `clone3` is not decided here.

use std::fmt;

/// The answer to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    Errno(i32),
}

/// Cases are tried in order, the first whose tests all hold decides; none of them: `otherwise`.
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
/// The mask says how much of the register the kernel looks at. It cuts an `int` to its low half, so a test of an `int`
/// must not see the upper half: bits set there would be a bypass.
#[derive(Debug, PartialEq)]
pub(super) struct Test {
    /// Which argument, from 0.
    pub(super) argument: u8,
    pub(super) name: &'static str,
    pub(super) mask: Value,
    pub(super) any_of: &'static [Value],
}

/// A number with the name it has in the headers.
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
