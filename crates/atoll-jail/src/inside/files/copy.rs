//! Copying within a sandbox.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{At, Caller, Failed, c_path};
use crate::wire::Failure;

/// Copies a file, a link, or a directory with its contents. Devices, sockets and FIFOs in a directory are skipped; as the
/// source they are rejected.
pub(super) fn copy(caller: &Caller, from: &Path, to: &Path, replace: bool) -> Result<(), Failed> {
    let found = fs::symlink_metadata(from).at(from)?;
    if !replace && fs::symlink_metadata(to).is_ok() {
        return Err(Failed {
            why: Failure::Kernel,
            errno: libc::EEXIST,
            path: to.into(),
        });
    }
    if !found.is_dir() {
        if !found.is_file() && !found.is_symlink() {
            return Err(Failed::new(Failure::NotAFile, from));
        }
        return copy_one(caller, from, to, &found);
    }
    if inside(from, to) {
        return Err(Failed {
            why: Failure::Kernel,
            errno: libc::EINVAL,
            path: to.into(),
        });
    }
    let mut waiting: Vec<(PathBuf, PathBuf)> = vec![(from.into(), to.into())];
    // Modes are set at the end, because they may forbid writing.
    let mut modes = Vec::new();
    while let Some((from, to)) = waiting.pop() {
        let mode = fs::symlink_metadata(&from).at(&from)?.permissions();
        match fs::create_dir(&to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
            made => made.at(&to).and_then(|()| caller.own(&to))?,
        }
        for entry in fs::read_dir(&from).at(&from)? {
            let entry = entry.at(&from)?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let Ok(found) = fs::symlink_metadata(&from) else {
                continue;
            };
            if found.is_dir() {
                waiting.push((from, to));
            } else if found.is_file() || found.is_symlink() {
                copy_one(caller, &from, &to, &found)?;
            }
        }
        modes.push((to, mode));
    }
    modes
        .into_iter()
        .rev()
        .try_for_each(|(to, mode)| fs::set_permissions(&to, mode).at(&to))
}

/// Rejects a copy of a directory into or onto itself.
fn inside(from: &Path, to: &Path) -> bool {
    if to
        .canonicalize()
        .is_ok_and(|to| from.canonicalize().is_ok_and(|from| from == to))
    {
        return true;
    }
    let (Ok(from), Some(Ok(parent))) = (from.canonicalize(), to.parent().map(Path::canonicalize))
    else {
        return false;
    };
    parent.starts_with(from)
}

/// Whether source and target are the same object, so that the copy would destroy it.
fn same(from: &Path, to: &Path, found: &fs::Metadata) -> bool {
    let one = |a: &fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if !found.is_symlink() {
        return fs::metadata(to).is_ok_and(|to| one(found, to));
    }
    let Ok(to) = fs::symlink_metadata(to) else {
        return false;
    };
    fs::metadata(from).is_ok_and(|from| one(&to, from)) || one(found, to)
}

fn copy_one(caller: &Caller, from: &Path, to: &Path, found: &fs::Metadata) -> Result<(), Failed> {
    if same(from, to, found) {
        return Err(Failed {
            why: Failure::Kernel,
            errno: libc::EINVAL,
            path: to.into(),
        });
    }
    if found.is_symlink() {
        let target = fs::read_link(from).at(from)?;
        let _ = fs::remove_file(to);
        std::os::unix::fs::symlink(target, to).at(to)?;
        return caller.own(to);
    }
    let read = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(from)
        .at(from)?;
    if !read.metadata().at(from)?.is_file() {
        return Err(Failed::new(Failure::NotAFile, from));
    }
    if let Ok(there) = fs::metadata(to)
        && !there.is_file()
    {
        return Err(Failed::new(Failure::NotAFile, to));
    }
    let path = c_path(to)?;
    let flags = rustix::fs::OFlags::CREATE
        | rustix::fs::OFlags::WRONLY
        | rustix::fs::OFlags::TRUNC
        | rustix::fs::OFlags::NONBLOCK
        | rustix::fs::OFlags::CLOEXEC;
    let written = rustix::fs::open(path, flags, rustix::fs::Mode::from_raw_mode(0o600)).at(to)?;
    let written = File::from(written);
    copy_bytes(&read, &written).at(to)?;
    caller.own(to)?;
    let mode = found.permissions().mode() & 0o7777;
    written
        .set_permissions(fs::Permissions::from_mode(mode))
        .at(to)
}

/// Copies the contents of a file and keeps its holes, which may be larger than any disk.
fn copy_bytes(from: &File, to: &File) -> io::Result<()> {
    use rustix::fs::SeekFrom::{Data, Hole, Start};
    let mut at = 0;
    loop {
        let begin = match rustix::fs::seek(from, Data(at)) {
            Ok(begin) => begin,
            Err(rustix::io::Errno::NXIO) => break,
            // The file system does not report holes: everything is data.
            Err(rustix::io::Errno::INVAL) if at == 0 => 0,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, Hole(begin)).unwrap_or(u64::MAX);
        rustix::fs::seek(from, Start(begin))?;
        rustix::fs::seek(to, Start(begin))?;
        let copied = io::copy(&mut from.take(end - begin), &mut &*to)?;
        at = begin + copied;
        if at < end {
            // The file was truncated, or its end is reached.
            break;
        }
    }
    let length = from.metadata()?.len();
    if to.metadata()?.len() < length {
        to.set_len(length)?;
    }
    Ok(())
}
