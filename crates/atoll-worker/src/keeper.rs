//! Channel to a keeper. Keepers of earlier servers are found in `previous`.

pub(crate) mod previous;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_jail::ids::Ranges;
use atoll_jail::plan::IdRange;
use atoll_jail::wire::{Channel, Fault, FromKeeper, Packet, ToKeeper};
use atoll_model::{Code, Error};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::error::{internal, jail};
use crate::sync::lock;

type Spawned = Result<(i32, Option<OwnedFd>), Fault>;

/// A PID 1 and what its keeper reports about it.
#[derive(Debug)]
pub(crate) struct InitProcess {
    /// The keeper's id for it.
    pub(crate) token: u32,
    /// Its host pid. The keeper does not reap it before `exit_status` is set, so the pid is not
    /// reused.
    pub(crate) pid: i32,
    /// Its user namespace; `None` after adoption.
    pub(crate) user_namespace: Option<OwnedFd>,
    /// Raw wait status, once it and all its descendants are gone.
    pub(crate) exit_status: watch::Receiver<Option<i32>>,
}

#[derive(Debug, Default)]
struct Pending {
    next: u32,
    spawns: HashMap<u32, oneshot::Sender<Spawned>>,
    exits: HashMap<u32, watch::Sender<Option<i32>>>,
    /// The keeper has ended.
    closed: bool,
}

/// A keeper that this server is connected to.
#[derive(Debug)]
pub(crate) struct Keeper {
    channel: Arc<AsyncFd<Channel<ToKeeper, FromKeeper>>>,
    pending: Arc<Mutex<Pending>>,
    /// `Some` if this server started it.
    child: Mutex<Option<Child>>,
    /// Task that moves it to its control group.
    setup: Mutex<Option<tokio::task::JoinHandle<()>>>,
    reader: tokio::task::JoinHandle<()>,
}

/// A sandbox of an earlier server, as its keeper holds it.
#[derive(Debug)]
pub(crate) struct SurvivingSandbox {
    pub(crate) name: String,
    pub(crate) control: OwnedFd,
    /// Descriptors of its execs, by request id.
    pub(crate) execs: HashMap<u32, Vec<OwnedFd>>,
    pub(crate) process: InitProcess,
    pub(crate) keeper: Arc<Keeper>,
}

impl SurvivingSandbox {
    /// Its ids while it is alive, from the effective uid of PID 1, which is the first of them.
    pub(crate) fn ids(&self) -> Option<IdRange> {
        let pid = self.process.pid;
        let status = (pid != 0).then(|| std::fs::read_to_string(format!("/proc/{pid}/status")));
        let status = status?.ok()?;
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let effective = ids.split_whitespace().nth(1)?;
        Ranges::range_of(effective.parse().ok()?)
    }
}

