//! The own process and its children: exit, wait status, name and command line.

use std::ffi::CStr;

/// Ends this process without exit handlers of the process that it was cloned from.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: always sound; it does not return.
    unsafe { libc::_exit(code) }
}

/// Reaps one ended child, if there is one: its pid and raw status.
pub(crate) fn reap() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status lives across the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Reaps one ended child, waiting for it; `None` when there are no children.
pub(crate) fn reap_waiting() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status lives across the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    (pid > 0).then_some((pid, status))
}

/// Whether a child has ended. It is not reaped.
pub(crate) fn has_ended(pid: i32) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = Pid::from_raw(pid).map(|pid| waitid(WaitId::Pid(pid), options));
    !matches!(status, Some(Ok(None)))
}

/// Sets this process's short name.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the name is NUL-terminated; the kernel takes 15 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Overwrites this process's command line, as `ps` shows it.
pub(crate) fn set_title(title: &str) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else {
        return;
    };
    // Fields 48 and 49 (arg_start, arg_end), counted after the name, which may contain any character.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return;
    };
    let mut fields = rest.split(' ').skip(45);
    let (Some(Ok(start)), Some(Ok(end))) = (
        fields.next().map(str::parse::<usize>),
        fields.next().map(str::parse::<usize>),
    ) else {
        return;
    };
    let length = end.saturating_sub(start);
    if start == 0 || length == 0 {
        return;
    }
    let mut bytes = vec![0_u8; length];
    let copied = title.len().min(length - 1);
    bytes[..copied].copy_from_slice(&title.as_bytes()[..copied]);
    // SAFETY: the kernel reports this range as our argument strings; it is writable memory of this process, and no
    // reference to it exists any more.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, length) };
}
