//! One sparse file with a btrfs in it, mounted at `storage/` of the instance's directory. Every sandbox
//! has a subvolume of its own there, whose quota group is its limit; deleting one is one call, however
//! much is in it.
//!
//! All subvolumes are also in the group [`ALL`], whose limit follows the host's free space: a sparse file
//! can grow only while its host has room, and a file system that meets a full host is lost. So sandboxes
//! are told "disk quota exceeded" before that, and go on when there is room again.
//!
//! The mount is in the host's own namespace: it survives us, and whoever opens the instance next goes on
//! with it.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_jail::facts::Facts;
use atoll_jail::{btrfs, loop_image};
use atoll_model::{Bytes, Code, DiskUsage, Error, SandboxId};
use rustix::fs::{Mode, OFlags};

use super::{Disk, Space};
use crate::error::{host_file_error, internal, jail};
use crate::sync::lock;

/// The group of all sandboxes.
const ALL: u64 = btrfs::group(0);
/// What is deleted is given back to the host with the commit. Put off, it would be nobody's for minutes, and the
/// ceiling of all too low for as long.
const OPTIONS: &str = "commit=5,discard=sync";
/// The least a btrfs can be.
const LEAST: u64 = 128 << 20;
/// Commits that a deleted subvolume needs: one that wakes the cleaner, one that gives back what the cleaner freed,
/// and one for a cleaner that was late.
const COMMITS: u32 = 3;
/// How often the ceiling of all sandboxes is set by what the host has left, and commits follow each other.
const EVERY: Duration = Duration::from_secs(1);
const MAKER: &str = "mkfs.btrfs";

#[derive(Debug)]
pub(super) struct Image {
    /// Where it is mounted.
    at: PathBuf,
    /// Its top directory, until it is closed.
    top: Arc<Mutex<Option<Top>>>,
    ceiling: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

/// The mounted file system.
#[derive(Debug)]
struct Top {
    opened: OwnedFd,
    groups: PathBuf,
    /// Commits to begin for what was deleted.
    due: AtomicU32,
}

/// Why this host cannot have one, and what would help.
pub(super) fn missing(facts: &Facts) -> Option<(String, String)> {
    if !facts.filesystems.iter().any(|name| name == "btrfs") {
        let why = "the kernel does not know btrfs".into();
        return Some((why, "modprobe btrfs, or boot a kernel that has it".into()));
    }
    if !Path::new("/dev/loop-control").exists() {
        let why = "there are no loop devices".into();
        return Some((why, "modprobe loop".into()));
    }
    if maker().is_none() {
        let why = format!("{MAKER} is not installed");
        return Some((why, "apt-get install btrfs-progs".into()));
    }
    None
}

fn maker() -> Option<PathBuf> {
    let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];
    let mut paths = places.iter().map(|place| Path::new(place).join(MAKER));
    paths.find(|path| path.exists())
}

impl Image {
    /// Goes on with what is mounted, mounts what is there, or makes a new one.
    pub(super) fn open(directory: &Path, facts: &Facts) -> Result<Self, Error> {
        let (file, at) = (directory.join("storage.btrfs"), directory.join("storage"));
        crate::instance::private_directory(&at)?;
        if !loop_image::is_mounted(&at) {
            if !file.exists() {
                super::require(super::Storage::Image, facts)?;
                make(directory, &file)?;
            }
            loop_image::mount(&file, &at, OPTIONS).map_err(|error| jail(&error))?;
        }
        let top = Top::open(&at)?;
        if !top.groups.exists() {
            btrfs::enable_quotas(top.opened.as_fd()).map_err(|error| jail(&error))?;
        }
        btrfs::create_group(top.opened.as_fd(), ALL).map_err(|error| jail(&error))?;
        let image = Self {
            at,
            top: Arc::new(Mutex::new(Some(top))),
            ceiling: Mutex::default(),
        };
        image.follow(directory.to_owned())?;
        Ok(image)
    }

    fn with<T>(&self, work: impl FnOnce(&Top) -> Result<T, Error>) -> Result<T, Error> {
        match &*lock(&self.top) {
            Some(top) => work(top),
            None => Err(Error::new(Code::Internal, "the storage was closed")),
        }
    }

    /// Keeps the ceiling of all sandboxes below what the host has left.
    fn follow(&self, directory: PathBuf) -> Result<(), Error> {
        let top = Arc::clone(&self.top);
        let mut last = 0;
        let mut set = move || {
            if let Some(top) = &*lock(&top) {
                last = top.set_ceiling(&directory, last);
                top.hurry();
            }
        };
        set();
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("atoll-ceiling".into())
            .spawn(move || {
                while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    set();
                }
            });
        let thread = thread.map_err(|error| internal("start a thread", &error))?;
        *lock(&self.ceiling) = Some((stop, thread));
        Ok(())
    }
}

/// Makes the file, whole or not at all.
fn make(directory: &Path, file: &Path) -> Result<(), Error> {
    let space = Space::of(directory)?;
    space.require(directory)?;
    let size = space.left().0 & !0xfffff;
    if size < LEAST {
        let message = format!(
            "{} are left beside the host's reserve, too little for an image",
            space.left()
        );
        return Err(Error::new(Code::DiskFull, message).remedy("free some space, or run atoll gc"));
    }
    let new = file.with_extension("btrfs.new");
    let made = File::create(&new).and_then(|made| made.set_len(size));
    made.map_err(|error| host_file_error("create", &new, &error))?;
    let program = maker().unwrap_or_else(|| MAKER.into());
    let done = Command::new(&program)
        .args(["--quiet", "--force", "--nodiscard"])
        .args([
            "--metadata",
            "single",
            "--data",
            "single",
            "--label",
            "atoll",
        ])
        .arg(&new)
        .stdin(Stdio::null())
        .output();
    let done = done.map_err(|error| host_file_error("run", &program, &error))?;
    if !done.status.success() {
        let _ = fs::remove_file(&new);
        let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(Error::new(Code::Internal, format!("{MAKER}: {why}")));
    }
    fs::rename(&new, file).map_err(|error| host_file_error("create", file, &error))
}

