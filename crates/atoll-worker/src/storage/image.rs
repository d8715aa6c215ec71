//! Storage in one sparse file with btrfs, mounted at `storage/` in the instance's directory. Each
//! sandbox has a subvolume, whose quota group enforces its limit; deleting one is a single call,
//! whatever its size.
//!
//! All subvolumes are also in the quota group [`ALL`], whose limit follows the host's free space. A
//! sparse file can grow only while the host has space, and btrfs does not survive a full host, so
//! sandboxes get EDQUOT before that and can write again when the host has space.
//!
//! The mount is in the host's mount namespace: it survives the server, and the next server of the
//! instance uses it.

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

use super::{DiskSpace, StorageBackend};
use crate::error::{host_file_error, internal, jail};
use crate::sync::lock;

/// Quota group of all sandboxes.
const ALL: u64 = btrfs::group(0);
/// Discard on commit, so that deleted data is returned to the host after seconds. Otherwise the
/// host's free space, and with it the limit of [`ALL`], would be too low for minutes.
const OPTIONS: &str = "commit=5,discard=sync";
/// Minimum size of a btrfs file system.
const MIN_IMAGE_BYTES: u64 = 128 << 20;
/// Commits after deleting a subvolume: one to wake the cleaner, one to release what it freed, and
/// one in case the cleaner was late.
const COMMITS_PER_DELETE: u32 = 3;
/// Interval between two updates of the limit of [`ALL`], and between two commits.
const CEILING_INTERVAL: Duration = Duration::from_secs(1);
const MKFS: &str = "mkfs.btrfs";

#[derive(Debug)]
pub(super) struct Image {
    /// Directory where the file system is mounted.
    mount_point: PathBuf,
    /// The mounted file system; `None` after the backend was closed.
    mounted: Arc<Mutex<Option<MountedFs>>>,
    ceiling: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

/// The mounted file system.
#[derive(Debug)]
struct MountedFs {
    dir: OwnedFd,
    groups: PathBuf,
    /// Number of commits that are still to be started for deleted subvolumes.
    due_commits: AtomicU32,
}

/// The first missing requirement of this host, with its remedy.
pub(super) fn missing_requirement(facts: &Facts) -> Option<(String, String)> {
    if !facts.filesystems.iter().any(|name| name == "btrfs") {
        let reason = "the kernel has no btrfs".into();
        return Some((
            reason,
            "modprobe btrfs, or boot a kernel that has it".into(),
        ));
    }
    if !Path::new("/dev/loop-control").exists() {
        let reason = "there are no loop devices".into();
        return Some((reason, "modprobe loop".into()));
    }
    if find_mkfs().is_none() {
        let reason = format!("{MKFS} is not installed");
        return Some((reason, "apt-get install btrfs-progs".into()));
    }
    None
}

fn find_mkfs() -> Option<PathBuf> {
    let directories = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"];
    let mut paths = directories
        .iter()
        .map(|directory| Path::new(directory).join(MKFS));
    paths.find(|path| path.exists())
}

impl Image {
    /// Uses the existing mount, mounts the existing image, or creates one.
    pub(super) fn open(directory: &Path, facts: &Facts) -> Result<Self, Error> {
        let (file, mount_point) = (directory.join("storage.btrfs"), directory.join("storage"));
        crate::instance::private_directory(&mount_point)?;
        if !loop_image::is_mounted(&mount_point) {
            if !file.exists() {
                super::check_host(super::Storage::Image, facts)?;
                create_image(directory, &file)?;
            }
            loop_image::mount(&file, &mount_point, OPTIONS).map_err(|error| jail(&error))?;
        }
        let mounted = MountedFs::open(&mount_point)?;
        if !mounted.groups.exists() {
            btrfs::enable_quotas(mounted.dir.as_fd()).map_err(|error| jail(&error))?;
        }
        btrfs::create_group(mounted.dir.as_fd(), ALL).map_err(|error| jail(&error))?;
        let image = Self {
            mount_point,
            mounted: Arc::new(Mutex::new(Some(mounted))),
            ceiling: Mutex::default(),
        };
        image.start_ceiling_thread(directory.to_owned())?;
        Ok(image)
    }

