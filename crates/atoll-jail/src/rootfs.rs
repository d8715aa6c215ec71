//! A sandbox's root: an overlay of template layers below and one directory of its own above, both
//! stored with ids from 0 and mounted with the sandbox's ids. Mounts stay detached: they are in
//! no mount table until PID 1 attaches them in its own. Other mounts that are created outside are here too.

mod stage;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, openat, openat2, statat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, fspick,
    open_tree,
};

use crate::plan::{IdRange, Layers};
use crate::{Error, Step, sys};

/// Parts of a root.
#[derive(Debug)]
pub struct Root<'a> {
    /// Template layers, the topmost first.
    pub layers: &'a [BorrowedFd<'a>],
    /// The sandbox's directory, which holds `upper` and `work`.
    pub directory: BorrowedFd<'a>,
    /// The sandbox's user namespace; without one ids are not mapped.
    pub user_namespace: Option<BorrowedFd<'a>>,
    /// The ids of that namespace.
    pub ids: IdRange,
    /// Mount the root `nosuid`.
    pub nosuid: bool,
    /// Whether `fsync` inside waits for the disk.
    pub durable: bool,
    /// How this kernel accepts layers.
    pub taken: Layers,
}

/// Mounts a root. Returns the mount, and the descriptors of its layers, which are not needed any more; closing them waits
/// for RCU grace periods, so the caller closes them where no request waits.
pub fn mount(root: &Root<'_>) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
    let mapped = |directory: BorrowedFd<'_>, what: &str| -> Result<OwnedFd, Error> {
        let tree = clone_tree(directory, c"").step(|| format!("clone the mount of {what}"))?;
        sys::mount_setattr(tree.as_fd(), 0, root.user_namespace)
            .map_err(|error| unmapped(error, what))?;
        Ok(tree)
    };
    // The sandbox's own first, then the topmost layer and those below it.
    let mut mounts = vec![mapped(root.directory, "the sandbox's directory")?];
    for layer in root.layers {
        mounts.push(mapped(*layer, "a template layer")?);
    }
    let options = Options {
        ids: root.user_namespace.map(|_| root.ids),
        nosuid: root.nosuid,
        durable: root.durable,
    };
    match root.taken {
        Layers::Detached => Ok((overlay(&mounts, options)?, mounts)),
        Layers::Attached => {
            let made = stage::attached(mounts, move |mounts| overlay(mounts, options));
            Ok((made?, Vec::new()))
        }
    }
}

/// Names the cause of `EINVAL`: a file system without id-mapped mounts.
fn unmapped(error: std::io::Error, what: &str) -> Error {
    if error.raw_os_error() != Some(libc::EINVAL) {
        return Error::step(format!("map the ids of {what}"), error);
    }
    Error::Unsupported {
        feature: "mapped ids",
        why: format!("the file system of {what} cannot be mounted with the ids of a sandbox"),
        remedy: "keep the data directory on ext4, xfs or btrfs (tmpfs can since Linux 6.3), or set ATOLL_DATA_DIR",
    }
}

/// How an overlay is mounted.
#[derive(Clone, Copy)]
struct Options {
    /// `None` if ids are not mapped.
    ids: Option<IdRange>,
    nosuid: bool,
    durable: bool,
}

/// Creates the overlay of a sandbox's directory and its layers, whose mounts have mapped ids.
fn overlay(mounts: &[OwnedFd], options: Options) -> Result<OwnedFd, Error> {
    let Some((own, layers)) = mounts.split_first() else {
        return Err(Error::step("make an overlay", rustix::io::Errno::INVAL));
    };
    let part = |name: &str| {
        rustix::fs::openat(
            own,
            name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .step(|| format!("open {name}"))
    };
    let (upper, work) = (part("upper")?, part("work")?);

    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).step(|| "open overlay".into())?;
    let set = |name: &str, value: &str| {
        fsconfig_set_string(overlay.as_fd(), name, value)
            .step(|| format!("set overlay {name}={value}"))
    };
    let path = |descriptor: &OwnedFd| format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    set("source", "atoll")?;
    set(
        "lowerdir",
        &layers.iter().map(path).collect::<Vec<_>>().join(":"),
    )?;
    set("upperdir", &path(&upper))?;
    set("workdir", &path(&work))?;
    // `redirect_dir`: directories of a layer can be renamed.
    set("redirect_dir", "on")?;
    if !options.durable {
        // Neither `fsync` inside nor the end of the sandbox waits for the disk; a stop syncs what it keeps.
        fsconfig_set_flag(overlay.as_fd(), "volatile").step(|| "set overlay volatile".into())?;
    }
    create_as(&overlay, options.ids)?;

    let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    if options.nosuid {
        attributes |= MountAttrFlags::MOUNT_ATTR_NOSUID;
    }
    let mount = fsmount(overlay.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .step(|| "mount overlay".into())?;
    // With wrong ids the kernel mounts it read-only and reports that only in its log.
    let found = rustix::fs::fstatvfs(&mount).step(|| "look at the overlay".into())?;
    if found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(Error::step(
            "mount overlay: it came up read-only",
            rustix::io::Errno::ROFS,
        ));
    }
    Ok(mount)
}

