//! Subvolumes and quota groups of a btrfs file system. Each call is one ioctl on a directory of the
//! file system; no program is run.
//!
//! A subvolume's quota group is `0/ID`. Groups of level 1 hold others: [`group`] names one.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{Error, Step};

/// The accounting mode of quota groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quotas {
    /// Simple quotas: an extent counts for the subvolume that allocated it. Cheap (Linux 6.7).
    Simple,
    /// Full accounting: an extent counts for every subvolume that refers to it.
    Full,
}

const fn ioctl_number(direction: u32, number: u32, size: usize) -> u64 {
    ((direction << 30) | ((size as u32) << 16) | (0x94 << 8) | number) as u64
}
const WRITE: u32 = 1;
const READ: u32 = 2;
const SNAP_DESTROY: u64 = ioctl_number(WRITE, 15, size_of::<Name>());
const INO_LOOKUP: u64 = ioctl_number(WRITE | READ, 18, size_of::<Lookup>());
const SUBVOL_CREATE_V2: u64 = ioctl_number(WRITE, 24, size_of::<NewSubvolume>());
const START_SYNC: u64 = ioctl_number(READ, 24, size_of::<u64>());
const FS_INFO: u64 = ioctl_number(READ, 31, size_of::<FsInfo>());
const QUOTA_CTL: u64 = ioctl_number(WRITE | READ, 40, size_of::<QuotaControl>());
const QGROUP_CREATE: u64 = ioctl_number(WRITE, 42, size_of::<GroupChange>());
const QGROUP_LIMIT: u64 = ioctl_number(READ, 43, size_of::<GroupLimit>());

/// `btrfs_ioctl_vol_args`.
#[repr(C)]
struct Name {
    descriptor: i64,
    name: [u8; 4088],
}

/// `btrfs_ioctl_vol_args_v2`, as used for a subvolume that belongs to a group.
#[repr(C)]
struct NewSubvolume {
    descriptor: i64,
    transaction: u64,
    flags: u64,
    inherit_size: u64,
    inherit: *const Inherit,
    unused: [u64; 2],
    name: [u8; 4040],
}

/// `btrfs_qgroup_inherit` with one group.
#[repr(C)]
struct Inherit {
    flags: u64,
    groups: u64,
    copies: [u64; 2],
    limit: [u64; 5],
    group: u64,
}

/// `btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct Lookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// `btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct FsInfo {
    before: [u64; 2],
    id: [u8; 16],
    after: [u64; 124],
}

/// `btrfs_ioctl_quota_ctl_args`.
#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

/// `btrfs_ioctl_qgroup_create_args`.
#[repr(C)]
struct GroupChange {
    create: u64,
    group: u64,
}

/// `btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
struct GroupLimit {
    group: u64,
    flags: u64,
    referenced: u64,
    rest: [u64; 3],
}

