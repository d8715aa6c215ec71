//! Setup of the sandbox by PID 1: first the steps that do not need the root, and the others when the root arrives. Mounts
//! are attached by descriptor and never through a symbolic link, so that a template with `/dev` or `/proc` as a link is
//! rejected.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountAttrFlags, MoveMountFlags, UnmountFlags, move_mount};
use rustix::thread::UnshareFlags;

use super::Server;
use super::views::Views;
use crate::keeper::NEW_ROOT;
use crate::rootfs::{clone_tree, new_mount_with};
use crate::seccomp::Clone3Cookie;
use crate::wire::{Boot, Fault, Mount, Packet, Source, ToInit};
use crate::{Error, Step, seccomp, sys};

/// `CAP_SYS_ADMIN` in the sandbox's own user namespace: PID 1 installs the filter with it. Later it is permitted
/// but not effective: root inside may change the scheduling only of processes whose permitted capabilities are a subset
/// of its own.
const SYS_ADMIN: u64 = 1 << 21;

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Step { step, source } => Self {
                step,
                errno: source.raw_os_error().unwrap_or(libc::EIO),
            },
            Error::Unsupported { feature, .. } => Self {
                step: feature.into(),
                errno: libc::ENOSYS,
            },
        }
    }
}

/// State of PID 1 after the setup.
pub(super) struct Made {
    pub(super) boot: Boot,
    /// PID 1's `oom_score_adj`. It can be opened only before PID 1 becomes undumpable.
    pub(super) oom_score: fs::File,
    /// For `clone3`.
    pub(super) cookie: Clone3Cookie,
    pub(super) views: Views,
}

/// Handles the messages `Boot` and `Go`; afterwards the sandbox is complete.
pub(super) fn become_sandbox(server: &Server) -> Result<Made, Fault> {
    let Some(Packet {
        message: ToInit::Boot(boot),
        ..
    }) = server.receive().step(|| "receive the plan".into())?
    else {
        return Err(Fault {
            step: "receive the plan".into(),
            errno: libc::EPROTO,
        });
    };
    let oom_score = open_oom_score()?;
    let (views, prepared) = prepare(&boot)?;
    let Some(Packet {
        message: ToInit::Go,
        descriptors,
    }) = server.receive().step(|| "receive the root".into())?
    else {
        return Err(Fault {
            step: "receive the root".into(),
            errno: libc::EPROTO,
        });
    };
    let mut descriptors = descriptors.into_iter();
    let root = descriptors.next().ok_or(Fault {
        step: "receive the root".into(),
        errno: libc::EPROTO,
    })?;
    enter(&root)?;
    for (mount, prepared) in boot.mounts.iter().zip(prepared) {
        let source = match (&mount.source, prepared) {
            (Source::Devices | Source::Terminals | Source::Handed { .. }, _) => {
                Some(descriptors.next().ok_or_else(|| Fault {
                    step: format!("receive the mount of {}", mount.target),
                    errno: libc::EPROTO,
                })?)
            }
            (_, prepared) => prepared,
        };
        attach(mount, source, &root)?;
    }
    drop(root);
    if boot.cgroup_namespace {
        unshare(UnshareFlags::NEWCGROUP).step(|| "unshare the cgroup namespace".into())?;
    }
    let cookie = confine(&boot)?;
    Ok(Made {
        boot,
        oom_score,
        cookie,
        views,
    })
}

fn open_oom_score() -> Result<fs::File, Error> {
    sys::set_ids(0, 0, &[]).step(|| "become root of the sandbox".into())?;
    // The sandbox has no other process yet.
    sys::prctl(libc::PR_SET_DUMPABLE, 1).step(|| "be dumpable for a moment".into())?;
    let opened = fs::OpenOptions::new()
        .write(true)
        .open("/proc/self/oom_score_adj");
    sys::prctl(libc::PR_SET_DUMPABLE, 0).step(|| "be not dumpable".into())?;
    opened.step(|| "open oom_score_adj".into())
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: PID 1 has one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Executes the steps that do not need the root. Returns the views, and the detached mounts that can be created already.
fn prepare(boot: &Boot) -> Result<(Views, Vec<Option<OwnedFd>>), Error> {
    sys::default_signals();
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)
        .step(|| "die with the keeper".into())?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::system::sethostname(boot.hostname.as_bytes()).step(|| "set the host name".into())?;
    if boot.loopback {
        sys::loopback_up().step(|| "bring the loopback interface up".into())?;
    }
    if !boot.processors.is_empty() {
        sys::set_processors(0, &boot.processors).step(|| "choose processors".into())?;
    }
    let (current, maximum) = boot.open_files;
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit {
            current: Some(current),
            maximum: Some(maximum),
        },
    )
    .step(|| "limit open files".into())?;
    rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit {
            current: Some(0),
            maximum: None,
        },
    )
    .step(|| "switch core dumps off".into())?;
    let views = Views::make(&boot.views)?;
    let mounts = boot
        .mounts
        .iter()
        .map(|mount| match &mount.source {
            Source::New { kind, options } => {
                let options: Vec<_> = options
                    .iter()
                    .map(|(n, v)| (n.as_str(), v.as_str()))
                    .collect();
                let attributes = MountAttrFlags::from_bits_retain(mount.attributes);
                new_mount_with(kind, &options, attributes).map(Some)
            }
            Source::View { path } => {
                let tree = CString::new(format!("{NEW_ROOT}/{path}"))
                    .map_err(io::Error::from)
                    .and_then(|path| Ok(clone_tree(CWD, &path)?))
                    .step(|| format!("clone the view {path}"))?;
                with_attributes(tree, mount).map(Some)
            }
            Source::Devices | Source::Terminals | Source::Handed { .. } | Source::Again => Ok(None),
        })
        .collect::<Result<_, Error>>()?;
    Ok((views, mounts))
}

