//! The control groups of a sandbox: limits, a directory for each exec, kill, counters.
//!
//! Layout, in every hierarchy that has a controller we use, and always in cgroup2:
//! `atoll-TAG/` (all sandboxes of an instance and the keeper, with a reserve for the host) / `ID/` (one sandbox,
//! its limits; PID 1 lives here) and in cgroup2 only / `x1/`, `x2/` … (each exec). Execs inherit the v1
//! groups from PID 1 and are cloned straight into their cgroup2 directory, because moving a process
//! waits for an RCU grace period. Killing is always done by cgroup2, which does it at once.
//!
//! With the controllers in cgroup2 only the root and `atoll-TAG/` give them to their children: a directory
//! that does cannot contain processes, and `ID/` contains PID 1. All below `ID/` counts for its limits.

mod freeze;
mod leaf;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::facts::{CONTROLLERS, Facts};
use crate::plan::{IdRange, Limits};
use crate::{Error, Step};
pub use leaf::{End, Leaf};

/// Time limit for processes to freeze or to end.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The parent of an instance's sandboxes.
#[derive(Debug, Clone)]
pub struct InstanceCgroup {
    v1: Vec<(String, PathBuf)>,
    v2: PathBuf,
    memory: PathBuf,
}

/// One sandbox's control groups.
#[derive(Debug, Clone)]
pub struct SandboxCgroup {
    v1: Vec<PathBuf>,
    v2: PathBuf,
    memory: PathBuf,
    pids: PathBuf,
    owner: u32,
    oom_counter: Arc<OnceLock<fs::File>>,
}

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

fn name(tag: &str) -> String {
    format!("atoll-{tag}")
}

impl InstanceCgroup {
    /// Creates the parent of an instance's sandboxes. `memory` is their common limit in bytes.
    pub fn create(facts: &Facts, tag: &str, memory: u64) -> Result<Self, Error> {
        let tree = Self::of(facts, tag)?;
        for (_, path) in &tree.v1 {
            make(path)?;
        }
        if let (Some(root), false) = (&facts.cgroups.v2, facts.cgroups.v2_controllers.is_empty()) {
            delegate(facts, root)?;
            make(&tree.v2)?;
            delegate(facts, &tree.v2)?;
        } else {
            make(&tree.v2)?;
        }
        let file = if tree.memory == tree.v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        write(&tree.memory.join(file), &memory.to_string())?;
        Ok(tree)
    }

    /// The parent of an instance's sandboxes, without creating it.
    pub fn of(facts: &Facts, tag: &str) -> Result<Self, Error> {
        let v2 = facts
            .cgroups
            .v2
            .as_ref()
            .ok_or_else(|| Error::Unsupported {
                feature: "control groups",
                why: "no cgroup2 hierarchy is mounted".into(),
                remedy: "mount one: mount -t cgroup2 none /sys/fs/cgroup/unified",
            })?;
        let v2 = v2.join(name(tag));
        let v1: Vec<_> = facts
            .cgroups
            .v1
            .iter()
            .map(|(controller, mount)| (controller.clone(), mount.join(name(tag))))
            .collect();
        let memory = v1
            .iter()
            .find(|(c, _)| c == "memory")
            .map_or_else(|| v2.clone(), |(_, p)| p.clone());
        Ok(Self { v1, v2, memory })
    }

    /// Moves the keeper into the group, so that it is not killed with the group of the process that
    /// started it. The first move after a while waits for an RCU grace period; done concurrently with
    /// other work it spares the first sandbox that wait.
    pub fn adopt(&self, keeper: u32) -> Result<(), Error> {
        let own = self.v2.join("keeper");
        make(&own)?;
        let keeper = keeper.to_string();
        let mut doors: Vec<&PathBuf> = self.v1.iter().map(|(_, path)| path).collect();
        doors.push(&own);
        doors
            .iter()
            .try_for_each(|path| write(&path.join("cgroup.procs"), &keeper))
    }

    /// Creates the groups of one sandbox with its limits. On failure nothing remains.
    pub fn add(&self, id: &str, limits: &Limits, ids: IdRange) -> Result<SandboxCgroup, Error> {
        let group = self.group(id, ids);
        let made = group.make(limits, self);
        if made.is_err() {
            let _ = group.remove();
        }
        made.map(|()| group)
    }

    /// The groups of a sandbox, without creating them.
    pub fn group(&self, id: &str, ids: IdRange) -> SandboxCgroup {
        let at = |controller: &str| {
            let v1 = self.v1.iter().find(|(known, _)| known == controller);
            v1.map_or(&self.v2, |(_, path)| path).join(id)
        };
        let mut v1: Vec<PathBuf> = self.v1.iter().map(|(_, path)| path.join(id)).collect();
        v1.sort();
        v1.dedup();
        SandboxCgroup {
            v1,
            v2: self.v2.join(id),
            memory: at("memory"),
            pids: at("pids"),
            owner: ids.base,
            oom_counter: Arc::default(),
        }
    }

