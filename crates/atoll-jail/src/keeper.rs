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
//! A keeper that was given a listening socket outlives its server: it holds the server's end of every
//! control socket and the streams of every exec, and hands them to the next server that connects. It
//! ends when it has neither sandboxes nor a server. Without one it ends its sandboxes with its server.

mod cradle;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, SealFlags};
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};

use crate::inside;
use crate::rootfs::new_mount;
use crate::sys;
use crate::wire::{Channel, Fault, FromKeeper, Packet, Spoken, ToKeeper, VERSION};
use crate::{Error, Step};
use cradle::Cradle;

/// What the keeper is called: the first argument tells `main` to become one.
pub const NAME: &str = "atoll-keeper";
/// How long a server waits for a keeper's next word while it takes over.
const PATIENCE: Duration = Duration::from_secs(10);
/// What `ps` calls PID 1 inside a sandbox.
const TITLE: &str = "atoll-init";
/// Where the keeper's root has a place to put a sandbox's root before it becomes one.
pub(crate) const NEW_ROOT: &str = "/root";

/// Starts a keeper from a copy of `binary`, whose `main` calls [`run_if_asked`] first; the caller's
/// end of the conversation and the process. With a socket (see [`listen`]) it outlives its server. It
/// holds the given descriptors (locks of the instance) for as long as it lives.
pub fn start(
    binary: &Path,
    label: &str,
    listener: Option<OwnedFd>,
    held: &[BorrowedFd<'_>],
) -> Result<(Channel<ToKeeper, FromKeeper>, Child), Error> {
    let binary = match shown_read_only(binary) {
        Ok(shown) => shown,
        // Without the right to mount.
        Err(_) => sealed_copy(binary).step(|| format!("copy {}", binary.display()))?,
    };
    let (ours, its) = crate::wire::pair().step(|| "make the keeper's socket".into())?;
    // Room for a title of any length: `ps` shows what fits into the arguments we start with.
    let child = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()))
        .arg0(NAME)
        .arg(format!("{label:<24}"))
        .env_clear()
        .stdin(Stdio::from(its.into_fd()))
        .stdout(listener.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .step(|| "start the keeper".into())?;
    ours.send(&ToKeeper::Hello { version: VERSION }, held)
        .step(|| "greet the keeper".into())?;
    Ok((ours, child))
}

/// Makes the socket at which a lasting keeper is found, by an open directory and a name in it.
pub fn listen(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Error> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let step = || format!("listen at {name}");
    let _ = rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty());
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .step(step)?;
    rustix::net::bind(&socket, &address(directory, name)?).step(step)?;
    rustix::net::listen(&socket, 8).step(step)?;
    Ok(socket)
}

/// Speaks to the keeper that is found there; nothing if there is none (any more).
pub fn connect(
    directory: BorrowedFd<'_>,
    name: &str,
) -> Result<Option<Channel<ToKeeper, FromKeeper>>, Error> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let step = || format!("connect to {name}");
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .step(step)?;
    // It answers at once, or something is wrong with it.
    for way in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, way, Some(PATIENCE)).step(step)?;
    }
    match rustix::net::connect(&socket, &address(directory, name)?) {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => return Ok(None),
        Err(error) => return Err(Error::step(step(), error)),
    }
    let channel = Channel::new(socket);
    match channel.send(&ToKeeper::Hello { version: VERSION }, &[]) {
        Ok(()) => Ok(Some(channel)),
        // It was on its way out.
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Error::step("greet the keeper", error)),
    }
}

/// Whoever was at the other end has ended.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// A path to a socket that is short however long the directory's is.
fn address(directory: BorrowedFd<'_>, name: &str) -> Result<rustix::net::SocketAddrUnix, Error> {
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    rustix::net::SocketAddrUnix::new(path).step(|| format!("name the socket {name}"))
}

/// The binary through a mount of its own, read-only and nowhere attached: a sandbox that reached it could change
/// nothing. What runs from it shares its pages with us.
fn shown_read_only(binary: &Path) -> io::Result<OwnedFd> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    // The file itself: what `/proc/self/exe` leads to.
    let path = fs::canonicalize(binary)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let shown = open_tree(CWD, &path, flags)?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
    sys::mount_setattr(shown.as_fd(), attributes, None)?;
    Ok(shown)
}

/// A copy that nobody can write, where there can be no mount.
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
    /// Who speaks to us; nobody while there is no server.
    server: Option<Channel<FromKeeper, ToKeeper>>,
    /// Where the next server knocks; without it there is no next one.
    listener: Option<OwnedFd>,
    /// The living sandboxes, by the pid of their PID 1.
    sandboxes: BTreeMap<i32, Kept>,
    /// Those that ended while there was no server, with what their execs still had to say.
    dead: Vec<(Kept, i32)>,
    /// The instance's locks: it is alive as long as we are.
    held: Vec<OwnedFd>,
    /// Where the next PID 1 comes from.
    cradle: Cradle,
}

