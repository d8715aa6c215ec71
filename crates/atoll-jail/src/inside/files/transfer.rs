//! Streaming files in and out. Only regular files: a FIFO or a device would block or never end.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::{Answer, At, Caller, Failed, attributes, entry, say};
use crate::pipes::{Lock, PIPE};
use crate::wire::{Attributes, Failure, ToHelper};

/// Describes the file, then streams it into the pipe.
pub(super) fn read(
    path: &Path,
    offset: u64,
    length: Option<u64>,
    answer: &Answer,
    data: Option<OwnedFd>,
) -> Result<(), Failed> {
    let Some(pipe) = data else {
        return Err(Failed::new(Failure::Kernel, path));
    };
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = regular(opened, path)?;
    let found = file.metadata().at(path)?;
    say(answer, vec![entry(path, path.as_os_str(), &found)])?;
    let mut position = offset;
    let mut left = length.unwrap_or(u64::MAX);
    let lock = Lock::new().at(path)?;
    while left > 0 {
        let most = left.min(PIPE as u64) as usize;
        let moved = match lock.from_file(&file, &mut position, &pipe, most) {
            // Files of /proc cannot be spliced.
            Err(rustix::io::Errno::INVAL) => copy_once(&file, &mut position, &pipe, most),
            moved => moved,
        };
        match moved {
            Ok(0) => break,
            Ok(moved) => left -= moved as u64,
            // The reader has closed the pipe.
            Err(rustix::io::Errno::PIPE) => return Ok(()),
            Err(error) => return Err(error).at(path),
        }
    }
    Ok(())
}

/// Checks the result of an open: types other than regular files are an error.
fn regular(opened: std::io::Result<File>, path: &Path) -> Result<File, Failed> {
    // `open` fails for a socket, a device without a driver, and a FIFO without a reader.
    let nothing = |error: &std::io::Error| error.raw_os_error() == Some(libc::ENXIO);
    if opened.as_ref().is_err_and(nothing) {
        return Err(Failed::new(Failure::NotAFile, path));
    }
    let file = opened.at(path)?;
    if !file.metadata().at(path)?.is_file() {
        return Err(Failed::new(Failure::NotAFile, path));
    }
    Ok(file)
}

fn copy_once(
    file: &File,
    position: &mut u64,
    pipe: &OwnedFd,
    most: usize,
) -> rustix::io::Result<usize> {
    let mut buffer = vec![0; most.min(64 * 1024)];
    let read = rustix::io::pread(file, &mut buffer, *position)?;
    let mut rest = &buffer[..read];
    while !rest.is_empty() {
        let written = rustix::io::write(pipe, rest)?;
        rest = &rest[written..];
    }
    *position += read as u64;
    Ok(read)
}

