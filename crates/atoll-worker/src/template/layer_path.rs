//! File operations by a path inside a layer.
//!
//! Invariant: nothing here follows a symlink or crosses a mount; a symlink as a component of a path
//! is an error.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Timestamps, Uid};
use rustix::io::{Errno, Result};

use super::{ID_COUNT, NOBODY};

/// Flags to create a new file.
pub(super) const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens a path of the layer.
pub(super) fn open(layer: &OwnedFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let name = if name.is_empty() { b"." } else { name };
    rustix::fs::openat2(layer, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Opens a directory of the layer.
pub(super) fn open_directory(layer: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    open(layer, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a directory of the layer; missing components are created, owned by root, mode 755.
pub(super) fn make_directories(layer: &OwnedFd, name: &[u8]) -> Result<OwnedFd> {
    match open_directory(layer, name) {
        Err(Errno::NOENT) => {}
        answer => return answer,
    }
    let mut here = open_directory(layer, b"")?;
    for part in name
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty())
    {
        match rustix::fs::mkdirat(&here, part, Mode::RWXU) {
            Ok(()) => {
                here = open_directory(&here, part)?;
                rustix::fs::fchmod(&here, Mode::from(0o755))?;
            }
            Err(Errno::EXIST) => here = open_directory(&here, part)?,
            Err(error) => return Err(error),
        }
    }
    Ok(here)
}

/// Writes a new file of the layer; missing parent directories are created.
pub(super) fn write_file(
    layer: &OwnedFd,
    name: &str,
    contents: &[u8],
    mode: u32,
    gid: u32,
) -> std::io::Result<()> {
    let (parent, last) = name.rsplit_once('/').unwrap_or(("", name));
    let parent = make_directories(layer, parent.as_bytes())?;
    let mut file = File::from(rustix::fs::openat(
        &parent,
        last,
        NEW_FILE,
        Mode::RUSR | Mode::WUSR,
    )?);
    file.write_all(contents)?;
    set_owner_and_mode(&file, 0, gid, mode)?;
    Ok(())
}

/// Sets the owner, then the mode: in the other order the kernel would clear setuid.
pub(super) fn set_owner_and_mode(file: impl AsFd, uid: u32, gid: u32, mode: u32) -> Result<()> {
    rustix::fs::fchown(
        &file,
        Some(Uid::from_raw(map_id(uid))),
        Some(Gid::from_raw(map_id(gid))),
    )?;
    rustix::fs::fchmod(&file, Mode::from(mode & 0o7777))
}

/// Creates a symlink with owner and time.
pub(super) fn make_symlink(
    dir: &OwnedFd,
    name: &[u8],
    target: &[u8],
    (uid, gid): (u32, u32),
    modified: &Timestamps,
) -> Result<()> {
    rustix::fs::symlinkat(target, dir, name)?;
    let (uid, gid) = (Uid::from_raw(map_id(uid)), Gid::from_raw(map_id(gid)));
    rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::utimensat(dir, name, modified, AtFlags::SYMLINK_NOFOLLOW)
}

/// Maps ids that a sandbox does not have to `nobody`.
fn map_id(id: u32) -> u32 {
    if id < ID_COUNT { id } else { NOBODY }
}
