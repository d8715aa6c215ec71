//! The small file system of the views (see [`Boot::views`](crate::wire::Boot::views)).
//!
//! Programs see parts of it through read-only clones of its mount. The mount itself is detached once PID 1 has its root:
//! it is reachable only by the descriptor here, which is closed in every child. So PID 1 can write the views, without the
//! right to mount, and no other process can.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

use crate::keeper::NEW_ROOT;
use crate::rootfs::new_mount;
use crate::{Error, Step};

/// The views of this sandbox.
pub(super) struct Views {
    /// Close-on-exec, like all descriptors of PID 1.
    root: OwnedFd,
}

impl Views {
    /// Writes the views into a new file system, mounted at the future mount point of the root.
    pub(super) fn make(views: &[(String, String)]) -> Result<Self, Error> {
        let root = new_mount("tmpfs", &[("mode", "0755"), ("size", "1m")])?;
        move_mount(
            root.as_fd(),
            c"",
            CWD,
            NEW_ROOT,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
        .step(|| "attach the views".into())?;
        for (path, contents) in views {
            let written = match path.strip_suffix('/') {
                Some(directory) => make_directories(&root, directory),
                None => write_new(&root, path, contents),
            };
            written.step(|| format!("write the view {path}"))?;
        }
        Ok(Self { root })
    }

    /// Replaces the contents of views, in place: a mount of a single file would not follow a rename. The new text is written
    /// before the file is truncated, so that no reader finds it empty.
    pub(super) fn rewrite(&self, views: &[(String, String)]) -> io::Result<()> {
        for (path, contents) in views {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(&self.root, path.as_str(), flags, Mode::empty())?;
            let file = File::from(opened);
            file.write_all_at(contents.as_bytes(), 0)?;
            file.set_len(contents.len() as u64)?;
        }
        Ok(())
    }
}

/// Creates a directory and its parents.
fn make_directories(root: &OwnedFd, path: &str) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o777);
    match rustix::fs::mkdirat(root, path, mode) {
        Err(Errno::NOENT) => {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            make_directories(root, above)?;
            Ok(rustix::fs::mkdirat(root, path, mode)?)
        }
        Err(Errno::EXIST) => Ok(()),
        made => Ok(made?),
    }
}

/// Writes a file; creates missing parent directories.
fn write_new(root: &OwnedFd, path: &str, contents: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o666));
    let opened = match (open(), path.rsplit_once('/')) {
        (Err(Errno::NOENT), Some((directory, _))) => {
            make_directories(root, directory)?;
            open()
        }
        (opened, _) => opened,
    };
    File::from(opened?).write_all(contents.as_bytes())
}