    fn with<T>(&self, work: impl FnOnce(&MountedFs) -> Result<T, Error>) -> Result<T, Error> {
        match &*lock(&self.mounted) {
            Some(mounted) => work(mounted),
            None => Err(Error::new(Code::Internal, "the storage was closed")),
        }
    }

    /// Starts the thread that updates the limit of [`ALL`].
    fn start_ceiling_thread(&self, directory: PathBuf) -> Result<(), Error> {
        let mounted = Arc::clone(&self.mounted);
        let mut last = 0;
        let mut set = move || {
            if let Some(mounted) = &*lock(&mounted) {
                last = mounted.set_ceiling(&directory, last);
                mounted.start_due_commit();
            }
        };
        set();
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("atoll-ceiling".into())
            .spawn(move || {
                while stopped.recv_timeout(CEILING_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    set();
                }
            });
        let thread = thread.map_err(|error| internal("start a thread", &error))?;
        *lock(&self.ceiling) = Some((stop, thread));
        Ok(())
    }
}

/// Creates the image file, atomically.
fn create_image(directory: &Path, file: &Path) -> Result<(), Error> {
    let space = DiskSpace::for_path(directory)?;
    space.require(directory)?;
    let size = space.available().0 & !0xfffff;
    if size < MIN_IMAGE_BYTES {
        let message = format!(
            "only {} is free besides the host's reserve, too little for an image",
            space.available()
        );
        return Err(Error::new(Code::DiskFull, message).remedy("free some space, or run atoll gc"));
    }
    let new = file.with_extension("btrfs.new");
    let created = File::create(&new).and_then(|created| created.set_len(size));
    created.map_err(|error| host_file_error("create", &new, &error))?;
    let program = find_mkfs().unwrap_or_else(|| MKFS.into());
    let output = Command::new(&program)
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
    let output = output.map_err(|error| host_file_error("run", &program, &error))?;
    if !output.status.success() {
        let _ = fs::remove_file(&new);
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::new(Code::Internal, format!("{MKFS}: {reason}")));
    }
    fs::rename(&new, file).map_err(|error| host_file_error("create", file, &error))
}

impl MountedFs {
    fn open(mount_point: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(mount_point, flags, Mode::empty())
            .map_err(|error| host_file_error("open", mount_point, &error.into()))?;
        let id = btrfs::id(dir.as_fd()).map_err(|error| jail(&error))?;
        Ok(Self {
            dir,
            groups: Path::new("/sys/fs/btrfs").join(id).join("qgroups"),
            due_commits: AtomicU32::new(0),
        })
    }