/// Streams the pipe into a temporary file, which replaces the target at the server's commit.
pub(super) fn write(
    caller: &Caller,
    path: &Path,
    mode: Option<u32>,
    in_place: bool,
    answer: &Answer,
    data: Option<OwnedFd>,
) -> Result<(), Failed> {
    let Some(pipe) = data else {
        return Err(Failed::new(Failure::Kernel, path));
    };
    // A write to a link changes its target.
    let path = &through_links(path)?;
    let there = match fs::metadata(path) {
        Ok(found) if found.is_file() => Some(found),
        Ok(_) => return Err(Failed::new(Failure::NotAFile, path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).at(path),
    };
    let target = if in_place { path.clone() } else { beside(path) };
    let mut options = OpenOptions::new();
    options
        .write(true)
        .mode(0o644)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    let new = !in_place || there.is_none();
    if in_place {
        options.create(true)
    } else {
        options.create_new(true)
    };
    let file = options.open(&target).at(path)?;
    let finished = (|| {
        let found = file.metadata().at(path)?;
        if !found.is_file() {
            return Err(Failed::new(Failure::NotAFile, path));
        }
        // Not for an empty file: ext4 writes a file that was truncated to 0 to the disk when it is closed.
        if found.len() > 0 {
            file.set_len(0).at(path)?;
        }
        receive(&pipe, &file, path, answer)?;
        // A replacement gets owner and mode of the replaced file; a new file belongs to the user.
        match (&there, in_place) {
            (Some(old), false) if caller.owner.is_some() => {
                fchown(&file, Some(old.uid()), Some(old.gid())).at(path)?;
            }
            (None, _) if let Some((uid, gid)) = caller.owner => {
                fchown(&file, Some(uid), Some(gid)).at(path)?;
            }
            _ => {}
        }
        let kept = there.as_ref().filter(|_| new).map(MetadataExt::mode);
        if let Some(mode) = mode.or(kept) {
            file.set_permissions(fs::Permissions::from_mode(mode & 0o7777))
                .at(path)?;
        }
        if !in_place {
            fs::rename(&target, path).at(path)?;
        }
        let found = file.metadata().at(path)?;
        say(answer, vec![entry(path, path.as_os_str(), &found)])
    })();
    if finished.is_err() && !in_place {
        let _ = fs::remove_file(&target);
    }
    finished
}

/// Streams the pipe into an existing or a new file, which belongs to the user before its first byte is written.
pub(super) fn put(
    caller: &Caller,
    requested: &Path,
    attributes: &Attributes,
    answer: &Answer,
    data: Option<OwnedFd>,
) -> Result<(), Failed> {
    let Some(pipe) = data else {
        return Err(Failed::new(Failure::Kernel, requested));
    };
    let path = &through_links(requested)?;
    let options = || {
        let mut options = OpenOptions::new();
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        options.write(true).mode(0o644).custom_flags(flags);
        options
    };
    let (file, new) = match options().create_new(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            (regular(options().open(path), path)?, false)
        }
        made => (made.at(path)?, true),
    };
    let finished = (|| {
        if let Some((uid, gid)) = caller.owner {
            fchown(&file, Some(uid), Some(gid)).at(path)?;
        }
        attributes::replace(&file, attributes).at(path)?;
        if !new {
            file.set_len(0).at(path)?;
        }
        receive(&pipe, &file, path, answer)?;
        let found = file.metadata().at(path)?;
        say(answer, vec![entry(path, requested.as_os_str(), &found)])
    })();
    if finished.is_err() && new {
        let _ = fs::remove_file(path);
    }
    finished
}

/// Receives all data and waits for the commit.
fn receive(pipe: &OwnedFd, file: &File, path: &Path, answer: &Answer) -> Result<(), Failed> {
    let lock = Lock::new().at(path)?;
    while lock.to_file(pipe, file).at(path)? > 0 {}
    committed(answer, path)
}

/// Waits for the commit; without one the sender has aborted the transfer.
pub(super) fn committed(answer: &Answer, path: &Path) -> Result<(), Failed> {
    let mut events = [rustix::event::PollFd::new(
        answer,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut events, None).at(path)?;
    match answer.receive().at(path)? {
        Some(packet) if packet.message == ToHelper::Commit => Ok(()),
        _ => Err(Failed {
            why: Failure::Kernel,
            errno: libc::ECANCELED,
            path: path.into(),
        }),
    }
}

/// Follows links as last component of a path, also dangling ones.
fn through_links(path: &Path) -> Result<PathBuf, Failed> {
    let mut path = path.to_path_buf();
    for _ in 0..40 {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(Failed {
        why: Failure::Kernel,
        errno: libc::ELOOP,
        path,
    })
}

/// A temporary path in the same directory, for an atomic rename.
fn beside(path: &Path) -> PathBuf {
    path.with_file_name(random_name())
}

/// A random name.
pub(super) fn random_name() -> String {
    let mut random = [0_u8; 8];
    // SAFETY: the buffer lives across the call and has the given length.
    unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    format!(".atoll-{:016x}", u64::from_le_bytes(random))
}
