//! The small file system of the views (see [`Boot::views`](crate::wire::Boot::views)).
//!
//! Programs see parts of it through read-only mounts. The mount they are clones of is in no tree once PID 1
//! has its root: only the descriptor here leads to it, and that is closed in every child. So PID 1 can write
//! what nobody else can, without a right to mount anything.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MoveMountFlags, move_mount};

use crate::keeper::NEW_ROOT;
use crate::rootfs::new_mount;
use crate::{Error, Step};

/// The views of this sandbox.
pub(super) struct Views {
    /// Closed on exec, as everything that PID 1 opens.
    root: OwnedFd,
}

impl Views {
    /// Writes the views into a file system of their own, mounted where the root will go.
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
            let directory = path.ends_with('/');
            let path = Path::new(NEW_ROOT).join(path);
            let written = if directory {
                fs::create_dir_all(&path)
            } else {
                let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
                parent.and_then(|()| fs::write(&path, contents))
            };
            written.step(|| format!("write the view {}", path.display()))?;
        }
        Ok(Self { root })
    }

    /// Has files say something else. In place: a mount of a single file would not follow another one of its
    /// name. The new text comes before the old one's rest goes, so that nobody finds a file empty.
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
