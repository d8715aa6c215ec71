//! The small process that is parent of every sandbox of an instance.
//!
//! It is started by exec from a sealed copy of the binary, so it has one thread and a file behind
//! it that no sandbox can reach. It lives in a mount namespace of its own with a root of its own,
//! which holds `/proc` and little else, so that a clone copies two mounts, whatever the host has. It
//! holds no secrets and resolves no path of a sandbox.
//!
//! ```text
//! server ── Spawn(control socket, cgroup) ──▶ keeper ── clone3 ──▶ PID 1
//!        ◀── Spawned(user namespace) ────────        ── ids mapped: go on ──▶
//!        ◀── Died ───────────────────────────        ◀── SIGCHLD
//! ```
//!
//! When its server goes away it ends its sandboxes, waits for the last of them, and ends.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, SealFlags};
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};

use crate::inside;
use crate::rootfs::new_mount;
use crate::sys::{self, Cloned};
use crate::wire::{Channel, Fault, FromKeeper, Packet, ToKeeper, VERSION};
use crate::{Error, Step};

/// What the keeper is called: the first argument tells `main` to become one.
pub const NAME: &str = "atoll-keeper";
/// What `ps` calls PID 1 inside a sandbox.
const TITLE: &str = "atoll-init";
/// Where the keeper's root has a place to put a sandbox's root before it becomes one.
pub(crate) const NEW_ROOT: &str = "/root";

/// Starts a keeper from a copy of `binary`, whose `main` calls [`run_if_asked`] first; the caller's
/// end of the conversation and the process. It holds the given descriptors (locks of the instance)
/// for as long as it lives.
pub fn start(
    binary: &Path,
    label: &str,
    held: &[BorrowedFd<'_>],
) -> Result<(Channel<ToKeeper, FromKeeper>, Child), Error> {
    let binary = sealed_copy(binary).step(|| format!("copy {}", binary.display()))?;
    let (ours, its) = crate::wire::pair().step(|| "make the keeper's socket".into())?;
    // Room for a title of any length: `ps` shows what fits into the arguments we start with.
    let child = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()))
        .arg0(NAME)
        .arg(format!("{label:<24}"))
        .env_clear()
        .stdin(Stdio::from(its.into_fd()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .step(|| "start the keeper".into())?;
    ours.send(&ToKeeper::Hello { version: VERSION }, held)
        .step(|| "greet the keeper".into())?;
    Ok((ours, child))
}

/// A copy that nobody can write: a sandbox that reached it could change nothing.
fn sealed_copy(binary: &Path) -> io::Result<OwnedFd> {
    let copy = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let own = fs::File::open(binary)?;
    let mut left = own.metadata()?.len();
    while left > 0 {
        let sent = rustix::fs::sendfile(&copy, &own, None, left as usize)?;
        if sent == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= sent as u64;
    }
    rustix::fs::fcntl_add_seals(
        &copy,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(copy)
}

/// Becomes a keeper if this process was started as one. Call it first in `main`, before any thread.
pub fn run_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        let code = match run() {
            Ok(()) => 0,
            Err(_) => 1,
        };
        sys::exit(code);
    }
}

struct Keeper {
    server: Channel<FromKeeper, ToKeeper>,
    /// Token of each living PID 1.
    sandboxes: BTreeMap<i32, u32>,
    /// The instance's locks: it is alive as long as we are.
    held: Vec<OwnedFd>,
}

fn run() -> Result<(), Error> {
    // Our server's socket is our standard input.
    let server = rustix::stdio::stdin()
        .try_clone_to_owned()
        .step(|| "take the socket".into())?;
    let _ = rustix::process::setsid();
    sys::set_name(c"atoll-keeper");
    // Whoever started us may run at real-time priority; sandboxes do not.
    sys::ordinary_priority();
    build_root()?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0).step(|| "be not dumpable".into())?;
    // User namespaces are made under the sandbox's own outside id, so that what the kernel counts
    // per user it counts per sandbox; changing ids must not cost us our capabilities.
    sys::prctl(libc::PR_SET_SECUREBITS, 1 << 2).step(|| "keep capabilities".into())?;
    let signals = sys::child_signals().step(|| "watch children".into())?;
    let mut keeper = Keeper {
        server: Channel::new(server),
        sandboxes: BTreeMap::new(),
        held: Vec::new(),
    };
    loop {
        let mut ready = [
            PollFd::new(&keeper.server, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
        ];
        match rustix::event::poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::step("poll", error)),
        }
        let spoken = !ready[0].revents().is_empty();
        let died = !ready[1].revents().is_empty();
        if died {
            keeper.bury(&signals);
        }
        if spoken && !keeper.listen()? {
            break;
        }
    }
    for pid in keeper.sandboxes.keys() {
        let _ = sys::kill(*pid, libc::SIGKILL);
    }
    while sys::reap_waiting().is_some() {}
    Ok(())
}

impl Keeper {
    /// Does what the server says next; false when it has gone.
    fn listen(&mut self) -> Result<bool, Error> {
        let Some(Packet {
            message,
            descriptors,
        }) = self.server.receive().step(|| "receive".into())?
        else {
            return Ok(false);
        };
        let answer = match message {
            ToKeeper::Hello { .. } => {
                self.held.extend(descriptors);
                (FromKeeper::Hello { version: VERSION }, None)
            }
            ToKeeper::Spawn {
                token,
                id_base,
                id_count,
                namespaces,
            } => match self.spawn(token, (id_base, id_count), namespaces, descriptors) {
                Ok((pid, user_namespace)) => (FromKeeper::Spawned { token, pid }, user_namespace),
                Err(fault) => (FromKeeper::Refused { token, fault }, None),
            },
        };
        let beside: Vec<_> = answer.1.iter().map(AsFd::as_fd).collect();
        // A server that went away is noticed by the next receive.
        let _ = self.server.send(&answer.0, &beside);
        Ok(true)
    }