impl Top {
    fn open(at: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(at, flags, Mode::empty())
            .map_err(|error| host_file_error("open", at, &error.into()))?;
        let id = btrfs::id(opened.as_fd()).map_err(|error| jail(&error))?;
        Ok(Self {
            opened,
            groups: Path::new("/sys/fs/btrfs").join(id).join("qgroups"),
            due: AtomicU32::new(0),
        })
    }

    /// The quota group of a sandbox; `None` if it has no subvolume.
    fn group(&self, id: &SandboxId) -> Result<Option<u64>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat(&self.opened, id.as_str(), flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => {
                return Err(host_file_error(
                    "open",
                    Path::new(id.as_str()),
                    &error.into(),
                ));
            }
        };
        let group = btrfs::subvolume(opened.as_fd());
        group.map(Some).map_err(|error| jail(&error))
    }

    fn number(&self, group: u64, name: &str) -> u64 {
        let file = format!("{}_{}/{name}", group >> 48, group & ((1 << 48) - 1));
        let text = fs::read_to_string(self.groups.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error> {
        let group = self.group(id)?;
        Ok(DiskUsage {
            // Counted, and written but not yet on the disk.
            used: Bytes(group.map_or(0, |group| {
                self.number(group, "referenced") + self.number(group, "rsv_data")
            })),
            limit,
            enforced: true,
            complete: true,
        })
    }

    /// Helps what was deleted on its way.
    fn hurry(&self) {
        let due = self.due.load(Relaxed);
        if due > 0 {
            self.due.store(due - 1, Relaxed);
            // Without it the same happens later.
            let _ = btrfs::begin_commit(self.opened.as_fd());
        }
    }

    /// Lets all sandboxes together take what the host has left, and no more. What was written and is
    /// not yet counted is on the host's disk already, so this errs on the host's side.
    fn set_ceiling(&self, directory: &Path, last: u64) -> u64 {
        let Ok(space) = Space::of(directory) else {
            return last;
        };
        let left = space.left().0;
        let ceiling = (self.number(ALL, "referenced") + left).max(1);
        // Every change is a transaction: not for what makes no difference.
        if last != 0 && ceiling.abs_diff(last) < (left / 8).max(4 << 20) {
            return last;
        }
        match btrfs::limit(self.opened.as_fd(), ALL, ceiling) {
            Ok(()) => ceiling,
            Err(_) => last,
        }
    }
}

impl Disk for Image {
    fn check(&self, _: Bytes) -> Result<(), Error> {
        Ok(())
    }

    fn place(&self, id: &SandboxId) -> PathBuf {
        self.at.join(id.as_str())
    }

    fn make(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error> {
        self.with(|top| {
            let made = btrfs::create(top.opened.as_fd(), id.as_str(), ALL);
            made.map_err(|error| jail(&error))
        })?;
        for part in ["upper", "work"] {
            super::make_directory(&self.place(id).join(part))?;
        }
        self.limit(id, limit)
    }

    fn limit(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error> {
        self.with(|top| {
            let group = top.group(id)?.ok_or_else(|| {
                Error::new(Code::Internal, format!("{id} has no place in the storage"))
            })?;
            let set = btrfs::limit(top.opened.as_fd(), group, limit.0);
            set.map_err(|error| jail(&error))
        })
    }

    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error> {
        self.with(|top| top.usage(id, limit))
    }

    fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        self.with(|top| {
            if top.group(id)?.is_none() {
                return Ok(());
            }
            let gone = btrfs::destroy(top.opened.as_fd(), id.as_str());
            gone.map_err(|error| jail(&error))?;
            top.due.store(COMMITS, Relaxed);
            Ok(())
        })
    }

    fn sweep(&self, known: &dyn Fn(&SandboxId) -> bool) -> Result<(), Error> {
        let entries = fs::read_dir(&self.at);
        let entries = entries.map_err(|error| host_file_error("read", &self.at, &error))?;
        for entry in entries.flatten() {
            let id = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(id) = id
                && !known(&id)
            {
                self.remove(&id)?;
            }
        }
        Ok(())
    }

    fn can_keep(&self) -> bool {
        false
    }

    fn close(&self) {
        let ceiling = lock(&self.ceiling).take();
        if let Some((stop, thread)) = ceiling {
            drop(stop);
            let _ = thread.join();
        }
        lock(&self.top).take();
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a sandbox takes in the storage of an instance that somebody else may have open; `None` where it is
/// not mounted.
pub(super) fn usage(
    directory: &Path,
    id: &SandboxId,
    limit: Bytes,
) -> Result<Option<DiskUsage>, Error> {
    let at = directory.join("storage");
    if !loop_image::is_mounted(&at) {
        return Ok(None);
    }
    Top::open(&at)?.usage(id, limit).map(Some)
}

/// Takes the mount of an instance away that nobody has.
pub(super) fn dismantle(directory: &Path) -> Result<(), Error> {
    loop_image::unmount(&directory.join("storage")).map_err(|error| jail(&error))
}