impl Keeper {
    /// Starts a keeper that holds these descriptors (locks) for as long as it lives. With a
    /// listener it outlives this server.
    pub(crate) fn start(
        binary: &Path,
        tag: &str,
        listener: Option<OwnedFd>,
        held: &[BorrowedFd<'_>],
    ) -> Result<Self, Error> {
        let (channel, child) =
            atoll_jail::keeper::start(binary, tag, listener, held).map_err(|error| jail(&error))?;
        Self::from_channel(channel, Some(child), Pending::default())
    }

    fn from_channel(
        channel: Channel<ToKeeper, FromKeeper>,
        child: Option<Child>,
        pending: Pending,
    ) -> Result<Self, Error> {
        let channel = Arc::new(register_channel(channel)?);
        let pending = Arc::new(Mutex::new(pending));
        let reader = tokio::spawn(receive_loop(Arc::clone(&channel), Arc::clone(&pending)));
        Ok(Self {
            channel,
            pending,
            child: Mutex::new(child),
            setup: Mutex::default(),
            reader,
        })
    }

    /// Its pid, if this server started it.
    pub(crate) fn pid(&self) -> Option<u32> {
        lock(&self.child).as_ref().map(Child::id)
    }

    /// Runs setup work on it in the background; [`Keeper::stop`] waits for it.
    pub(crate) fn run_setup(&self, work: impl FnOnce() + Send + 'static) {
        *lock(&self.setup) = Some(tokio::task::spawn_blocking(work));
    }

    /// Whether it has ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.pending().closed
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    /// Has the keeper clone a PID 1 in `cgroup`. `control` is PID 1's end of its socket, `ours` the
    /// server's end, which the keeper holds.
    pub(crate) async fn spawn(
        &self,
        name: &str,
        control: OwnedFd,
        ours: impl AsFd,
        cgroup: impl AsFd,
        ids: atoll_jail::plan::IdRange,
        namespaces: u64,
    ) -> Result<InitProcess, Error> {
        let (spawned, answer) = oneshot::channel();
        let (exit, exit_status) = watch::channel(None);
        let token = {
            let mut pending = self.pending();
            if pending.closed {
                return Err(keeper_lost());
            }
            pending.next += 1;
            let token = pending.next;
            pending.spawns.insert(token, spawned);
            pending.exits.insert(token, exit);
            token
        };
        let message = ToKeeper::Spawn {
            token,
            name: name.to_owned(),
            id_base: ids.base,
            id_count: ids.count,
            namespaces,
        };
        let handed = [control.as_fd(), ours.as_fd(), cgroup.as_fd()];
        send(&self.channel, &message, &handed).await?;
        drop(control);
        match answer.await {
            Ok(Ok((pid, user_namespace))) => Ok(InitProcess {
                token,
                pid,
                user_namespace,
                exit_status,
            }),
            Ok(Err(Fault { step, errno })) => {
                self.pending().exits.remove(&token);
                Err(step_error(&step, errno))
            }
            Err(_) => Err(keeper_lost()),
        }
    }

    /// Has the keeper hold descriptors of an exec, and close the ones of released execs.
    pub(crate) async fn hold(
        &self,
        token: u32,
        request: u32,
        released: Vec<u32>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let message = ToKeeper::Hold {
            token,
            request,
            released,
        };
        send(&self.channel, &message, descriptors).await
    }

    /// Tells an adopted keeper that it can forget the sandboxes that ended before.
    pub(crate) async fn acknowledge(&self) -> Result<(), Error> {
        self.hold(0, 0, Vec::new(), &[]).await
    }

    /// Disconnects from the keeper. Unless the instance is persistent it ends with all its
    /// sandboxes, which is waited for.
    pub(crate) async fn stop(&self, persistent: bool) {
        let setup = lock(&self.setup).take();
        if let Some(setup) = setup {
            let _ = setup.await;
        }
        self.reader.abort();
        let _ = rustix::net::shutdown(self.channel.get_ref(), rustix::net::Shutdown::Both);
        let Some(mut child) = lock(&self.child).take() else {
            return;
        };
        let wait = move || {
            let _ = if persistent {
                // It stays if there are sandboxes.
                child.try_wait().map(|_| ())
            } else {
                child.wait().map(|_| ())
            };
        };
        let _ = tokio::task::spawn_blocking(wait).await;
    }
}

impl Drop for Keeper {
    /// The keeper ends if it has no sandboxes.
    fn drop(&mut self) {
        self.reader.abort();
        let _ = rustix::net::shutdown(self.channel.get_ref(), rustix::net::Shutdown::Both);
    }
}

/// Error for a step of the jail that failed in another process.
pub(crate) fn step_error(step: &str, errno: i32) -> Error {
    let source = std::io::Error::from_raw_os_error(errno);
    jail(&atoll_jail::Error::Step {
        step: step.to_owned(),
        source,
    })
}

fn keeper_lost() -> Error {
    Error::new(Code::Internal, "the keeper of the sandboxes has ended").remedy("start atoll again")
}

/// Registers a channel with tokio for reading only: with interest in writing too, tokio would wake
/// the reader whenever the peer has read a message.
pub(crate) fn register_channel<S, R>(
    channel: Channel<S, R>,
) -> Result<AsyncFd<Channel<S, R>>, Error> {
    register_fd(channel, Interest::READABLE)
}

/// Registers the owner of a descriptor with tokio.
#[allow(
    unsafe_code,
    reason = "the caller has to guarantee that the descriptor stays open"
)]
pub(crate) fn register_fd<T: AsRawFd>(owner: T, interest: Interest) -> Result<AsyncFd<T>, Error> {
    // SAFETY: channels and owned descriptors keep the same descriptor open until they are dropped.
    unsafe { AsyncFd::register_with_interest(owner, interest) }
        .map_err(|error| internal("register a descriptor", &error.into_parts().1))
}

/// Sends a message; waits for space in the socket.
pub(crate) async fn send<S, R>(
    channel: &AsyncFd<Channel<S, R>>,
    message: &S,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Error>
where
    S: atoll_jail::wire::Encode,
    R: atoll_jail::wire::Decode,
{
    loop {
        match channel.get_ref().send(message, descriptors) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let copy = channel.get_ref().as_fd().try_clone_to_owned();
                let copy = copy.map_err(|error| internal("copy a socket", &error))?;
                let socket = register_fd(copy, Interest::WRITABLE)?;
                let ready = socket.writable().await;
                drop(ready.map_err(|error| internal("wait for a socket", &error))?);
            }
            Err(error) => return Err(internal("send a message to the sandbox", &error)),
            Ok(()) => return Ok(()),
        }
    }
}

async fn receive_loop(
    channel: Arc<AsyncFd<Channel<ToKeeper, FromKeeper>>>,
    pending: Arc<Mutex<Pending>>,
) {
    let lock = || lock(&pending);
    while let Ok(mut ready) = channel.readable().await {
        let Ok(received) = ready.try_io(|channel| channel.get_ref().receive()) else {
            continue;
        };
        let Ok(Some(Packet {
            message,
            descriptors,
        })) = received
        else {
            break;
        };
        match message {
            // Part of the inventory, which is read before this loop.
            FromKeeper::Hello(_)
            | FromKeeper::Complete
            | FromKeeper::Sandbox { .. }
            | FromKeeper::Held { .. } => {}
            FromKeeper::Spawned { token, pid } => {
                if let Some(answer) = lock().spawns.remove(&token) {
                    let _ = answer.send(Ok((pid, descriptors.into_iter().next())));
                }
            }
            FromKeeper::Refused { token, fault } => {
                if let Some(answer) = lock().spawns.remove(&token) {
                    let _ = answer.send(Err(fault));
                }
            }
            FromKeeper::Died { token, status } => {
                if let Some(exit) = lock().exits.remove(&token) {
                    exit.send_replace(Some(status));
                }
            }
        }
    }
    let mut pending = lock();
    pending.closed = true;
    pending.spawns.clear();
    // Sandboxes end with their keeper.
    for (_, exit) in pending.exits.drain() {
        exit.send_replace(Some(9));
    }
}
