//! Channel to a sandbox's PID 1.
//!
//! PID 1 is treated as hostile: its messages affect only its own sandbox.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use atoll_jail::wire::{Channel, FromInit, Part, Size, ToInit};
use atoll_model::{Code, Error};
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use crate::keeper::{register_channel, send, step_error};
use crate::sync::lock;

/// Time for PID 1 to apply a new size. It has little to do but may get little CPU time.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of an exec request: the pid in the sandbox, or the stage that failed and errno.
pub(crate) type Started = Result<i32, (Part, i32)>;

#[derive(Debug, Default)]
struct Pending {
    next: u32,
    starts: HashMap<u32, oneshot::Sender<Started>>,
    ends: HashMap<u32, oneshot::Sender<i32>>,
    /// Receives 0 or errno.
    sizes: HashMap<u32, oneshot::Sender<i32>>,
    /// Execs of an earlier server that PID 1 has not reported on, and the number of the `Report`
    /// request.
    unreported: HashSet<u32>,
    report_number: u64,
    closed: bool,
}

/// The channel to a PID 1.
#[derive(Debug)]
pub(crate) struct InitChannel {
    channel: Arc<AsyncFd<Channel<ToInit, FromInit>>>,
    pending: Arc<Mutex<Pending>>,
    ready: watch::Receiver<Option<Result<(), Error>>>,
    reader: tokio::task::JoinHandle<()>,
}

impl Drop for InitChannel {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl InitChannel {
    /// For a PID 1 that is not ready yet.
    pub(crate) fn new(channel: Channel<ToInit, FromInit>) -> Result<Self, Error> {
        Self::from_channel(channel, Pending::default(), None)
    }

    /// For a PID 1 of an earlier server. `execs` are the request ids of execs that were running,
    /// `next` is above all request ids in use. PID 1 reports how they ended when it can; a frozen
    /// one when it is resumed.
    pub(crate) fn adopt(
        channel: Channel<ToInit, FromInit>,
        execs: &[u32],
        next: u32,
    ) -> Result<(Self, HashMap<u32, oneshot::Receiver<i32>>), Error> {
        let report_number = crate::exec::now().cast_unsigned();
        let mut pending = Pending {
            next,
            unreported: execs.iter().copied().collect(),
            report_number,
            ..Pending::default()
        };
        let mut expected = HashMap::new();
        for &request in execs {
            let (end, ended) = oneshot::channel();
            pending.ends.insert(request, end);
            expected.insert(request, ended);
        }
        let init = Self::from_channel(channel, pending, Some(Ok(())))?;
        init.try_send(&ToInit::Report {
            number: report_number,
        });
        Ok((init, expected))
    }

    fn from_channel(
        channel: Channel<ToInit, FromInit>,
        pending: Pending,
        ready: Option<Result<(), Error>>,
    ) -> Result<Self, Error> {
        let (result, ready) = watch::channel(ready);
        let channel = register_channel(channel)?;
        let (channel, pending) = (Arc::new(channel), Arc::new(Mutex::new(pending)));
        let reader = tokio::spawn(receive_loop(
            Arc::clone(&channel),
            Arc::clone(&pending),
            result,
        ));
        Ok(Self {
            channel,
            pending,
            ready,
            reader,
        })
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }

    /// Ignores all further messages.
    pub(crate) fn stop_reading(&self) {
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
        let request = self.next_request_id();
        let (result, answer) = oneshot::channel();
        {
            let mut pending = self.pending();
            if pending.closed {
                return Err(sandbox_ended());
            }
            pending.sizes.insert(request, result);
        }
        let message = ToInit::Resize { request, size };
        let exchange = async {
            self.send(&message, &[]).await?;
            answer.await.map_err(|_| sandbox_ended())
        };
        let outcome = tokio::time::timeout(RESIZE_TIMEOUT, exchange).await;
        self.pending().sizes.remove(&request);
        match outcome {
            Ok(Ok(0)) => Ok(()),
            Ok(Ok(errno)) => Err(step_error("apply the new size", errno)),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let message =
                    format!("the sandbox did not apply its new size within {RESIZE_TIMEOUT:?}");
                Err(Error::new(Code::Timeout, message))
            }
        }
    }

