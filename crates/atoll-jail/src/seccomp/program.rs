//! Compiles rules to classic BPF, and installs the program.
//!
//! The numbers are cut into ranges with one rule each and searched as a balanced tree: at installation the kernel runs
//! the filter once for every number, so its depth is what an installation costs. Jumps only go forward, so the program
//! is written from its end to its beginning: a target is always known when a jump to it is written.

use std::collections::BTreeMap;
use std::io;

use super::rule::{SyscallRule, Test, Verdict};

/// One instruction of a classic BPF program, laid out as the kernel's `sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub(super) code: u16,
    pub(super) yes: u8,
    pub(super) no: u8,
    pub(super) operand: u32,
}

const _: () = assert!(
    size_of::<Instruction>() == size_of::<libc::sock_filter>() && size_of::<Instruction>() == 8
);

/// The kernel's limit for one program.
pub(super) const LONGEST: usize = 4096;

pub(super) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(super) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
pub(super) const GOTO: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
pub(super) const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(super) const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets into `seccomp_data`; both architectures are little-endian.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// `AUDIT_ARCH_*` of the one ABI that has a policy.
#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xc000_00b7;

const UNKNOWN: Verdict = Verdict::Errno(libc::ENOSYS);

/// The filter for these rules; a number without one, and another ABI, answer `ENOSYS`. The x32 ABI needs no line of its
/// own: its numbers have bit 30 set and are beyond all that have a rule.
pub(super) fn compile(rules: &BTreeMap<u32, SyscallRule>) -> Vec<Instruction> {
    let mut writer = Writer::default();
    let search = writer.search(&ranges(rules));
    writer.proceed(search);
    writer.push(LOAD, NUMBER);
    let native = writer.here();
    let foreign = writer.answer(UNKNOWN);
    writer.branch(EQUAL, NATIVE, native, foreign);
    writer.push(LOAD, ARCHITECTURE);
    writer.finish()
}

/// A filter in which one number also passes with these words in the argument registers from the third on, which the
/// kernel does not look at where a call has two arguments.
pub(super) fn with_cookie(
    filter: &[Instruction],
    number: u32,
    cookie: &[u64; 2],
) -> Vec<Instruction> {
    let mut writer = Writer {
        reversed: filter.iter().rev().copied().collect(),
        answers: BTreeMap::new(),
    };
    let filter = writer.here();
    let mut next = writer.answer(Verdict::Allow);
    for (index, word) in cookie.iter().enumerate().rev() {
        let low = ARGUMENTS + 8 * (2 + index as u32);
        let (high_word, low_word) = halves(*word);
        for (offset, half) in [(low + 4, high_word), (low, low_word)] {
            writer.branch(EQUAL, half, next, filter);
            writer.push(LOAD, offset);
            next = writer.here();
        }
    }
    writer.branch(EQUAL, number, next, filter);
    writer.push(LOAD, NUMBER);
    writer.finish()
}

/// All numbers, as starts of ranges with one rule each.
fn ranges(rules: &BTreeMap<u32, SyscallRule>) -> Vec<(u32, SyscallRule)> {
    let unknown = SyscallRule::always(UNKNOWN);
    let mut ranges: Vec<(u32, SyscallRule)> = Vec::new();
    let mut add = |start, rule: SyscallRule| {
        if ranges.last().is_none_or(|(_, last)| *last != rule) {
            ranges.push((start, rule));
        }
    };
    let mut next = Some(0);
    for (&number, &rule) in rules {
        if let Some(gap) = next
            && gap < number
        {
            add(gap, unknown);
        }
        add(number, rule);
        next = number.checked_add(1);
    }
    if let Some(rest) = next {
        add(rest, unknown);
    }
    ranges
}

/// A place in the program, counted from its end.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Place(usize);

/// Writes a program backwards: a pushed instruction runs before those pushed earlier.
#[derive(Default)]
pub(super) struct Writer {
    reversed: Vec<Instruction>,
    /// The last return instruction of each result, shared by all jumps that can reach it.
    answers: BTreeMap<u32, Place>,
}

impl Writer {
    pub(super) fn here(&self) -> Place {
        Place(self.reversed.len())
    }

    /// Number of instructions between the next pushed one and the target.
    fn distance(&self, place: Place) -> usize {
        self.reversed.len() - place.0
    }

    pub(super) fn push(&mut self, code: u16, operand: u32) {
        self.reversed.push(Instruction {
            code,
            yes: 0,
            no: 0,
            operand,
        });
    }

    fn proceed(&mut self, place: Place) {
        let distance = self.distance(place);
        if distance > 0 {
            self.push(GOTO, distance as u32);
        }
    }

