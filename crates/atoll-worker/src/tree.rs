//! Operations on file trees that may be hostile: the upper directory of a deleted sandbox, an
//! unpacked archive.
//!
//! Invariant: every step uses a descriptor and one name, never a path, never follows a symlink and
//! never crosses a mount, so no name in the tree can lead out of it. Stack and descriptors stay
//! constant however deep the tree is: the walk holds one directory open and returns to the parent
//! by `..`, after a check that it is the directory it came from.
//!
//! It takes no locks: a tree that changes meanwhile is an error, and the caller tries again.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

#[cfg(test)]
mod tests;

/// Number of times one removal may find a directory refilled before it fails.
const MAX_RETRIES: u32 = 1000;

/// Disk usage of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Allocated bytes; a file with several names counts once.
    pub bytes: u64,
    /// Inodes with directories, without the top directory.
    pub inodes: u64,
}

/// Removes `name` in `parent` with everything below it. An absent name is fine.
pub fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.as_bytes().contains(&b'/') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this is not a single file name",
        ));
    }
    let name = CString::new(name.as_bytes())?;
    match rustix::fs::unlinkat(parent, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut retries = 0;
    loop {
        match open_child(parent, &name) {
            Ok(dir) => remove_contents(dir.as_fd())?,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::unlinkat(parent, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) if retries < MAX_RETRIES => retries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes everything below `dir`, not `dir` itself.
pub fn remove_contents(dir: BorrowedFd<'_>) -> io::Result<()> {
    let top = rustix::fs::openat(dir, c".", OPEN_DIRECTORY, Mode::empty())?;
    let mut walk = Walk::new(top)?;
    let mut retries = 0;
    let remaining = remove_entries(walk.here.as_fd())?;
    walk.enter(remaining);
    while let Some(step) = walk.step()? {
        match step {
            Step::Down => {
                let remaining = remove_entries(walk.here.as_fd())?;
                walk.enter(remaining);
            }
            Step::Up(name) => match rustix::fs::unlinkat(&walk.here, &name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Some file systems return only a part of a directory that shrinks while it is
                // read.
                Err(Errno::NOTEMPTY | Errno::EXIST) if retries < MAX_RETRIES => {
                    retries += 1;
                    walk.revisit(name);
                }
                Err(error) => return Err(error.into()),
            },
        }
    }
    Ok(())
}

/// Disk usage of the tree below `dir`.
pub fn usage(dir: BorrowedFd<'_>) -> io::Result<Usage> {
    let mut usage = Usage::default();
    usage_while(dir, &mut usage, |_| true)?;
    Ok(usage)
}

/// Adds up disk usage as long as `more` returns true. Returns whether that was all; what was
/// counted before an error stays in `usage`.
pub fn usage_while(
    dir: BorrowedFd<'_>,
    usage: &mut Usage,
    more: impl Fn(&Usage) -> bool,
) -> io::Result<bool> {
    let top = rustix::fs::openat(dir, c".", OPEN_DIRECTORY, Mode::empty())?;
    let mut seen = HashSet::new();
    let mut walk = Walk::new(top)?;
    let directories = measure_directory(walk.here.as_fd(), usage, &mut seen, &more)?;
    walk.enter(directories);
    while more(usage) {
        match walk.step()? {
            None => return Ok(true),
            Some(Step::Up(_)) => {}
            Some(Step::Down) => {
                let directories = measure_directory(walk.here.as_fd(), usage, &mut seen, &more)?;
                walk.enter(directories);
            }
        }
    }
    Ok(false)
}

const OPEN_DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// Opens a subdirectory by its name; a symlink or another mount is an error.
fn open_child(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
    rustix::fs::openat2(parent, name, OPEN_DIRECTORY, Mode::empty(), resolve)
}

/// Unlinks all files and removes empty directories; returns the remaining directories.
fn remove_entries(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut remaining = Vec::new();
    for_each_entry(dir, |name, kind| {
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => remaining.push(name.to_owned()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })?;
    Ok(remaining)
}

fn measure_directory(
    dir: BorrowedFd<'_>,
    usage: &mut Usage,
    seen: &mut HashSet<Id>,
    more: &impl Fn(&Usage) -> bool,
) -> io::Result<Vec<CString>> {
    let mut directories = Vec::new();
    for_each_entry(dir, |name, _| {
        if !more(usage) {
            return Ok(());
        }
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink <= 1 || seen.insert((stat.st_dev, stat.st_ino)) {
            usage.inodes += 1;
            usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
        if is_directory {
            directories.push(name.to_owned());
        }
        Ok(())
    })?;
    Ok(directories)
}

fn for_each_entry(
    dir: BorrowedFd<'_>,
    mut visit: impl FnMut(&CStr, FileType) -> io::Result<()>,
) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            visit(name, entry.file_type())?;
        }
    }
    Ok(())
}

/// Device and inode of a directory.
type Id = (u64, u64);

/// A depth-first walk with one open directory.
struct Walk {
    here: OwnedFd,
    /// Directories from the top to `here`, both included.
    levels: Vec<Level>,
}

struct Level {
    id: Id,
    /// Name in the parent directory.
    name: CString,
    /// Subdirectories that are still to be visited.
    pending: Vec<CString>,
}

enum Step {
    /// `here` is a new directory: read it and call `enter`.
    Down,
    /// `here` is the parent again; the child of this name is finished.
    Up(CString),
}

impl Walk {
    fn new(top: OwnedFd) -> io::Result<Self> {
        let id = id_of(&top)?;
        Ok(Self {
            here: top,
            levels: vec![Level {
                id,
                name: CString::default(),
                pending: Vec::new(),
            }],
        })
    }

    /// Sets the subdirectories of `here` to visit.
    fn enter(&mut self, directories: Vec<CString>) {
        if let Some(level) = self.levels.last_mut() {
            level.pending = directories;
        }
    }

    /// Visits the subdirectory `name` of `here` once more.
    fn revisit(&mut self, name: CString) {
        if let Some(level) = self.levels.last_mut() {
            level.pending.push(name);
        }
    }

    fn step(&mut self) -> io::Result<Option<Step>> {
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            if let Some(name) = level.pending.pop() {
                match open_child(self.here.as_fd(), &name) {
                    Ok(child) => {
                        let id = id_of(&child)?;
                        self.here = child;
                        self.levels.push(Level {
                            id,
                            name,
                            pending: Vec::new(),
                        });
                        return Ok(Some(Step::Down));
                    }
                    Err(Errno::NOENT) => continue,
                    Err(error) => return Err(error.into()),
                }
            }
            let Some(done) = self.levels.pop() else {
                return Ok(None);
            };
            let Some(parent) = self.levels.last() else {
                return Ok(None);
            };
            let above = rustix::fs::openat(&self.here, c"..", OPEN_DIRECTORY, Mode::empty())?;
            if id_of(&above)? != parent.id {
                return Err(io::Error::other("the tree was moved while it was walked"));
            }
            self.here = above;
            return Ok(Some(Step::Up(done.name)));
        }
    }
}

fn id_of(fd: &OwnedFd) -> io::Result<Id> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}
