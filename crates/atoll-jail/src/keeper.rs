//! The small process that is parent of every sandbox of an instance.
//!
//! It is started by exec from a read-only mount or a sealed copy of the binary, so it has one thread and an executable
//! that no sandbox can change. It has its own mount namespace and root with `/proc` and little else, so that a clone
//! copies two mounts, however many the host has. It has no secrets and resolves no path of a sandbox.
//!
//! ```text
//! server ── Spawn(control socket, cgroup) ──▶ keeper ── clone3 ──▶ PID 1
//!        ◀── Spawned(user namespace) ────────        ── ids mapped: go on ──▶
//!        ◀── Died ───────────────────────────        ◀── SIGCHLD
//! ```
//!
//! A keeper with a listening socket outlives its server: it holds the server's end of every control socket and the
//! streams of every exec, and sends them to the next server that connects. It exits when it has neither sandboxes nor a
//! server. A keeper without a listening socket kills its sandboxes when its server ends.

mod init_spawner;
mod root;
mod spawn;
mod start;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};

use crate::sys;
use crate::wire::{Channel, FromKeeper, Packet, ToKeeper, VersionRange};
use crate::{Error, Step};
use init_spawner::InitSpawner;
pub(crate) use root::{NEW_ROOT, build_root};
pub use start::{connect, is_gone, listen, start};

/// Name of the keeper; as first argument it makes `main` become one.
pub const NAME: &str = "atoll-keeper";

/// Becomes a keeper if this process was started as one. `main` must call it first, before any thread is started.
pub fn run_if_invoked() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        let code = match run() {
            Ok(()) => 0,
            Err(_) => 1,
        };
        sys::exit(code);
    }
}

struct Keeper {
    /// The connected server; `None` while there is none.
    server: Option<Channel<FromKeeper, ToKeeper>>,
    /// Listening socket for the next server; `None` for an ephemeral instance.
    listener: Option<OwnedFd>,
    /// The living sandboxes, by the pid of their PID 1.
    sandboxes: BTreeMap<i32, HeldSandbox>,
    /// Sandboxes that ended while there was no server, with the descriptors of their execs.
    dead: Vec<(HeldSandbox, i32)>,
    /// Locks of the instance, held for the life of the keeper.
    held: Vec<OwnedFd>,
    /// Clones the next PID 1.
    spawner: InitSpawner,
}

/// Descriptors of a sandbox, held for the next server.
struct HeldSandbox {
    token: u32,
    name: String,
    /// The server's end of its control socket.
    control: OwnedFd,
    /// Descriptors of its execs.
    execs: BTreeMap<u32, Vec<OwnedFd>>,
}

impl HeldSandbox {
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
    // The umask of the server's caller must not apply to files that processes of a sandbox create before they set their own.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let spawner = InitSpawner::new().step(|| "reserve descriptors".into())?;
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
    // The server may have a raised priority; sandboxes do not inherit it.
    sys::set_init_scheduling();
    sys::raise_autogroup_priority();
    build_root()?;
    let _ = sys::drop_cap_sys_resource();
    sys::prctl(libc::PR_SET_DUMPABLE, 0).step(|| "be not dumpable".into())?;
    // User namespaces are created with the sandbox's id on the host, so that per-user limits of the kernel are per
    // sandbox. The change of ids must not drop capabilities.
    sys::prctl(libc::PR_SET_SECUREBITS, 1 << 2).step(|| "keep capabilities".into())?;
    let signals = sys::child_signals().step(|| "watch children".into())?;
    let mut keeper = Keeper {
        server: Some(Channel::new(server)),
        listener: listening.then_some(listener),
        sandboxes: BTreeMap::new(),
        dead: Vec::new(),
        held: Vec::new(),
        spawner,
    };
    while keeper.is_needed() {
        keeper.poll_once(&signals)?;
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

    /// Waits for one round of events and handles them.
    fn poll_once(&mut self, signals: &OwnedFd) -> Result<(), Error> {
        let mut ready = vec![PollFd::new(signals, PollFlags::IN)];
        let server = self.server.as_ref().map(|server| {
            ready.push(PollFd::new(server, PollFlags::IN));
            ready.len() - 1
        });
        let listener = self.listener.as_ref().map(|listener| {
            ready.push(PollFd::new(listener, PollFlags::IN));
            ready.len() - 1
        });
        let gate = self.spawner.gate().map(|gate| {
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
            self.spawner.settle();
        }
        if died {
            self.reap_children(signals);
        }
        if spoken && !self.listen() {
            self.server = None;
        }
        if knocked {
            self.accept_server();
        }
        Ok(())
    }

    /// Accepts the next server in place of the last one. Only root can reach the socket, and only one server
    /// at a time has the lock of the data directory.
    fn accept_server(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        if let Ok(server) = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
            self.server = Some(Channel::new(server));
        }
    }

    /// Handles the server's messages; false if the server has gone.
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
            // The server has received the inventory.
            self.dead.clear();
        }
        match message {
            ToKeeper::Hello { .. } => {
                self.held.extend(descriptors);
                return self.send_inventory().is_ok();
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

    /// Sends all sandboxes and their descriptors to a new server.
    fn send_inventory(&self) -> io::Result<()> {
        let Some(server) = &self.server else {
            return Ok(());
        };
        let held: Vec<_> = self.held.iter().map(AsFd::as_fd).collect();
        server.send(&FromKeeper::Hello(VersionRange::ours()), &held)?;
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
            // If the server has gone, the next receive fails.
            let _ = server.send(message, descriptors);
        }
    }

    fn reap_children(&mut self, signals: &OwnedFd) {
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
}
