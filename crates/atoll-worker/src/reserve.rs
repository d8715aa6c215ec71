//! What sandboxes leave to the host. Limits of sandboxes are ceilings, not reservations: what decides whether
//! there is room for one more is what the machine really has left.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use atoll_model::{Bytes, Code, Error};

use crate::sandbox::lock;
use crate::storage::Space;

/// For so long a look at the memory is believed: many creates at once look once.
const BELIEVED: Duration = Duration::from_millis(100);

/// How much is the host's; what is not said is a part of what it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Of the data directory's disk.
    pub disk: Option<Bytes>,
    /// Of its memory.
    pub memory: Option<Bytes>,
}

/// Refuses sandboxes for which only the reserve is left.
#[derive(Debug)]
pub(crate) struct Admission {
    disk: Option<Bytes>,
    memory: Bytes,
    seen: Mutex<Option<(Instant, Bytes)>>,
}

impl Admission {
    /// On a host with so much memory.
    pub(crate) fn new(reserve: Reserve, memory: u64) -> Self {
        let own = Bytes(memory_reserve(memory));
        Self {
            disk: reserve.disk,
            memory: reserve.memory.unwrap_or(own),
            seen: Mutex::default(),
        }
    }

    /// There is room for one more whose files are below this directory.
    pub(crate) fn check(&self, data: &Path) -> Result<(), Error> {
        let mut space = Space::of(data)?;
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
                "{free} of memory are left, which are the host's reserve ({})",
                self.memory
            ),
        )
        .remedy("try again later; or stop, pause or delete sandboxes: what they use is free then")
        .detail("resource", "memory"))
    }

    /// What could be used without swapping; a kernel that does not tell is not asked.
    fn free_memory(&self) -> Option<Bytes> {
        let mut seen = lock(&self.seen);
        if let Some((when, free)) = *seen
            && when.elapsed() < BELIEVED
        {
            return Some(free);
        }
        let free = available(&fs::read_to_string("/proc/meminfo").ok()?)?;
        *seen = Some((Instant::now(), free));
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

/// The part of the memory that is the host's: 5 %, at least 512 MiB, at most 4 GiB, and never more than half of
/// a small one.
pub(crate) fn memory_reserve(memory: u64) -> u64 {
    (memory / 20).clamp(512 << 20, 4 << 30).min(memory / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_a_part_of_the_memory() {
        let of = |gib: u64| memory_reserve(gib << 30) >> 20;
        assert_eq!([of(0), of(4), of(64), of(1024)], [0, 512, 3276, 4096]);
        assert_eq!(memory_reserve(512 << 20) >> 20, 256);
    }

    #[test]
    fn the_kernel_tells_what_is_left() {
        let text = "MemTotal:       24613340 kB\nMemFree:  100 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(available(text), Some(Bytes(23_000_000 << 10)));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn where_only_the_reserve_is_left_nothing_is_made() {
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
