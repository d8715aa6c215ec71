//! Signals: dispositions, masks, delivery, and a signalfd for ended children.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use super::check;

/// Blocks `SIGCHLD` and returns a signalfd for it.
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

/// Sets every signal to its default disposition. PID 1 does it once for all its children: ignored signals stay ignored
/// across an exec, and programs expect the defaults.
pub(crate) fn default_signals() {
    // The kernel's `sigaction` with no handler, no flags and an empty mask. The C library rejects the two signals that
    // it reserves, which the parent program may have ignored.
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
