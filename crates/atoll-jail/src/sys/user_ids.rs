//! User and group ids of a thread or process.

use std::io;

use super::check;

/// Sets the effective user id of this thread, leaving the others and all capabilities alone
/// (the caller has set `SECBIT_NO_SETUID_FIXUP`).
pub(crate) fn set_effective_uid(uid: u32) -> io::Result<()> {
    // SAFETY: no memory is involved. The raw call concerns this thread only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, -1_i32, uid, -1_i32) })?;
    Ok(())
}

/// Sets all user and group ids of this (single-threaded) process, and its groups.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the slice lives across the call; the others involve no memory.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            groups.len(),
            groups.as_ptr(),
        ))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Sets the ids that file system access uses, of this thread only.
pub(crate) fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: no memory is involved; raw calls concern this thread only and cannot fail.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}