/// One ioctl with a struct argument.
///
/// # Safety
/// The request must read or write only a `T`, and memory that a pointer in it refers to, which must live across the call.
unsafe fn call<T>(on: BorrowedFd<'_>, request: u64, argument: &mut T) -> io::Result<()> {
    // SAFETY: the argument lives across the call and the caller vouches for its type.
    let result = unsafe { libc::ioctl(on.as_raw_fd(), request as _, &raw mut *argument) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The number of a group of level 1.
pub const fn group(number: u64) -> u64 {
    1 << 48 | number
}

fn copy_name<const N: usize>(name: &str) -> io::Result<[u8; N]> {
    let mut copy = [0; N];
    let plain = !name.is_empty() && name.len() < N && !name.contains(['/', '\0']);
    if !plain || name == "." || name == ".." {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    copy[..name.len()].copy_from_slice(name.as_bytes());
    Ok(copy)
}

/// Creates a subvolume in a directory, as a member of a group.
pub fn create(parent: BorrowedFd<'_>, name: &str, within: u64) -> Result<(), Error> {
    const WITH_GROUPS: u64 = 1 << 2;
    let step = || format!("make the subvolume {name}");
    let inherit = Inherit {
        flags: 0,
        groups: 1,
        copies: [0; 2],
        limit: [0; 5],
        group: within,
    };
    let mut new = NewSubvolume {
        descriptor: 0,
        transaction: 0,
        flags: WITH_GROUPS,
        inherit_size: size_of::<Inherit>() as u64,
        inherit: &raw const inherit,
        unused: [0; 2],
        name: copy_name(name).step(step)?,
    };
    // SAFETY: the request takes a `btrfs_ioctl_vol_args_v2`; `inherit` lives until the end of this function.
    unsafe { call(parent, SUBVOL_CREATE_V2, &mut new) }.step(step)
}

/// Destroys a subvolume with its contents. Its space is freed in the background.
pub fn destroy(parent: BorrowedFd<'_>, name: &str) -> Result<(), Error> {
    let step = || format!("destroy the subvolume {name}");
    let mut which = Name {
        descriptor: 0,
        name: copy_name(name).step(step)?,
    };
    // SAFETY: the request takes a `btrfs_ioctl_vol_args`.
    unsafe { call(parent, SNAP_DESTROY, &mut which) }.step(step)
}

/// Starts a commit without waiting for it. The commit wakes the kernel's cleaner, which frees the space of
/// destroyed subvolumes.
pub fn begin_commit(on: BorrowedFd<'_>) -> Result<(), Error> {
    let mut transaction = 0_u64;
    // SAFETY: the request fills in a 64-bit number.
    unsafe { call(on, START_SYNC, &mut transaction) }.step(|| "begin a commit".into())
}

/// The id of the subvolume that contains a directory.
pub fn subvolume(directory: BorrowedFd<'_>) -> Result<u64, Error> {
    const FIRST_OBJECT: u64 = 256;
    let mut lookup = Lookup {
        tree: 0,
        object: FIRST_OBJECT,
        name: [0; 4080],
    };
    // SAFETY: the request takes a `btrfs_ioctl_ino_lookup_args`.
    unsafe { call(directory, INO_LOOKUP, &mut lookup) }
        .step(|| "ask for a subvolume's number".into())?;
    Ok(lookup.tree)
}

/// The file system's id, as `/sys/fs/btrfs` names it.
pub fn id(on: BorrowedFd<'_>) -> Result<String, Error> {
    let mut info = FsInfo {
        before: [0; 2],
        id: [0; 16],
        after: [0; 124],
    };
    // SAFETY: the request takes a `btrfs_ioctl_fs_info_args`.
    unsafe { call(on, FS_INFO, &mut info) }.step(|| "ask for a file system's id".into())?;
    let mut text = String::with_capacity(36);
    for (place, byte) in info.id.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    Ok(text)
}

/// Enables quotas on a new file system, in the cheapest mode that the kernel supports.
pub fn enable_quotas(on: BorrowedFd<'_>) -> Result<Quotas, Error> {
    const ENABLE: u64 = 1;
    const ENABLE_SIMPLE: u64 = 4;
    for (command, quotas) in [(ENABLE_SIMPLE, Quotas::Simple), (ENABLE, Quotas::Full)] {
        let mut control = QuotaControl { command, status: 0 };
        // SAFETY: the request takes a `btrfs_ioctl_quota_ctl_args`.
        match unsafe { call(on, QUOTA_CTL, &mut control) } {
            Ok(()) => return Ok(quotas),
            Err(_) if quotas == Quotas::Simple => {}
            Err(error) => return Err(Error::step("enable quotas", error)),
        }
    }
    unreachable!("the last way returns either way")
}

/// Creates a quota group; an existing one is no error.
pub fn create_group(on: BorrowedFd<'_>, group: u64) -> Result<(), Error> {
    let mut change = GroupChange { create: 1, group };
    // SAFETY: the request takes a `btrfs_ioctl_qgroup_create_args`.
    match unsafe { call(on, QGROUP_CREATE, &mut change) } {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::step("make a quota group", error))
        }
        _ => Ok(()),
    }
}

/// Limits the space that the members of a group may use together.
pub fn limit(on: BorrowedFd<'_>, group: u64, bytes: u64) -> Result<(), Error> {
    const MAX_REFERENCED: u64 = 1;
    let mut limit = GroupLimit {
        group,
        flags: MAX_REFERENCED,
        referenced: bytes,
        rest: [0; 3],
    };
    // SAFETY: the request takes a `btrfs_ioctl_qgroup_limit_args`.
    unsafe { call(on, QGROUP_LIMIT, &mut limit) }.step(|| format!("limit a quota group to {bytes}"))
}