fn with_attributes(tree: OwnedFd, mount: &Mount) -> Result<OwnedFd, Error> {
    sys::mount_setattr(tree.as_fd(), u64::from(mount.attributes), None)
        .step(|| format!("set the attributes of {}", mount.target))?;
    Ok(tree)
}

/// Pivots to the new root and detaches all other mounts.
fn enter(root: &OwnedFd) -> Result<(), Error> {
    move_mount(
        root.as_fd(),
        c"",
        CWD,
        NEW_ROOT,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step(|| "attach the root".into())?;
    rustix::process::fchdir(root).step(|| "enter the root".into())?;
    rustix::process::pivot_root(c".", c".").step(|| "pivot to the root".into())?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).step(|| "leave the keeper's root".into())?;
    rustix::process::chdir(c"/").step(|| "enter the root".into())
}

fn attach(mount: &Mount, source: Option<OwnedFd>, root: &OwnedFd) -> Result<(), Error> {
    let target_name = &mount.target;
    let source = if let Some(source) = source {
        source
    } else {
        let target = open_target(root, target_name, None)?;
        let again = clone_tree(target.as_fd(), c"").step(|| format!("clone {target_name}"))?;
        with_attributes(again, mount)?
    };
    let kind =
        rustix::fs::fstat(&source).step(|| format!("look at the source of {target_name}"))?;
    let directory = rustix::fs::FileType::from_raw_mode(kind.st_mode).is_dir();
    let target = open_target(root, target_name, Some(directory))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(source.as_fd(), c"", target.as_fd(), c"", flags)
        .step(|| format!("mount {target_name}"))
}

/// Opens a mount point below the root without following symbolic links. With `create`, missing components are created:
/// directories, and as the last one a directory (true) or an empty file (false).
fn open_target(root: &OwnedFd, path: &str, create: Option<bool>) -> Result<OwnedFd, Error> {
    let refused = |error: io::Error| {
        let link = matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR));
        let hint = if link {
            " (the template has a symbolic link or a file in its place)"
        } else {
            ""
        };
        Error::step(format!("open the mount point {path}{hint}"), error)
    };
    // An existing mount point is opened in one step.
    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    if create == Some(true) {
        flags |= OFlags::DIRECTORY;
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let relative = path.trim_start_matches('/');
    match rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve) {
        Err(rustix::io::Errno::NOENT) if create.is_some() => {}
        found => return found.map_err(|error| refused(error.into())),
    }
    let mut at = root.try_clone().map_err(refused)?;
    let mut components = path.split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = components.next() {
        let last = components.peek().is_none();
        let directory = !last || create == Some(true);
        let mut flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if directory {
            flags |= OFlags::DIRECTORY;
        }
        let mut opened = rustix::fs::openat(&at, name, flags, Mode::empty());
        if opened.as_ref().err() == Some(&rustix::io::Errno::NOENT) {
            if directory {
                rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755))
                    .map_err(|e| refused(e.into()))?;
            } else {
                let make = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(&at, name, make, Mode::from_raw_mode(0o644))
                    .map_err(|e| refused(e.into()))?;
            }
            opened = rustix::fs::openat(&at, name, flags, Mode::empty());
        }
        at = opened.map_err(|error| refused(error.into()))?;
        let kind = rustix::fs::fstat(&at).map_err(|error| refused(error.into()))?;
        if rustix::fs::FileType::from_raw_mode(kind.st_mode).is_symlink() {
            return Err(refused(io::Error::from_raw_os_error(libc::ELOOP)));
        }
    }
    Ok(at)
}

/// Drops privileges. Afterwards PID 1 has only those that it needs to start programs as other users of the sandbox.
fn confine(boot: &Boot) -> Result<Clone3Cookie, Error> {
    for capability in 0..64 {
        if boot.capabilities & (1 << capability) == 0 {
            match sys::prctl(libc::PR_CAPBSET_DROP, capability) {
                Ok(_) => {}
                // The first number that the kernel does not know ends the list.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
                Err(error) => {
                    return Err(Error::step(format!("drop capability {capability}"), error));
                }
            }
        }
    }
    let all = boot.capabilities | SYS_ADMIN;
    sys::set_capabilities(all, all).step(|| "give up capabilities".into())?;
    let cookie = sys::random_words().step(|| "choose a cookie".into())?;
    if !boot.filter.is_empty() {
        seccomp::from_bytes(&boot.filter)
            .ok_or(io::Error::from_raw_os_error(libc::EINVAL))
            .and_then(|filter| seccomp::install(&seccomp::for_init(&filter, &cookie)))
            .step(|| "install the filter".into())?;
    }
    sys::set_capabilities(all, boot.capabilities).step(|| "put SYS_ADMIN down".into())?;
    Ok(cookie)
}
