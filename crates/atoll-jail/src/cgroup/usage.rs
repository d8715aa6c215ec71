//! Counters of a sandbox: processor time, memory, processes, kills by the OOM killer.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SandboxCgroup;

/// Current resource usage of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Processor time used so far.
    pub cpu: Duration,
    /// Bytes of memory, page cache included.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u64,
}

impl SandboxCgroup {
    /// Whether the sandbox has processes.
    pub fn is_populated(&self) -> bool {
        counter(&self.v2.join("cgroup.events"), "populated") != 0
    }

    /// Number of processes of the sandbox that the OOM killer has killed.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.memory == self.v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        // Read before and after every exec: opened once.
        let file = match self.oom_counter.get() {
            Some(file) => file,
            None => match fs::File::open(self.memory.join(file)) {
                Ok(file) => self.oom_counter.get_or_init(|| file),
                Err(_) => return 0,
            },
        };
        let mut text = [0; 512];
        let read = file.read_at(&mut text, 0).unwrap_or(0);
        number_after(&String::from_utf8_lossy(&text[..read]), "oom_kill")
    }

    /// Processor time used so far.
    pub fn processor_time(&self) -> Duration {
        processor_time(&self.v2)
    }

    /// Current resource usage.
    pub fn usage(&self) -> Usage {
        let number = |path: PathBuf| {
            fs::read_to_string(path)
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0)
        };
        let memory = if self.memory == self.v2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        Usage {
            cpu: self.processor_time(),
            memory: number(self.memory.join(memory)),
            pids: number(self.pids.join("pids.current")),
        }
    }

    /// Bytes of memory that are reclaimable page cache.
    pub fn cache(&self) -> u64 {
        let stat = fs::read_to_string(self.memory.join("memory.stat")).unwrap_or_default();
        let names = if self.memory == self.v2 {
            ["file", "shmem"]
        } else {
            ["total_cache", "total_shmem"]
        };
        let [files, shared] = names.map(|name| number_after(&stat, name));
        files.saturating_sub(shared)
    }
}

/// cgroup2 counts processor time in every directory, with or without controllers.
fn processor_time(v2: &Path) -> Duration {
    Duration::from_micros(counter(&v2.join("cpu.stat"), "usage_usec"))
}

/// The number after `name` in a file of `name number` lines.
pub(super) fn counter(path: &Path, name: &str) -> u64 {
    number_after(&fs::read_to_string(path).unwrap_or_default(), name)
}

pub(super) fn number_after(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(' ')?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}
