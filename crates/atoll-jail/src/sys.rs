//! System calls without a safe wrapper in a crate, each in a small function.

mod capabilities;
mod clone;
mod descriptors;
mod execute;
mod packets;
mod process;
mod schedule;
mod signals;
mod user_ids;

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

pub use capabilities::drop_cap_sys_resource;
pub(crate) use capabilities::set_capabilities;
pub(crate) use clone::{Cloned, clone, clone_shared, fork};
pub(crate) use descriptors::{close_from, leak, own_descriptors_below, owned, place};
pub(crate) use execute::{StringArray, execute, is_below_root};
pub(crate) use packets::send_packets;
pub(crate) use process::{exit, has_ended, reap, reap_waiting, set_name, set_title};
pub use schedule::{raise_autogroup_priority, raise_thread_priority, set_fifo_scheduling};
pub(crate) use schedule::{set_init_scheduling, set_processors, set_program_scheduling};
pub(crate) use signals::{child_signals, default_signals, kill, unblock_signals};
pub(crate) use user_ids::{set_effective_uid, set_file_ids, set_ids};

/// Turns a raw return value into a result.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Random words from the kernel.
pub(crate) fn random_words() -> io::Result<[u64; 2]> {
    let mut words = [0_u64; 2];
    // SAFETY: the length is that of the array.
    let read = unsafe { libc::getrandom(words.as_mut_ptr().cast(), size_of_val(&words), 0) };
    if read == size_of_val(&words) as isize {
        return Ok(words);
    }
    Err(io::Error::last_os_error())
}

/// Sets attributes of a mount by descriptor, makes it private, and maps its ids through a user namespace.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    attributes: u64,
    ids: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // SAFETY: an all-zero mount_attr is valid.
    let mut change: libc::mount_attr = unsafe { std::mem::zeroed() };
    change.attr_set = attributes;
    // A clone of a shared mount is a peer of the host's mount: mounts on it would propagate to the host.
    change.propagation = libc::MS_PRIVATE;
    if let Some(ids) = ids {
        change.attr_set |= libc::MOUNT_ATTR_IDMAP;
        change.userns_fd = ids.as_raw_fd() as u64;
    }
    // SAFETY: the path is a NUL-terminated literal and the struct lives across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw mut change,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// `prctl` with plain numbers.
pub(crate) fn prctl(option: i32, argument: u64) -> io::Result<i64> {
    // SAFETY: the options used take numbers, not pointers.
    check(unsafe { libc::syscall(libc::SYS_prctl, option, argument, 0_u64, 0_u64, 0_u64) })
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: the request is a zeroed ifreq with a short name; the socket is closed by its owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(i64::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        check(i64::from(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            &raw mut request,
        )))?;
    }
    Ok(())
}