/// What is kept of a sandbox for the next server.
struct Kept {
    token: u32,
    name: String,
    /// The server's end of its control socket.
    control: OwnedFd,
    /// Descriptors of its execs.
    execs: BTreeMap<u32, Vec<OwnedFd>>,
}

impl Kept {
    fn tell(&self, server: &Channel<FromKeeper, ToKeeper>, pid: i32) -> io::Result<()> {
        let (token, name) = (self.token, self.name.clone());
        let sandbox = FromKeeper::Sandbox { token, name, pid };
        server.send(&sandbox, &[self.control.as_fd()])?;
        for (&request, descriptors) in &self.execs {
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            server.send(&FromKeeper::Held { token, request }, &descriptors)?;
        }
        Ok(())
    }
}

fn run() -> Result<(), Error> {
    let cradle = Cradle::new().step(|| "reserve descriptors".into())?;
    // Our server's socket is our standard input, the listening one our standard output.
    let take = |stream: BorrowedFd<'_>| {
        let taken = stream.try_clone_to_owned();
        taken.step(|| "take a socket".into())
    };
    let server = take(rustix::stdio::stdin())?;
    let listener = take(rustix::stdio::stdout())?;
    let listening = rustix::net::sockopt::socket_acceptconn(&listener).unwrap_or(false);
    let _ = rustix::process::setsid();
    sys::set_name(c"atoll-keeper");
    // Whoever started us may run before others; sandboxes do not. PID 1 is as quick as we are.
    sys::be_quick();
    sys::put_session_first();
    build_root()?;
    let _ = sys::respect_quotas();
    sys::prctl(libc::PR_SET_DUMPABLE, 0).step(|| "be not dumpable".into())?;
    // User namespaces are made under the sandbox's own outside id, so that what the kernel counts
    // per user it counts per sandbox; changing ids must not cost us our capabilities.
    sys::prctl(libc::PR_SET_SECUREBITS, 1 << 2).step(|| "keep capabilities".into())?;
    let signals = sys::child_signals().step(|| "watch children".into())?;
    let mut keeper = Keeper {
        server: Some(Channel::new(server)),
        listener: listening.then_some(listener),
        sandboxes: BTreeMap::new(),
        dead: Vec::new(),
        held: Vec::new(),
        cradle,
    };
    while keeper.is_needed() {
        keeper.turn(&signals)?;
    }
    for pid in keeper.sandboxes.keys() {
        let _ = sys::kill(*pid, libc::SIGKILL);
    }
    while sys::reap_waiting().is_some() {}
    Ok(())
}

impl Keeper {
    fn is_needed(&self) -> bool {
        let kept = !self.sandboxes.is_empty() || !self.dead.is_empty();
        self.server.is_some() || (self.listener.is_some() && kept)
    }

