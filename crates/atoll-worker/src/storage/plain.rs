//! Storage in the sandbox's own directory. Limits are not enforced, and usage is measured on
//! request.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::{Bytes, Code, DiskUsage, Error, Limits, SandboxId};

use super::StorageBackend;
use crate::error::host_file_error;
use crate::tree;

/// Limits of one measurement.
const MAX_ENTRIES: u64 = 1_000_000;
const MAX_DURATION: Duration = Duration::from_secs(2);

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

impl StorageBackend for Plain {
    fn check_limit(&self, limit: Bytes) -> Result<(), Error> {
        if limit == Limits::default().disk {
            return Ok(());
        }
        Err(Error::new(
            Code::UnsupportedByHost,
            format!("disk {limit} cannot be enforced: storage is plain"),
        )
        .remedy("set storage = image (ATOLL_STORAGE=image), or leave disk unset")
        .detail("field", "disk")
        .detail("feature", "disk limits"))
    }

    fn directory(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes.join(id.as_str())
    }

    fn create(&self, id: &SandboxId, _: Bytes) -> Result<(), Error> {
        for part in ["upper", "work"] {
            super::make_directory(&self.directory(id).join(part))?;
        }
        Ok(())
    }

    fn set_limit(&self, _: &SandboxId, limit: Bytes) -> Result<(), Error> {
        self.check_limit(limit)
    }

    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error> {
        usage(&self.directory(id), limit)
    }

    fn remove(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    fn sweep(&self, _: &dyn Fn(&SandboxId) -> bool) -> Result<(), Error> {
        Ok(())
    }

    fn enforces_limits(&self) -> bool {
        false
    }

    fn can_export(&self) -> bool {
        true
    }

    fn close(&self) {}
}

/// Disk usage of the `upper` directory, as far as it can be measured within the limits.
pub(super) fn usage(directory: &Path, limit: Bytes) -> Result<DiskUsage, Error> {
    let upper = directory.join("upper");
    let opened = fs::File::open(&upper).map_err(|error| host_file_error("open", &upper, &error))?;
    let until = Instant::now() + MAX_DURATION;
    let more = |usage: &tree::Usage| usage.inodes < MAX_ENTRIES && Instant::now() < until;
    let mut found = tree::Usage::default();
    // If programs move directories meanwhile, the measurement is incomplete.
    let complete = tree::usage_while(opened.as_fd(), &mut found, more).unwrap_or(false);
    Ok(DiskUsage {
        used: Bytes(found.bytes),
        limit,
        enforced: false,
        complete,
    })
}