    /// A conditional jump; its own offsets have 8 bits, so a far target is reached by an unconditional one.
    pub(super) fn branch(&mut self, code: u16, operand: u32, mut yes: Place, mut no: Place) {
        for place in [&mut no, &mut yes] {
            // One less than 255: the other target's bridge may come in between.
            if self.distance(*place) > 254 {
                self.proceed(*place);
                *place = self.here();
            }
        }
        let (yes, no) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.reversed.push(Instruction {
            code,
            yes,
            no,
            operand,
        });
    }

    fn answer(&mut self, verdict: Verdict) -> Place {
        let action = action(verdict);
        if let Some(&place) = self.answers.get(&action)
            && self.distance(place) < 200
        {
            return place;
        }
        self.push(RETURN, action);
        let place = self.here();
        self.answers.insert(action, place);
        place
    }

    /// The number is loaded; `ranges` is not empty.
    fn search(&mut self, ranges: &[(u32, SyscallRule)]) -> Place {
        if let [(_, rule)] = ranges {
            return self.rule(rule);
        }
        let (lower, upper) = ranges.split_at(ranges.len() / 2);
        let above = self.search(upper);
        let below = self.search(lower);
        self.branch(AT_LEAST, upper[0].0, above, below);
        self.here()
    }

    fn rule(&mut self, rule: &SyscallRule) -> Place {
        let mut start = self.answer(rule.otherwise);
        for case in rule.cases.iter().rev() {
            let mut passed = self.answer(case.then);
            for test in case.tests.iter().rev() {
                passed = self.test(test, passed, start);
            }
            start = passed;
        }
        start
    }

    fn test(&mut self, test: &Test, passed: Place, failed: Place) -> Place {
        let low = ARGUMENTS + 8 * u32::from(test.argument);
        let (high_mask, low_mask) = halves(test.mask.number);
        let mut start = failed;
        for value in test.any_of.iter().rev() {
            debug_assert_eq!(value.number & !test.mask.number, 0, "{test} can never hold");
            let (high_value, low_value) = halves(value.number);
            self.branch(EQUAL, low_value, passed, start);
            if high_mask != 0 {
                self.load(low, low_mask);
                let high_passed = self.here();
                self.branch(EQUAL, high_value, high_passed, start);
                self.load(low + 4, high_mask);
            }
            start = self.here();
        }
        if high_mask == 0 && start != failed {
            self.load(low, low_mask);
            start = self.here();
        }
        start
    }

    fn load(&mut self, offset: u32, mask: u32) {
        if mask != u32::MAX {
            self.push(AND, mask);
        }
        self.push(LOAD, offset);
    }

    pub(super) fn finish(mut self) -> Vec<Instruction> {
        debug_assert!(
            self.reversed.len() <= LONGEST,
            "{} instructions",
            self.reversed.len()
        );
        self.reversed.reverse();
        self.reversed
    }
}

fn halves(number: u64) -> (u32, u32) {
    ((number >> 32) as u32, number as u32)
}

/// Return value of the filter for a result.
pub(super) fn action(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Errno(number) => {
            libc::SECCOMP_RET_ERRNO | (number as u32 & libc::SECCOMP_RET_DATA)
        }
    }
}

/// A program as bytes for a message, eight an instruction, little-endian.
pub fn to_bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for instruction in program {
        bytes.extend(instruction.code.to_le_bytes());
        bytes.extend([instruction.yes, instruction.no]);
        bytes.extend(instruction.operand.to_le_bytes());
    }
    bytes
}

/// The program in a message; `None` if these bytes cannot be one. Whether its jumps make sense is for the kernel to say.
pub fn from_bytes(bytes: &[u8]) -> Option<Vec<Instruction>> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || chunks.is_empty() || chunks.len() > LONGEST {
        return None;
    }
    let instruction = |&[a, b, yes, no, c, d, e, f]: &[u8; 8]| Instruction {
        code: u16::from_le_bytes([a, b]),
        yes,
        no,
        operand: u32::from_le_bytes([c, d, e, f]),
    };
    Some(chunks.iter().map(instruction).collect())
}

/// Installs a program for the calling thread and all its future children; it cannot be removed. Needs `CAP_SYS_ADMIN` in the
/// thread's user namespace, or `no_new_privs`, and sets neither. Allocates nothing.
#[allow(unsafe_code, reason = "no safe wrapper of seccomp(2) takes a program")]
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel only reads the program; the C type has no `const`.
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the descriptor points at `length` instructions that outlive the call and have `sock_filter`'s layout;
    // the kernel copies them and writes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