    /// Names of all sandboxes that have groups in this instance.
    pub fn names(&self) -> Vec<String> {
        let paths = self.v1.iter().map(|(_, path)| path).chain([&self.v2]);
        let mut names: Vec<String> = paths
            .filter_map(|path| fs::read_dir(path).ok())
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Kills all processes of all sandboxes of the instance and removes the groups.
    pub fn destroy(&self) -> Result<(), Error> {
        if self.v2.exists() {
            let _ = write(&self.v2.join("cgroup.kill"), "1");
            wait_empty(&self.v2)?;
        }
        for path in self.v1.iter().map(|(_, path)| path).chain([&self.v2]) {
            remove_tree(path)?;
        }
        Ok(())
    }

    /// The tags of all instances that have groups on this host.
    pub fn tags(facts: &Facts) -> Vec<String> {
        let roots = facts.cgroups.v1.values().chain(&facts.cgroups.v2);
        let mut tags: Vec<String> = roots
            .filter_map(|root| fs::read_dir(root).ok())
            .flatten()
            .filter_map(|entry| {
                Some(
                    entry
                        .ok()?
                        .file_name()
                        .to_str()?
                        .strip_prefix("atoll-")?
                        .to_owned(),
                )
            })
            .collect();
        tags.sort();
        tags.dedup();
        tags
    }
}

impl SandboxCgroup {
    fn make(&self, limits: &Limits, tree: &InstanceCgroup) -> Result<(), Error> {
        for path in self.v1.iter().chain([&self.v2]) {
            make(path)?;
        }
        for (path, value) in self.files(limits, tree) {
            write(&path, value)?;
        }
        // PID 1 clones execs into leaves: for that it must own `cgroup.procs` of the common ancestor.
        self.chown_to_sandbox(&self.v2)
    }

    /// Files of the limits and their values.
    fn files<'a>(&self, limits: &'a Limits, tree: &InstanceCgroup) -> Vec<(PathBuf, &'a str)> {
        let id = self.v2.file_name().unwrap_or_default();
        let mut files = Vec::new();
        for (controller, of_v1) in &limits.v1 {
            if let Some((_, parent)) = tree.v1.iter().find(|(known, _)| known == controller) {
                let at = |file: &String| parent.join(id).join(file);
                files.extend(of_v1.iter().map(|(file, value)| (at(file), value.as_str())));
            }
        }
        let of_v2 = limits.v2.iter();
        files.extend(of_v2.map(|(file, value)| (self.v2.join(file), value.as_str())));
        files
    }

    /// Changes limits; on failure the old limits stay. Fails with `EBUSY` if more memory is in use than can be
    /// reclaimed.
    pub fn change(&self, from: &Limits, to: &Limits, tree: &InstanceCgroup) -> Result<(), Error> {
        let (from, to) = (self.files(from, tree), self.files(to, tree));
        let changed = self.step(&from, &to);
        if changed.is_err() {
            let _ = self.step(&to, &from);
        }
        changed
    }

    fn step(&self, from: &[(PathBuf, &str)], to: &[(PathBuf, &str)]) -> Result<(), Error> {
        let gone = from
            .iter()
            .filter(|(path, _)| to.iter().all(|(other, _)| other != path))
            .filter_map(|(path, _)| Some((path, unlimited(path)?)));
        let new = to
            .iter()
            .filter(|file| !from.contains(file))
            .map(|(path, value)| (path, *value));
        let mut late = Vec::new();
        for (path, value) in new.chain(gone) {
            if path.ends_with("memory.max") {
                self.make_room(value)?;
            }
            match write(path, value) {
                // In v1 the memory limit may never exceed that of memory and swap: the order of the two writes matters.
                Err(Error::Step { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
                    late.push((path, value));
                }
                written => written?,
            }
        }
        late.iter().try_for_each(|(path, value)| write(path, value))
    }

    /// Reclaims memory above a new limit first: cgroup2 would OOM-kill for it. What cannot be reclaimed is an
    /// error, as in v1.
    fn make_room(&self, limit: &str) -> Result<(), Error> {
        let used = || self.usage().memory;
        let Ok(limit) = limit.parse::<u64>() else {
            return Ok(());
        };
        let above = used().saturating_sub(limit);
        if above > 0 {
            // The write fails if not all was reclaimed; the usage is checked below.
            let _ = write(&self.v2.join("memory.reclaim"), &above.to_string());
            if used() > limit {
                let busy = io::Error::from_raw_os_error(libc::EBUSY);
                let step = format!("limit the memory of {}", self.v2.display());
                return Err(Error::step(step, busy));
            }
        }
        Ok(())
    }

    fn chown_to_sandbox(&self, directory: &Path) -> Result<(), Error> {
        let door = directory.join("cgroup.procs");
        std::os::unix::fs::chown(&door, Some(self.owner), Some(self.owner))
            .step(|| format!("chown {}", door.display()))
    }

    /// Moves PID 1 into the v1 hierarchies. Its children inherit them.
    pub fn attach(&self, pid: i32) -> Result<(), Error> {
        self.v1
            .iter()
            .try_for_each(|path| write(&path.join("cgroup.procs"), &pid.to_string()))
    }

    /// Opens the sandbox's cgroup2 directory, for `CLONE_INTO_CGROUP`.
    pub fn open(&self) -> Result<OwnedFd, Error> {
        open(&self.v2)
    }

    /// Kills every process of the sandbox.
    pub fn kill(&self) -> Result<(), Error> {
        write(&self.v2.join("cgroup.kill"), "1")
    }

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

    /// Removes the groups after waiting for the end of their processes (with a time limit).
    pub fn remove(&self) -> Result<(), Error> {
        if self.v2.exists() {
            wait_empty(&self.v2)?;
        }
        self.v1
            .iter()
            .chain([&self.v2])
            .try_for_each(|path| remove_tree(path))
    }
}

/// What a file says that limits nothing, where plans leave such a limit out.
fn unlimited(path: &Path) -> Option<&'static str> {
    match path.file_name()?.to_str()? {
        "cpu.cfs_quota_us" => Some("-1"),
        "cpu.max" => Some("max"),
        _ => None,
    }
}

