//! Signals: dispositions, masks, delivery, and a signalfd for ended children.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use super::check;

/// A signalfd for `SIGCHLD`, which is blocked from here on.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; the descriptor is ours alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(i64::from(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const set,
            std::ptr::null_mut(),
        )))?;
        let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(i64::from(descriptor))?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Gives every signal its default meaning. PID 1 does it once for all its children: what is ignored
/// stays ignored across an exec, and a fresh program expects nothing to be.
pub(crate) fn default_signals() {
    // The kernel's form of a disposition: no handler, no flags, an empty mask. The C library would
    // refuse to touch two signals that it keeps for itself and an outer program may ignore.
    let default = [0_u64; 4];
    for signal in 1..=64_u64 {
        // SAFETY: the kernel reads one disposition; failures concern signals that cannot be changed.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
    }
}

/// Unblocks all signals.
pub(crate) fn unblock_signals() {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Sends a signal to a process, or with a negative pid to a process group.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(i64::from(unsafe { libc::kill(pid, signal) }))?;
    Ok(())
}
