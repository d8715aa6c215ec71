//! Channel to a sandbox's PID 1.
//!
//! PID 1 is treated as hostile: its messages affect only its own sandbox.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_jail::wire::{Channel, FromInit, Part, Size, ToInit};
use atoll_model::{Code, Error};
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::keeper::{fault, send, watch_channel};

/// Time for PID 1 to apply a new size. It has little to do but may get little CPU time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Result of an exec request: the pid in the sandbox, or the stage that failed and errno.
pub(crate) type Started = Result<i32, (Part, i32)>;

#[derive(Debug, Default)]
struct Waiting {
    next: u32,
    starts: HashMap<u32, oneshot::Sender<Started>>,
    ends: HashMap<u32, oneshot::Sender<i32>>,
    /// Receives 0 or errno.
    sizes: HashMap<u32, oneshot::Sender<i32>>,
    /// Execs of an earlier server that PID 1 has not reported on, and the number of the `Report`
    /// request.
    unreported: HashSet<u32>,
    question: u64,
    closed: bool,
}

/// The channel to a PID 1.
#[derive(Debug)]
pub(crate) struct Init {
    channel: Arc<AsyncFd<Channel<ToInit, FromInit>>>,
    waiting: Arc<Mutex<Waiting>>,
    ready: watch::Receiver<Option<Result<(), Error>>>,
    reader: tokio::task::JoinHandle<()>,
}

impl Drop for Init {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Init {
    /// For a PID 1 that is not ready yet.
    pub(crate) fn new(channel: Channel<ToInit, FromInit>) -> Result<Self, Error> {
        Self::with(channel, Waiting::default(), None)
    }

    /// For a PID 1 of an earlier server. `execs` are the request ids of execs that were running,
    /// `next` is above all request ids in use. PID 1 reports how they ended when it can; a frozen
    /// one when it is resumed.
    pub(crate) fn adopt(
        channel: Channel<ToInit, FromInit>,
        execs: &[u32],
        next: u32,
    ) -> Result<(Self, HashMap<u32, oneshot::Receiver<i32>>), Error> {
        let question = crate::exec::now().cast_unsigned();
        let mut waiting = Waiting {
            next,
            unreported: execs.iter().copied().collect(),
            question,
            ..Waiting::default()
        };
        let mut expected = HashMap::new();
        for &request in execs {
            let (end, ended) = oneshot::channel();
            waiting.ends.insert(request, end);
            expected.insert(request, ended);
        }
        let init = Self::with(channel, waiting, Some(Ok(())))?;
        init.try_send(&ToInit::Report { number: question });
        Ok((init, expected))
    }

    fn with(
        channel: Channel<ToInit, FromInit>,
        waiting: Waiting,
        ready: Option<Result<(), Error>>,
    ) -> Result<Self, Error> {
        let (told, ready) = watch::channel(ready);
        let channel = watch_channel(channel)?;
        let (channel, waiting) = (Arc::new(channel), Arc::new(Mutex::new(waiting)));
        let reader = tokio::spawn(listen(Arc::clone(&channel), Arc::clone(&waiting), told));
        Ok(Self {
            channel,
            waiting,
            ready,
            reader,
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ignores all further messages.
    pub(crate) fn fall_silent(&self) {
        self.reader.abort();
    }

    /// The server's end of the socket, for the keeper to hold.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.channel.get_ref().as_fd()
    }

    pub(crate) async fn send(
        &self,
        message: &ToInit,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        send(&self.channel, message, descriptors).await
    }

    /// Sends without waiting for space in the socket; the message may be lost.
    pub(crate) fn try_send(&self, message: &ToInit) {
        let _ = self.channel.get_ref().send(message, &[]);
    }

    /// Has PID 1 apply a size, and waits for the result.
    pub(crate) async fn resize(&self, size: Size) -> Result<(), Error> {
        let request = self.number();
        let (told, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            if waiting.closed {
                return Err(gone());
            }
            waiting.sizes.insert(request, told);
        }
        let message = ToInit::Resize { request, size };
        let asked = async {
            self.send(&message, &[]).await?;
            answer.await.map_err(|_| gone())
        };
        let answered = tokio::time::timeout(PATIENCE, asked).await;
        self.waiting().sizes.remove(&request);
        match answered {
            Ok(Ok(0)) => Ok(()),
            Ok(Ok(errno)) => Err(fault("tell programs the new size", errno)),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let message = format!("the sandbox said nothing to its new size in {PATIENCE:?}");
                Err(Error::new(Code::Timeout, message))
            }
        }
    }

    /// Queues a size for a paused PID 1, which reads it when it is resumed. Fails if the socket is
    /// full.
    pub(crate) fn resize_later(&self, size: Size) -> Result<(), Error> {
        let message = ToInit::Resize {
            request: self.number(),
            size,
        };
        self.channel.get_ref().send(&message, &[]).map_err(|_| {
            let message = "the paused sandbox cannot be told yet another size";
            Error::new(Code::Conflict, message).remedy("resume it first")
        })
    }

    /// Waits until an exec would work.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let mut ready = self.ready.clone();
        let told = ready.wait_for(Option::is_some).await.map_err(|_| gone())?;
        told.clone().unwrap_or_else(|| Err(gone()))
    }

