//! The descriptor table: ranges that are closed, kept or inherited, and descriptors by number.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::check;

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller gives up all those descriptors; nothing that owns one is used again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) })?;
    Ok(())
}

/// Unshares the descriptor table and closes the descriptors from `first` on in the new one.
pub(crate) fn own_descriptors_below(first: u32) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: the caller gives up all those descriptors; nothing that owns one is used again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) })?;
    Ok(())
}

/// Copies a descriptor to a number, which survives an exec unless it is above 2.
pub(crate) fn place(descriptor: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    let flags = if number > 2 { libc::O_CLOEXEC } else { 0 };
    if descriptor.as_raw_fd() == number {
        // dup3 refuses equal numbers; only the flag has to be right.
        // SAFETY: no memory is involved.
        check(i64::from(unsafe {
            libc::fcntl(
                number,
                libc::F_SETFD,
                if number > 2 { libc::FD_CLOEXEC } else { 0 },
            )
        }))?;
        return Ok(());
    }
    // SAFETY: no memory is involved; the descriptor that had the number is closed deliberately.
    check(i64::from(unsafe {
        libc::dup3(descriptor.as_raw_fd(), number, flags)
    }))?;
    Ok(())
}

/// Takes ownership of a descriptor by its number.
///
/// # Safety
/// The descriptor must be open and have no other owner.
pub(crate) unsafe fn owned(number: i32) -> OwnedFd {
    // SAFETY: as the caller says.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Clears `FD_CLOEXEC` of a range of descriptors. Only for the positive control of an attack test.
pub(crate) fn leak(numbers: std::ops::Range<i32>) {
    for number in numbers {
        // SAFETY: no memory is involved; a number that is not open is an error without effect.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
}