/// Creates the overlay with the file system ids of the sandbox's root: the kernel creates the work directory with the
/// ids of the mounting thread, and those of the host's root are not mapped.
fn create_as(overlay: &OwnedFd, ids: Option<IdRange>) -> Result<(), Error> {
    const NO_SETUID_FIXUP: u64 = 1 << 2;
    let Some(ids) = ids else {
        return fsconfig_create(overlay.as_fd()).step(|| "create overlay".into());
    };
    let bits = sys::prctl(libc::PR_GET_SECUREBITS, 0).step(|| "read securebits".into())? as u64;
    sys::prctl(libc::PR_SET_SECUREBITS, bits | NO_SETUID_FIXUP)
        .step(|| "keep capabilities".into())?;
    sys::set_file_ids(ids.base, ids.base);
    let created = fsconfig_create(overlay.as_fd());
    sys::set_file_ids(0, 0);
    sys::prctl(libc::PR_SET_SECUREBITS, bits).step(|| "restore securebits".into())?;
    created.step(|| "create overlay".into())
}

/// Device nodes every sandbox has: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
/// Links every sandbox has in `/dev`.
const LINKS: [(&str, &str); 6] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/self/fd/core"),
];

/// The `/dev` of one sandbox: a detached tmpfs with device nodes, which cannot be created inside. It is not shared between
/// sandboxes, because a shared inode shares its locks and watches.
pub fn devices(ids: IdRange) -> Result<OwnedFd, Error> {
    let options = [("mode", "0755"), ("size", "64k"), ("nr_inodes", "64")];
    let dev = new_mount("tmpfs", &options)?;
    let owner = (Uid::from_raw(ids.base), Gid::from_raw(ids.base));
    let own = |name: &str| {
        rustix::fs::chownat(
            &dev,
            name,
            Some(owner.0),
            Some(owner.1),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .step(|| format!("chown /dev/{name}"))
    };
    for (name, major, minor) in DEVICES {
        let device = rustix::fs::makedev(major, minor);
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(&dev, name, FileType::CharacterDevice, mode, device)
            .step(|| format!("make /dev/{name}"))?;
        // `chmod`, because the umask of the process must not be changed.
        rustix::fs::chmodat(&dev, name, mode, AtFlags::empty())
            .step(|| format!("chmod /dev/{name}"))?;
        own(name)?;
    }
    for (name, target) in LINKS {
        rustix::fs::symlinkat(target, &dev, name).step(|| format!("link /dev/{name}"))?;
        own(name)?;
    }
    for name in ["pts", "shm", "mqueue"] {
        let mode = Mode::from_raw_mode(0o755);
        rustix::fs::mkdirat(&dev, name, mode).step(|| format!("make /dev/{name}"))?;
        rustix::fs::chmodat(&dev, name, mode, AtFlags::empty())
            .step(|| format!("chmod /dev/{name}"))?;
        own(name)?;
    }
    own(".")?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    sys::mount_setattr(dev.as_fd(), attributes, None).step(|| "make /dev read-only".into())?;
    Ok(dev)
}

/// The devpts of one sandbox, created outside so that the server can open terminals without a request to PID 1. See
/// [`crate::terminal`].
pub fn terminals(ids: IdRange) -> Result<OwnedFd, Error> {
    // Group `tty` in the sandbox.
    let group = (ids.base + 5).to_string();
    let options = [
        ("ptmxmode", "0666"),
        ("mode", "0620"),
        ("gid", group.as_str()),
        ("max", "256"),
    ];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    new_mount_with("devpts", &options, attributes)
}

/// A detached, read-only mount of a file or directory of the host.
pub fn host_mount(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
    let tree =
        open_tree(CWD, path, flags).step(|| format!("clone the mount of {}", path.display()))?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    sys::mount_setattr(tree.as_fd(), attributes, None)
        .step(|| format!("make the mount of {} read-only", path.display()))?;
    Ok(tree)
}

/// A detached copy of the mount at `path` below a descriptor.
pub(crate) fn clone_tree(
    directory: BorrowedFd<'_>,
    path: &std::ffi::CStr,
) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
    if path.is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    } else {
        flags |= OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    }
    open_tree(directory, path, flags)
}

/// Resizes file systems in memory. Only for a sandbox that has not run a program: later its paths are not trusted. The pid
/// may be reused meanwhile, so the network namespace is compared.
pub fn resize_in_memory(
    pid: i32,
    namespace: u64,
    sizes: &[(&'static str, u64)],
) -> Result<(), Error> {
    let gone = || Error::step("look at PID 1", Errno::SRCH);
    let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let process = openat(CWD, format!("/proc/{pid}"), path, Mode::empty()).map_err(|_| gone())?;
    let root = openat(&process, "root", path, Mode::empty()).map_err(|_| gone())?;
    let found = statat(&process, "ns/net", AtFlags::empty()).map_err(|_| gone())?;
    if found.st_ino != namespace {
        return Err(gone());
    }
    for (name, size) in sizes {
        let what = || format!("give {name} {size} bytes");
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let at = name.trim_start_matches('/');
        let at = openat2(&root, at, path, Mode::empty(), inside).step(what)?;
        let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
        let context = fspick(at.as_fd(), "", flags).step(what)?;
        fsconfig_set_string(context.as_fd(), "size", size.to_string()).step(what)?;
        fsconfig_reconfigure(context.as_fd()).step(what)?;
    }
    Ok(())
}

/// A new, detached file system.
pub(crate) fn new_mount(kind: &str, options: &[(&str, &str)]) -> Result<OwnedFd, Error> {
    new_mount_with(kind, options, MountAttrFlags::empty())
}

/// The same with mount attributes.
pub(crate) fn new_mount_with(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Error> {
    let context =
        fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step(|| format!("open file system {kind}"))?;
    for (name, value) in options {
        fsconfig_set_string(context.as_fd(), *name, *value)
            .step(|| format!("set {kind} {name}={value}"))?;
    }
    fsconfig_create(context.as_fd()).step(|| format!("create {kind}"))?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .step(|| format!("mount {kind}"))
}