/// Lets the children of a cgroup2 directory use the controllers that v1 does not hold. Those they have
/// already are left alone: the root directory is not ours.
fn delegate(facts: &Facts, directory: &Path) -> Result<(), Error> {
    let control = directory.join("cgroup.subtree_control");
    let given = fs::read_to_string(&control).unwrap_or_default();
    let wanted: Vec<String> = CONTROLLERS
        .iter()
        .filter(|c| !facts.cgroups.v1.contains_key(**c))
        .filter(|c| facts.cgroups.v2_controllers.iter().any(|known| known == *c))
        .filter(|c| !given.split_whitespace().any(|known| known == **c))
        .map(|c| format!("+{c}"))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    write(&control, &wanted.join(" "))
}

fn make(path: &Path) -> Result<(), Error> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::step(format!("mkdir {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    rustix::fs::open(
        path,
        OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step(|| format!("open {}", path.display()))
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    fs::write(path, value).step(|| format!("write {value} to {}", path.display()))
}

/// cgroup2 counts processor time in every directory, with or without controllers.
fn processor_time(v2: &Path) -> Duration {
    Duration::from_micros(counter(&v2.join("cpu.stat"), "usage_usec"))
}

/// The number after `name` in a file of `name number` lines.
fn counter(path: &Path, name: &str) -> u64 {
    number_after(&fs::read_to_string(path).unwrap_or_default(), name)
}

fn number_after(text: &str, name: &str) -> u64 {
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

/// Waits until no process is left below a cgroup2 directory.
fn wait_empty(path: &Path) -> Result<(), Error> {
    let events = path.join("cgroup.events");
    let what = || format!("wait until {} is empty", path.display());
    wait_until(what, || counter(&events, "populated") == 0)
}

/// Waits until something is so, which takes a moment.
fn wait_until(what: impl Fn() -> String, is_so: impl Fn() -> bool) -> Result<(), Error> {
    if poll_until(WAIT_TIMEOUT, is_so) {
        return Ok(());
    }
    let busy = io::Error::from_raw_os_error(libc::EBUSY);
    Err(Error::step(what(), busy))
}

/// Whether something is so before long.
fn poll_until(timeout: Duration, is_so: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    // A poll on the kernel's files wakes at most once in 10 ms, so they are read again and again: the less often the longer
    // it takes, for the reader may stand in the way of those it waits for.
    const SHORTEST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(1);
    while !is_so() {
        if begin.elapsed() > timeout {
            return false;
        }
        std::thread::sleep((begin.elapsed() / 2).clamp(SHORTEST, LONGEST));
    }
    true
}

/// Removes a directory and those below it. A group whose last process is still exiting is
/// busy for a moment longer than `populated` says.
fn remove_tree(path: &Path) -> Result<(), Error> {
    // The common case: nothing below.
    if fs::remove_dir(path).is_ok() {
        return Ok(());
    }
    if let Ok(entries) = fs::read_dir(path) {
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path())?;
            }
        }
    }
    let begin = Instant::now();
    loop {
        match rustix::fs::unlinkat(rustix::fs::CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if begin.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(error) => return Err(Error::step(format!("rmdir {}", path.display()), error)),
        }
    }
}