    /// Quota group of a sandbox; `None` if it has no subvolume.
    fn group(&self, id: &SandboxId) -> Result<Option<u64>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::openat(&self.dir, id.as_str(), flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => {
                return Err(host_file_error(
                    "open",
                    Path::new(id.as_str()),
                    &error.into(),
                ));
            }
        };
        let group = btrfs::subvolume(dir.as_fd());
        group.map(Some).map_err(|error| jail(&error))
    }

    fn read_counter(&self, group: u64, name: &str) -> u64 {
        let file = format!("{}_{}/{name}", group >> 48, group & ((1 << 48) - 1));
        let text = fs::read_to_string(self.groups.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error> {
        let group = self.group(id)?;
        Ok(DiskUsage {
            // Accounted usage, and writes that are not on disk yet.
            used: Bytes(group.map_or(0, |group| {
                self.read_counter(group, "referenced") + self.read_counter(group, "rsv_data")
            })),
            limit,
            enforced: true,
            complete: true,
        })
    }

    /// Starts one of the due commits.
    fn start_due_commit(&self) {
        let due_commits = self.due_commits.load(Relaxed);
        if due_commits > 0 {
            self.due_commits.store(due_commits - 1, Relaxed);
            // If this fails, the periodic commit does it later.
            let _ = btrfs::begin_commit(self.dir.as_fd());
        }
    }

    /// Limits all sandboxes together to what the host has free. Writes that are not accounted yet
    /// already use space on the host, so the limit is never too high.
    fn set_ceiling(&self, directory: &Path, last: u64) -> u64 {
        let Ok(space) = DiskSpace::for_path(directory) else {
            return last;
        };
        let available = space.available().0;
        let ceiling = (self.read_counter(ALL, "referenced") + available).max(1);
        // Each change is a transaction, so small changes are skipped.
        if last != 0 && ceiling.abs_diff(last) < (available / 8).max(4 << 20) {
            return last;
        }
        match btrfs::limit(self.dir.as_fd(), ALL, ceiling) {
            Ok(()) => ceiling,
            Err(_) => last,
        }
    }
}

impl StorageBackend for Image {
    fn check_limit(&self, _: Bytes) -> Result<(), Error> {
        Ok(())
    }

    fn directory(&self, id: &SandboxId) -> PathBuf {
        self.mount_point.join(id.as_str())
    }

    fn create(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error> {
        self.with(|mounted| {
            let created = btrfs::create(mounted.dir.as_fd(), id.as_str(), ALL);
            created.map_err(|error| jail(&error))
        })?;
        for part in ["upper", "work"] {
            super::make_directory(&self.directory(id).join(part))?;
        }
        self.set_limit(id, limit)
    }

    fn set_limit(&self, id: &SandboxId, limit: Bytes) -> Result<(), Error> {
        self.with(|mounted| {
            let group = mounted.group(id)?.ok_or_else(|| {
                Error::new(
                    Code::Internal,
                    format!("{id} has no subvolume in the storage"),
                )
            })?;
            let set = btrfs::limit(mounted.dir.as_fd(), group, limit.0);
            set.map_err(|error| jail(&error))
        })
    }

    fn usage(&self, id: &SandboxId, limit: Bytes) -> Result<DiskUsage, Error> {
        self.with(|mounted| mounted.usage(id, limit))
    }

    fn remove(&self, id: &SandboxId) -> Result<(), Error> {
        self.with(|mounted| {
            if mounted.group(id)?.is_none() {
                return Ok(());
            }
            let destroyed = btrfs::destroy(mounted.dir.as_fd(), id.as_str());
            destroyed.map_err(|error| jail(&error))?;
            mounted.due_commits.store(COMMITS_PER_DELETE, Relaxed);
            Ok(())
        })
    }

    fn sweep(&self, known: &dyn Fn(&SandboxId) -> bool) -> Result<(), Error> {
        let entries = fs::read_dir(&self.mount_point);
        let entries =
            entries.map_err(|error| host_file_error("read", &self.mount_point, &error))?;
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

    fn enforces_limits(&self) -> bool {
        true
    }

    fn can_export(&self) -> bool {
        false
    }

    fn close(&self) {
        let ceiling = lock(&self.ceiling).take();
        if let Some((stop, thread)) = ceiling {
            drop(stop);
            let _ = thread.join();
        }
        lock(&self.mounted).take();
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.close();
    }
}

/// Usage of a sandbox in the storage of an instance that another process may have open; `None` if
/// it is not mounted.
pub(super) fn usage(
    directory: &Path,
    id: &SandboxId,
    limit: Bytes,
) -> Result<Option<DiskUsage>, Error> {
    let mount_point = directory.join("storage");
    if !loop_image::is_mounted(&mount_point) {
        return Ok(None);
    }
    MountedFs::open(&mount_point)?.usage(id, limit).map(Some)
}

/// Unmounts the storage of a dead instance.
pub(super) fn unmount(directory: &Path) -> Result<(), Error> {
    loop_image::unmount(&directory.join("storage")).map_err(|error| jail(&error))
}
