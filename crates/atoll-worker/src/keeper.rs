//! The worker's end of its conversation with the keeper.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_jail::wire::{Channel, Fault, FromKeeper, Packet, ToKeeper, VERSION};
use atoll_model::{Code, Error};
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::error::{internal, jail};

type Spawned = Result<(i32, Option<OwnedFd>), Fault>;

/// A PID 1 as the keeper sees it.
#[derive(Debug)]
pub(crate) struct Parent {
    /// Its pid on the host; the keeper has not reaped it as long as `died` is empty.
    pub(crate) pid: i32,
    /// Its user namespace.
    pub(crate) user_namespace: Option<OwnedFd>,
    /// Its raw wait status once it and all its processes are gone.
    pub(crate) died: watch::Receiver<Option<i32>>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u32,
    spawns: HashMap<u32, oneshot::Sender<Spawned>>,
    deaths: HashMap<u32, watch::Sender<Option<i32>>>,
    /// The keeper is gone.
    closed: bool,
}

/// The keeper of this instance.
#[derive(Debug)]
pub(crate) struct Keeper {
    channel: Arc<AsyncFd<Channel<ToKeeper, FromKeeper>>>,
    waiting: Arc<Mutex<Waiting>>,
    child: Mutex<Child>,
    reader: tokio::task::JoinHandle<()>,
}

impl Keeper {
    /// Starts a keeper that also holds these descriptors (locks) for as long as it lives.
    pub(crate) fn start(binary: &Path, tag: &str, held: &[BorrowedFd<'_>]) -> Result<Self, Error> {
        let (channel, child) =
            atoll_jail::keeper::start(binary, tag, held).map_err(|error| jail(&error))?;
        let channel = watch_channel(channel)?;
        let (channel, waiting) = (Arc::new(channel), Arc::default());
        let reader = tokio::spawn(listen(Arc::clone(&channel), Arc::clone(&waiting)));
        Ok(Self {
            channel,
            waiting,
            child: Mutex::new(child),
            reader,
        })
    }

    /// The keeper's pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a PID 1 cloned that speaks over `control`, in `cgroup`.
    pub(crate) async fn spawn(
        &self,
        control: OwnedFd,
        cgroup: impl AsFd,
        ids: atoll_jail::plan::IdRange,
        namespaces: u64,
    ) -> Result<Parent, Error> {
        let (spawned, answer) = oneshot::channel();
        let (death, died) = watch::channel(None);
        let token = {
            let mut waiting = self.waiting();
            if waiting.closed {
                return Err(lost());
            }
            waiting.next += 1;
            let token = waiting.next;
            waiting.spawns.insert(token, spawned);
            waiting.deaths.insert(token, death);
            token
        };
        let message = ToKeeper::Spawn {
            token,
            id_base: ids.base,
            id_count: ids.count,
            namespaces,
        };
        send(&self.channel, &message, &[control.as_fd(), cgroup.as_fd()]).await?;
        drop(control);
        match answer.await {
            Ok(Ok((pid, user_namespace))) => Ok(Parent {
                pid,
                user_namespace,
                died,
            }),
            Ok(Err(Fault { step, errno })) => {
                self.waiting().deaths.remove(&token);
                Err(fault(&step, errno))
            }
            Err(_) => Err(lost()),
        }
    }

    /// Lets the keeper go and waits for its end. All its sandboxes end with it.
    pub(crate) async fn stop(self) {
        self.reader.abort();
        let _ = self.reader.await;
        drop(self.channel);
        let child = self.child;
        let _ = tokio::task::spawn_blocking(move || {
            child
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .wait()
        })
        .await;
    }
}

/// A step that failed inside, as a caller is told of it.
pub(crate) fn fault(step: &str, errno: i32) -> Error {
    let source = std::io::Error::from_raw_os_error(errno);
    jail(&atoll_jail::Error::Step {
        step: step.to_owned(),
        source,
    })
}

fn lost() -> Error {
    Error::new(Code::Internal, "the keeper of the sandboxes has ended").remedy("start atoll again")
}

/// Registers a channel with the runtime.
#[allow(unsafe_code, reason = "tokio asks for a promise that it cannot check")]
pub(crate) fn watch_channel<S, R>(channel: Channel<S, R>) -> Result<AsyncFd<Channel<S, R>>, Error> {
    // SAFETY: a channel owns its socket, keeps it open until it is dropped, and always names it.
    unsafe { AsyncFd::register(channel) }
        .map_err(|error| internal("watch a socket", &error.into_parts().1))
}

/// Sends, waiting for room if there is none.
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
                let ready = channel.writable().await;
                ready
                    .map_err(|error| internal("wait for a socket", &error))?
                    .clear_ready();
            }
            Err(error) => return Err(internal("the sandbox cannot be reached", &error)),
            Ok(()) => return Ok(()),
        }
    }
}

async fn listen(
    channel: Arc<AsyncFd<Channel<ToKeeper, FromKeeper>>>,
    waiting: Arc<Mutex<Waiting>>,
) {
    let lock = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
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
            FromKeeper::Hello { version } if version == VERSION => {}
            // It was started from our own binary a moment ago.
            FromKeeper::Hello { .. } => break,
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
                if let Some(death) = lock().deaths.remove(&token) {
                    death.send_replace(Some(status));
                }
            }
        }
    }
    let mut waiting = lock();
    waiting.closed = true;
    waiting.spawns.clear();
    // Sandboxes end with their keeper.
    for (_, death) in waiting.deaths.drain() {
        death.send_replace(Some(9));
    }
}
