//! B01: every system call number with zero arguments, then the foreign call interfaces. Each call happens in a child of its
//! own, which may die, hang, or become a tracee; its answer comes through shared memory. Standard input of the children is
//! a pipe, so that `fchmod(0)`, `ftruncate(0)` and the like hit nothing.

use std::arch::asm;
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::sys::{self, Ended, Shared};
use crate::{Args, Command, Outcome, names, nr, out};

pub(crate) const COMMANDS: &[Command] = &[Command::inside(
    "b01-syscalls",
    "[FIRST LAST] (x64:N, then i386:N and x32:N)",
    every,
)];

/// System calls that create a child which continues at the same instruction.
const FORKS: [u64; 4] = [nr::CLONE, nr::FORK, nr::VFORK, nr::CLONE3];

/// Read-only or impossible with zero arguments, by the i386 table.
const I386: [u64; 20] = [
    1, 5, 11, 20, 21, 24, 26, 102, 128, 136, 169, 217, 286, 288, 310, 336, 346, 357, 374, 425,
];

/// x32 numbers: common ones, and some of those that only x32 has.
const X32: [u64; 18] = [
    0, 1, 2, 16, 39, 101, 102, 165, 186, 250, 272, 298, 321, 425, 512, 520, 521, 545,
];

/// A call whose child, if it makes one, ends before it touches the stack that it may share with us.
fn fork_like(number: u64) -> i64 {
    let answer: i64;
    // SAFETY: the child (answer 0) leaves by exit(0) with no memory access; the parent sees an ordinary call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, 60",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            inlateout("rax") number as i64 => answer,
            inlateout("rdi") 0_u64 => _, in("rsi") 0_u64, in("rdx") 0_u64, in("r10") 0_u64, in("r8") 0_u64, in("r9") 0_u64,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    answer
}

/// The 32-bit entry.
fn int80(number: u64) -> i64 {
    let answer: i64;
    // SAFETY: all arguments are 0, so no memory of ours is named; rbx and rbp are kept on the stack.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "xor ebx, ebx",
            "xor ebp, ebp",
            "int 0x80",
            "pop rbp",
            "pop rbx",
            inlateout("rax") number as i64 => answer,
            inlateout("rcx") 0_u64 => _, inlateout("rdx") 0_u64 => _, inlateout("rsi") 0_u64 => _,
            inlateout("rdi") 0_u64 => _, lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    i64::from(answer as i32)
}

/// Makes one call in a child and prints what came of it.
fn one(what: &str, shared: &Shared, input: i32, make: impl FnOnce() -> i64) {
    const NONE: i64 = i64::MIN;
    shared.set(0, NONE);
    let child = match sys::fork() {
        Err(errno) => return out::refused(what, errno, "fork"),
        Ok(Some(child)) => child,
        Ok(None) => {
            let _ = sys::call(nr::DUP2, &[input as u64, 0]);
            let _ = sys::dispose(14, 0);
            sys::unblock_all();
            let in_200_ms = [0_i64, 0, 0, 200_000];
            let _ = sys::call(nr::SETITIMER, &[0, sys::slice(&in_200_ms), 0]);
            shared.set(0, make());
            // exit, not exit_group: it is the one that strict seccomp leaves.
            loop {
                sys::raw(nr::EXIT, [0; 6]);
            }
        }
    };
    let ended = sys::wait_or_kill(child, Duration::from_secs(3));
    match (shared.get(0), ended) {
        (NONE, Ended::Code(code)) => out::say(&format!("{what} exited {code}")),
        (NONE, Ended::Signal(signal)) => {
            out::say(&format!("{what} signal {}", names::signal(signal)));
        }
        (answer, _) => {
            let answer = sys::answer(answer);
            if let (Ok(queue), "x64:68") = (answer, what) {
                // msgget(0) creates a queue that would persist.
                let _ = sys::call(nr::MSGCTL, &[queue, 0, 0]);
            }
            out::attempt(what, answer);
        }
    }
}

fn every(args: &Args) -> Outcome {
    let first: u64 = args.number_or(0, "FIRST", 0)?;
    let last: u64 = args.number_or(1, "LAST", 600)?;
    let shared = Shared::new()?;
    let (input, _writer) = sys::pipe().map_err(|errno| format!("pipe: {errno}"))?;
    let input = input.as_raw_fd();
    for number in first..=last {
        let what = format!("x64:{number}");
        if FORKS.contains(&number) {
            one(&what, &shared, input, || fork_like(number));
        } else {
            one(&what, &shared, input, || sys::raw(number, [0; 6]));
        }
    }
    for number in I386 {
        one(&format!("i386:{number}"), &shared, input, || int80(number));
    }
    for number in X32 {
        one(&format!("x32:{number}"), &shared, input, || {
            sys::raw(number | 0x4000_0000, [0; 6])
        });
    }
    Ok(0)
}
