//! Admission of new sandboxes by free memory and disk space of the host.
//!
//! Limits of sandboxes are ceilings, not reservations: a sandbox is admitted if the host has more
//! free than its reserve.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use atoll_model::{Bytes, Code, Error};

use crate::storage::DiskSpace;
use crate::sync::lock;

/// Cache lifetime of the memory reading, so that concurrent creates read it once.
const CACHE_TTL: Duration = Duration::from_millis(100);

/// Amounts reserved for the host. `None` means the default share of what the host has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Of the data directory's file system.
    pub disk: Option<Bytes>,
    /// Of the host's memory.
    pub memory: Option<Bytes>,
}

/// Checks new sandboxes against the reserve.
#[derive(Debug)]
pub(crate) struct Admission {
    disk: Option<Bytes>,
    memory: Bytes,
    cached: Mutex<Option<(Instant, Bytes)>>,
}

impl Admission {
    /// `memory` is the host's memory in bytes.
    pub(crate) fn new(reserve: Reserve, memory: u64) -> Self {
        let default = Bytes(memory_reserve(memory));
        Self {
            disk: reserve.disk,
            memory: reserve.memory.unwrap_or(default),
            cached: Mutex::default(),
        }
    }

    /// Fails if only the reserve is left. `data` is a directory on the sandboxes' file system.
    pub(crate) fn check(&self, data: &Path) -> Result<(), Error> {
        let mut space = DiskSpace::for_path(data)?;
        space.reserve = self.disk.unwrap_or(space.reserve);
        space.require(data)?;
        let Some(free) = self.free_memory() else {
            return Ok(());
        };
        if free > self.memory {
            return Ok(());
        }
        Err(Error::new(
            Code::NoCapacity,
            format!(
                "only {free} of memory is available, and {} is reserved for the host",
                self.memory
            ),
        )
        .remedy("try again later, or stop or delete sandboxes to free memory")
        .detail("resource", "memory"))
    }

    /// Memory available without swapping. `None` if the kernel does not report it, and then it is
    /// not checked.
    fn free_memory(&self) -> Option<Bytes> {
        let mut cached = lock(&self.cached);
        if let Some((when, free)) = *cached
            && when.elapsed() < CACHE_TTL
        {
            return Some(free);
        }
        let free = available(&fs::read_to_string("/proc/meminfo").ok()?)?;
        *cached = Some((Instant::now(), free));
        Some(free)
    }
}

fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes << 10))
}

/// Memory reserved for the host by default: 5 %, at least 512 MiB, at most 4 GiB, and never more
/// than half of it.
pub(crate) fn memory_reserve(memory: u64) -> u64 {
    (memory / 20).clamp(512 << 20, 4 << 30).min(memory / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reserve_is_a_clamped_share() {
        let of = |gib: u64| memory_reserve(gib << 30) >> 20;
        assert_eq!([of(0), of(4), of(64), of(1024)], [0, 512, 3276, 4096]);
        assert_eq!(memory_reserve(512 << 20) >> 20, 256);
    }

    #[test]
    fn available_memory_is_parsed() {
        let text = "MemTotal:       24613340 kB\nMemFree:  100 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(available(text), Some(Bytes(23_000_000 << 10)));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn admission_fails_below_the_reserve() {
        let check = |reserve: Reserve| {
            let admission = Admission::new(reserve, 8 << 30);
            admission.check(Path::new("/")).map_err(|error| error.code)
        };
        let (nothing, all) = (Some(Bytes(0)), Some(Bytes(1 << 60)));
        let reserve = |disk, memory| Reserve { disk, memory };
        assert_eq!(check(reserve(nothing, nothing)), Ok(()));
        assert_eq!(check(reserve(nothing, all)), Err(Code::NoCapacity));
        assert_eq!(check(reserve(all, nothing)), Err(Code::DiskFull));
    }
}