    /// The error with which PID 1 gave up, if it did. Waits 200 ms for the message.
    pub(crate) async fn last_words(&self) -> Option<Error> {
        let said = tokio::time::timeout(Duration::from_millis(200), self.ready()).await;
        said.ok()?
            .err()
            .filter(|error| error.code != Code::SandboxStopped)
    }

    /// A request id.
    pub(crate) fn number(&self) -> u32 {
        let mut waiting = self.waiting();
        waiting.next += 1;
        waiting.next
    }

    /// A request id for an exec, with receivers of its start and its end.
    pub(crate) fn expect(
        &self,
    ) -> Result<(u32, oneshot::Receiver<Started>, oneshot::Receiver<i32>), Error> {
        let (start, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(gone());
        }
        waiting.next += 1;
        let request = waiting.next;
        waiting.starts.insert(request, start);
        waiting.ends.insert(request, end);
        Ok((request, started, ended))
    }
}

/// The sandbox ended during a call.
pub(crate) fn gone() -> Error {
    Error::new(Code::SandboxStopped, "the sandbox has ended").detail("state", "stopped")
}

async fn listen(
    channel: Arc<AsyncFd<Channel<ToInit, FromInit>>>,
    waiting: Arc<Mutex<Waiting>>,
    ready: watch::Sender<Option<Result<(), Error>>>,
) {
    let lock = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    while let Ok(mut readable) = channel.readable().await {
        let Ok(received) = readable.try_io(|channel| channel.get_ref().receive_hostile()) else {
            continue;
        };
        // End of file or a malformed message: nothing more is read from it.
        let Ok(Some(message)) = received else { break };
        match message {
            FromInit::Ready => {
                ready.send_replace(Some(Ok(())));
            }
            FromInit::Fault(told) => {
                ready.send_replace(Some(Err(fault(&told.step, told.errno))));
            }
            FromInit::Started { request, pid } => {
                let mut waiting = lock();
                let wanted = match waiting.starts.remove(&request) {
                    Some(start) => start.send(Ok(pid)).is_ok(),
                    None => waiting.ends.contains_key(&request),
                };
                waiting.unreported.remove(&request);
                drop(waiting);
                // The caller has gone away, or its server was killed before it acknowledged the
                // exec.
                if !wanted {
                    let signal = rustix::process::Signal::KILL.as_raw();
                    let kill = ToInit::Signal { request, signal };
                    let _ = channel.get_ref().send(&kill, &[]);
                }
            }
            FromInit::Reported { number } => {
                let mut waiting = lock();
                if number == waiting.question {
                    // Execs that PID 1 does not report have ended.
                    for request in std::mem::take(&mut waiting.unreported) {
                        waiting.ends.remove(&request);
                    }
                }
            }
            FromInit::Refused {
                request,
                part,
                errno,
            } => {
                let mut waiting = lock();
                waiting.ends.remove(&request);
                if let Some(start) = waiting.starts.remove(&request) {
                    let _ = start.send(Err((part, errno)));
                }
            }
            FromInit::Resized { request, errno } => {
                if let Some(told) = lock().sizes.remove(&request) {
                    let _ = told.send(errno);
                }
            }
            FromInit::Ended { request, status } => {
                if let Some(end) = lock().ends.remove(&request) {
                    let _ = end.send(status);
                }
            }
        }
    }
    let mut waiting = lock();
    waiting.closed = true;
    waiting.starts.clear();
    waiting.ends.clear();
    waiting.sizes.clear();
}
