//! `clone3` and `fork`: new processes with their own or with shared memory.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::{check, exit};
use crate::seccomp::Clone3Cookie;

/// Which process continues after a clone.
pub(crate) enum Cloned {
    /// The original; the child's pid.
    Parent(i32),
    /// The new process.
    Child,
}

/// `libc` defines it with a type that is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Clones this process like `fork`, into new namespaces and a cgroup2 directory if given. `flags` are those of `clone3`
/// except `CLONE_VM`.
///
/// # Safety
/// The process must have a single thread: the child continues with a copy of this thread only.
pub(crate) unsafe fn clone(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut arguments = clone_arguments(flags, cgroup);
    // SAFETY: the arguments live across the call; without CLONE_VM the child has its own memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            size_of::<libc::clone_args>(),
        )
    };
    match check(result)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent(pid as i32)),
    }
}

/// Forks with `clone`, which the filter permits to all processes.
///
/// # Safety
/// As for [`clone`].
pub(crate) unsafe fn fork() -> io::Result<Cloned> {
    // SAFETY: without CLONE_VM the child has its own memory and a copy of our stack.
    match check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent(pid as i32)),
    }
}

/// Clones a child that shares this process's memory until it executes a program or exits, like `vfork`, into a cgroup2
/// directory if given. This process is suspended meanwhile. The child runs `work` on our stack, below our own frames, and
/// exits if `work` returns. Returns the pid; `work` stores its own result. The filter requires the cookie.
///
/// # Safety
/// The process must have a single thread. `work` does not allocate: the child may be killed at any point, and its
/// allocations would never be freed. It does not unwind.
pub(crate) unsafe fn clone_shared<F: FnMut()>(
    cgroup: Option<BorrowedFd<'_>>,
    cookie: &Clone3Cookie,
    work: &mut F,
) -> io::Result<i32> {
    extern "C" fn child<F: FnMut()>(work: *mut libc::c_void) -> ! {
        // SAFETY: the pointer is `work` below; its owner is suspended.
        unsafe { (*work.cast::<F>())() };
        exit(127)
    }
    let mut arguments = clone_arguments((libc::CLONE_VM | libc::CLONE_VFORK) as u64, cgroup);
    let arguments = &raw mut arguments;
    let work: *mut libc::c_void = std::ptr::from_mut(work).cast();
    let run: extern "C" fn(*mut libc::c_void) -> ! = child::<F>;
    let mut result = libc::SYS_clone3;
    // SAFETY: the arguments live across the call. The child starts with our registers and stack pointer, so it
    // uses only the stack below, and never returns here; this process resumes when the child has left its memory. Above
    // the stack pointer only what `work` changed differs. Neither `nomem` nor `readonly` is given, so the compiler
    // assumes that the block may have written to any memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, {work}",
            "and rsp, -16",
            "call {run}",
            "ud2",
            "2:",
            work = in(reg) work,
            run = in(reg) run,
            inlateout("rax") result,
            in("rdi") arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("rdx") cookie[0],
            in("r10") cookie[1],
            out("rcx") _,
            out("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        let number = result;
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x0, {work}",
            "blr {run}",
            "brk 1",
            "2:",
            work = in(reg) work,
            run = in(reg) run,
            in("x8") number,
            inlateout("x0") arguments as i64 => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x2") cookie[0],
            in("x3") cookie[1],
        );
    }
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    Ok(result as i32)
}

/// Arguments of `clone3`.
fn clone_arguments(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> libc::clone_args {
    // SAFETY: an all-zero clone_args is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    arguments
}