    /// Waits for something to happen and sees to it.
    fn turn(&mut self, signals: &OwnedFd) -> Result<(), Error> {
        let mut ready = vec![PollFd::new(signals, PollFlags::IN)];
        let server = self.server.as_ref().map(|server| {
            ready.push(PollFd::new(server, PollFlags::IN));
            ready.len() - 1
        });
        let listener = self.listener.as_ref().map(|listener| {
            ready.push(PollFd::new(listener, PollFlags::IN));
            ready.len() - 1
        });
        let gate = self.cradle.gate().map(|gate| {
            ready.push(PollFd::from_borrowed_fd(gate, PollFlags::IN));
            ready.len() - 1
        });
        match rustix::event::poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::step("poll", error)),
        }
        let happened = |index: Option<usize>| {
            index.is_some_and(|index| ready.get(index).is_some_and(|fd| !fd.revents().is_empty()))
        };
        let (died, spoken, knocked) = (happened(Some(0)), happened(server), happened(listener));
        if happened(gate) {
            self.cradle.settle();
        }
        if died {
            self.bury(signals);
        }
        if spoken && !self.listen() {
            self.server = None;
        }
        if knocked {
            self.welcome();
        }
        Ok(())
    }

    /// Takes the next server in place of the last. Only root can reach the socket, and only one server
    /// at a time has the lock of the data directory.
    fn welcome(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        if let Ok(server) = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
            self.server = Some(Channel::new(server));
        }
    }

    /// Does what the server says next; false when it has gone.
    fn listen(&mut self) -> bool {
        let Some(server) = &self.server else {
            return false;
        };
        let Ok(Some(Packet {
            message,
            descriptors,
        })) = server.receive()
        else {
            return false;
        };
        if !matches!(message, ToKeeper::Hello { .. }) {
            // It goes on with what it was told; one that could not would have gone.
            self.dead.clear();
        }
        match message {
            ToKeeper::Hello { .. } => {
                self.held.extend(descriptors);
                return self.tell_all().is_ok();
            }
            ToKeeper::Spawn {
                token,
                name,
                id_base,
                id_count,
                namespaces,
            } => {
                let ids = (id_base, id_count);
                match self.spawn(token, name, ids, namespaces, descriptors) {
                    Ok((pid, user_namespace)) => {
                        let beside: Vec<_> = user_namespace.iter().map(AsFd::as_fd).collect();
                        self.say(&FromKeeper::Spawned { token, pid }, &beside);
                    }
                    Err(fault) => self.say(&FromKeeper::Refused { token, fault }, &[]),
                }
            }
            ToKeeper::Hold {
                token,
                request,
                released,
            } => {
                let kept = self.sandboxes.values_mut().find(|kept| kept.token == token);
                if let Some(kept) = kept {
                    for request in released {
                        kept.execs.remove(&request);
                    }
                    if !descriptors.is_empty() {
                        kept.execs.insert(request, descriptors);
                    }
                }
            }
        }
        true
    }

    /// Tells a server that has just come of everything there is.
    fn tell_all(&self) -> io::Result<()> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        let held: Vec<_> = self.held.iter().map(AsFd::as_fd).collect();
        server.send(&FromKeeper::Hello(Spoken::OURS), &held)?;
        for (&pid, kept) in &self.sandboxes {
            kept.tell(server, pid)?;
        }
        for (kept, status) in &self.dead {
            kept.tell(server, 0)?;
            let (token, status) = (kept.token, *status);
            server.send(&FromKeeper::Died { token, status }, &[])?;
        }
        server.send(&FromKeeper::Complete, &[])
    }

    fn say(&self, message: &FromKeeper, descriptors: &[BorrowedFd<'_>]) {
        if let Some(server) = &self.server {
            // A server that went away is noticed by the next receive.
            let _ = server.send(message, descriptors);
        }
    }

    fn bury(&mut self, signals: &OwnedFd) {
        let mut discard = [0; 1024];
        while rustix::io::read(signals, &mut discard).is_ok_and(|read| read > 0) {}
        while let Some((pid, status)) = sys::reap() {
            if let Some(kept) = self.sandboxes.remove(&pid) {
                let token = kept.token;
                self.say(&FromKeeper::Died { token, status }, &[]);
                if self.server.is_none() {
                    self.dead.push((kept, status));
                }
            }
        }
    }

    fn spawn(
        &mut self,
        token: u32,
        name: String,
        ids: (u32, u32),
        namespaces: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(i32, Option<OwnedFd>), Fault> {
        let mut descriptors = descriptors.into_iter();
        let (Some(control), Some(outside)) = (descriptors.next(), descriptors.next()) else {
            return Err(fault("no control socket", libc::EPROTO));
        };
        let cgroup = descriptors.next();
        let users = namespaces & libc::CLONE_NEWUSER as u64 != 0;
        if users {
            sys::set_effective_uid(ids.0).map_err(named("take the sandbox's id"))?;
        }
        let cgroup = cgroup.as_ref().map(AsFd::as_fd);
        // SAFETY: the keeper has one thread.
        let cloned = unsafe { self.cradle.clone(namespaces, cgroup, control.as_fd(), live) };
        if users {
            sys::set_effective_uid(0).map_err(named("take our own id back"))?;
        }
        let pid = cloned.map_err(named("clone PID 1"))?;
        let kept = Kept {
            token,
            name,
            control: outside,
            execs: BTreeMap::new(),
        };
        self.sandboxes.insert(pid, kept);
        let prepared = map(pid, ids, users).and_then(|namespace| {
            let gone_on = self.cradle.let_go();
            gone_on.map_err(named("let PID 1 go on"))?;
            Ok(namespace)
        });
        if prepared.is_err() {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        prepared.map(|namespace| (pid, namespace))
    }
}

/// PID 1, once its ids are mapped.
fn live(control: OwnedFd) -> ! {
    sys::set_title(TITLE);
    sys::set_name(c"atoll-init");
    inside::init(Channel::new(control));
    sys::exit(1);
}

/// Maps the ids of a fresh PID 1; its user namespace.
fn map(pid: i32, (base, count): (u32, u32), users: bool) -> Result<Option<OwnedFd>, Fault> {
    if !users {
        return Ok(None);
    }
    let map = format!("0 {base} {count}\n");
    fs::write(format!("/proc/{pid}/gid_map"), &map).map_err(named("map group ids"))?;
    fs::write(format!("/proc/{pid}/uid_map"), &map).map_err(named("map user ids"))?;
    let opened = fs::File::open(format!("/proc/{pid}/ns/user"));
    let namespace = opened.map_err(named("open the user namespace"))?;
    Ok(Some(namespace.into()))
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

/// Leaves the host's mounts behind for a root with just what sandboxes share. Of a process with threads
/// it concerns the calling one.
pub(crate) fn build_root() -> Result<(), Error> {
    // SAFETY: a new mount namespace comes with file system state of its own; descriptors are not concerned.
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