    /// Queues a size for a paused PID 1, which reads it when it is resumed. Fails if the socket is
    /// full.
    pub(crate) fn resize_later(&self, size: Size) -> Result<(), Error> {
        let message = ToInit::Resize {
            request: self.next_request_id(),
            size,
        };
        self.channel.get_ref().send(&message, &[]).map_err(|_| {
            let message = "the paused sandbox cannot queue another resize";
            Error::new(Code::Conflict, message).remedy("resume it first")
        })
    }

    /// Waits until an exec would work.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let mut ready = self.ready.clone();
        let result = ready
            .wait_for(Option::is_some)
            .await
            .map_err(|_| sandbox_ended())?;
        result.clone().unwrap_or_else(|| Err(sandbox_ended()))
    }

    /// The error with which PID 1 gave up, if it did. Waits 200 ms for the message.
    pub(crate) async fn startup_error(&self) -> Option<Error> {
        let ready = tokio::time::timeout(Duration::from_millis(200), self.ready()).await;
        ready
            .ok()?
            .err()
            .filter(|error| error.code != Code::SandboxStopped)
    }

    /// A request id.
    pub(crate) fn next_request_id(&self) -> u32 {
        let mut pending = self.pending();
        pending.next += 1;
        pending.next
    }

    /// A request id for an exec, with receivers of its start and its end.
    pub(crate) fn register_exec(
        &self,
    ) -> Result<(u32, oneshot::Receiver<Started>, oneshot::Receiver<i32>), Error> {
        let (start, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let mut pending = self.pending();
        if pending.closed {
            return Err(sandbox_ended());
        }
        pending.next += 1;
        let request = pending.next;
        pending.starts.insert(request, start);
        pending.ends.insert(request, end);
        Ok((request, started, ended))
    }
}

/// The sandbox ended during a call.
pub(crate) fn sandbox_ended() -> Error {
    Error::new(Code::SandboxStopped, "the sandbox has ended").detail("state", "stopped")
}

async fn receive_loop(
    channel: Arc<AsyncFd<Channel<ToInit, FromInit>>>,
    pending: Arc<Mutex<Pending>>,
    ready: watch::Sender<Option<Result<(), Error>>>,
) {
    let lock = || lock(&pending);
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
            FromInit::Fault(result) => {
                ready.send_replace(Some(Err(step_error(&result.step, result.errno))));
            }
            FromInit::Started { request, pid } => {
                let mut pending = lock();
                let is_expected = match pending.starts.remove(&request) {
                    Some(start) => start.send(Ok(pid)).is_ok(),
                    None => pending.ends.contains_key(&request),
                };
                pending.unreported.remove(&request);
                drop(pending);
                // The caller has gone away, or its server was killed before it acknowledged the
                // exec.
                if !is_expected {
                    let signal = rustix::process::Signal::KILL.as_raw();
                    let kill = ToInit::Signal { request, signal };
                    let _ = channel.get_ref().send(&kill, &[]);
                }
            }
            FromInit::Reported { number } => {
                let mut pending = lock();
                if number == pending.report_number {
                    // Execs that PID 1 does not report have ended.
                    for request in std::mem::take(&mut pending.unreported) {
                        pending.ends.remove(&request);
                    }
                }
            }
            FromInit::Refused {
                request,
                part,
                errno,
            } => {
                let mut pending = lock();
                pending.ends.remove(&request);
                if let Some(start) = pending.starts.remove(&request) {
                    let _ = start.send(Err((part, errno)));
                }
            }
            FromInit::Resized { request, errno } => {
                if let Some(result) = lock().sizes.remove(&request) {
                    let _ = result.send(errno);
                }
            }
            FromInit::Ended { request, status } => {
                if let Some(end) = lock().ends.remove(&request) {
                    let _ = end.send(status);
                }
            }
        }
    }
    let mut pending = lock();
    pending.closed = true;
    pending.starts.clear();
    pending.ends.clear();
    pending.sizes.clear();
}
