//! Directories of the data directory's own file system, each inside its sandbox's directory and gone
//! with it. Nothing keeps a limit; what is taken is measured when somebody asks.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::{Bytes, Code, DiskUsage, Error, Limits, SandboxId};

use super::Disk;
use crate::error::host_file_error;
use crate::tree;

/// The most entries that are looked at for one sandbox, and for how long.
const MOST_ENTRIES: u64 = 1_000_000;
const LONGEST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Plain {
    sandboxes: PathBuf,
}

impl Plain {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            sandboxes: directory.join("sandboxes"),
        }
    }
}

impl Disk for Plain {
    fn check(&self, limit: Bytes) -> Result<(), Error> {
        if limit == Limits::default().disk {
            return Ok(());
        }
        Err(Error::new(
            Code::UnsupportedByHost,
            format!("disk {limit} cannot be kept: storage is plain"),
        )
        .remedy("set storage = image (ATOLL_STORAGE=image), or leave disk as it is")
        .detail("field", "disk")
        .detail("feature", "disk limits"))
    }

    fn place(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes.join(id.as_str())
    }

    fn make(&self, id: &SandboxId, _: Bytes) -> Result<(), Error> {
        for part in ["upper", "work"] {
            super::make_directory(&self.place(id).join(part))?;
        }
        Ok(())
    }

    fn limit(&self, _: &SandboxId, limit: Bytes) -> Result<(), Error> {
        self.check(limit)
    }

    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error> {
        usage(&self.place(id), limit)
    }

    fn remove(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    fn sweep(&self, _: &dyn Fn(&SandboxId) -> bool) -> Result<(), Error> {
        Ok(())
    }

    fn can_keep(&self) -> bool {
        true
    }

    fn close(&self) {}
}

/// What the `upper` of a sandbox's directory takes, as far as it can be told in a moment.
pub(super) fn usage(directory: &Path, limit: Bytes) -> Result<DiskUsage, Error> {
    let upper = directory.join("upper");
    let opened = fs::File::open(&upper).map_err(|error| host_file_error("open", &upper, &error))?;
    let until = Instant::now() + LONGEST;
    let more = |usage: &tree::Usage| usage.inodes < MOST_ENTRIES && Instant::now() < until;
    let mut found = tree::Usage::default();
    // A sandbox that moves its directories about meanwhile is measured as far as it was seen.
    let complete = tree::usage_while(opened.as_fd(), &mut found, more).unwrap_or(false);
    Ok(DiskUsage {
        used: Bytes(found.bytes),
        limit,
        enforced: false,
        complete,
    })
}