    fn bury(&mut self, signals: &OwnedFd) {
        let mut discard = [0; 1024];
        while rustix::io::read(signals, &mut discard).is_ok_and(|read| read > 0) {}
        while let Some((pid, status)) = sys::reap() {
            if let Some(token) = self.sandboxes.remove(&pid) {
                let _ = self.server.send(&FromKeeper::Died { token, status }, &[]);
            }
        }
    }

    fn spawn(
        &mut self,
        token: u32,
        ids: (u32, u32),
        namespaces: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(i32, Option<OwnedFd>), Fault> {
        let mut descriptors = descriptors.into_iter();
        let control = descriptors
            .next()
            .ok_or_else(|| fault("no control socket", libc::EPROTO))?;
        let cgroup = descriptors.next();
        let (mut mapped, mapper) = io::pipe().map_err(named("make a pipe"))?;
        let users = namespaces & libc::CLONE_NEWUSER as u64 != 0;
        if users {
            sys::set_effective_uid(ids.0).map_err(named("take the sandbox's id"))?;
        }
        // SAFETY: the keeper has one thread.
        let cloned = unsafe { sys::clone(namespaces, cgroup.as_ref().map(AsFd::as_fd)) };
        if let Ok(Cloned::Child) = cloned {
            drop(mapper);
            if mapped.read_exact(&mut [0]).is_ok()
                && let Ok(control) = leave(control)
            {
                sys::set_title(TITLE);
                sys::set_name(c"atoll-init");
                inside::init(Channel::new(control));
            }
            sys::exit(1);
        }
        if users {
            sys::set_effective_uid(0).map_err(named("take our own id back"))?;
        }
        let Cloned::Parent(pid) = cloned.map_err(named("clone PID 1"))? else {
            return Err(fault("clone PID 1", libc::EPROTO));
        };
        self.sandboxes.insert(pid, token);
        let prepared = prepare(pid, ids, users, mapper);
        if prepared.is_err() {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        prepared.map(|namespace| (pid, namespace))
    }
}

/// Leaves every descriptor of the keeper behind but one.
fn leave(control: OwnedFd) -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(control, 10)?;
    let null = fs::File::open("/dev/null")?;
    for number in 0..=2 {
        sys::place(null.as_fd(), number)?;
    }
    drop(null);
    sys::keep_only(control, 3)
}

/// Maps the ids of a fresh PID 1 and lets it go on; its user namespace.
fn prepare(
    pid: i32,
    (base, count): (u32, u32),
    users: bool,
    mut mapper: io::PipeWriter,
) -> Result<Option<OwnedFd>, Fault> {
    let mut namespace = None;
    if users {
        let map = format!("0 {base} {count}\n");
        fs::write(format!("/proc/{pid}/gid_map"), &map).map_err(named("map group ids"))?;
        fs::write(format!("/proc/{pid}/uid_map"), &map).map_err(named("map user ids"))?;
        let opened = fs::File::open(format!("/proc/{pid}/ns/user"));
        namespace = Some(opened.map_err(named("open the user namespace"))?.into());
    }
    mapper.write_all(&[1]).map_err(named("let PID 1 go on"))?;
    Ok(namespace)
}

fn fault(step: &str, errno: i32) -> Fault {
    Fault {
        step: step.into(),
        errno,
    }
}

fn named(step: &'static str) -> impl Fn(io::Error) -> Fault {
    move |error| fault(step, error.raw_os_error().unwrap_or(libc::EIO))
}

/// Leaves the host's mounts behind for a root with just what sandboxes share.
fn build_root() -> Result<(), Error> {
    // SAFETY: this process has one thread and shares no file system state with another.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .step(|| "unshare mounts".into())?;
    rustix::mount::mount_change(
        "/",
        rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC,
    )
    .step(|| "make mounts private".into())?;
    let root = new_mount("tmpfs", &[("mode", "0755"), ("size", "1m")])?;
    let proc = new_mount("proc", &[])?;
    let any = |step: &'static str| move || step.to_owned();
    // Any directory will do to hang the new root on; this one is always there.
    move_mount(
        root.as_fd(),
        c"",
        CWD,
        c"/proc",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step(any("attach the keeper's root"))?;
    rustix::process::fchdir(&root).step(any("enter the keeper's root"))?;
    rustix::process::pivot_root(c".", c".").step(any("pivot to the keeper's root"))?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).step(any("leave the host's root"))?;
    rustix::process::chdir(c"/").step(any("enter the keeper's root"))?;
    for directory in ["proc", "dev"] {
        fs::create_dir(Path::new("/").join(directory)).step(|| format!("mkdir {directory}"))?;
    }
    fs::create_dir(NEW_ROOT).step(any("mkdir the new root"))?;
    move_mount(
        proc.as_fd(),
        c"",
        CWD,
        c"/proc",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step(any("attach proc"))?;
    let null = rustix::fs::makedev(1, 3);
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(CWD, c"/dev/null", FileType::CharacterDevice, mode, null)
        .step(any("make /dev/null"))
}
