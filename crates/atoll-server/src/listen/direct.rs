//! Large bodies past HTTP: between their connection and a sandbox, without a copy through our memory.
//!
//! HTTP reads its connection itself, ahead of what it was asked for. Whoever wants the rest of a request's body first holds the
//! connection and takes what HTTP has read as ever; when HTTP asks for more, it has nothing left, and what comes next
//! in the connection is the body's. The kernel moves it. Then HTTP is given as many zeros, which nobody looks at, and stands
//! where it would have stood.
//!
//! ```text
//! Flows ──hold──▶ Held ──HTTP asks──▶ Held, asked ──all moved, or given up──▶ Owed ──zeros given──▶ Flows
//! ```
//!
//! An answer goes the other way round: when HTTP has sent its head, nothing is left of what it wrote, and it waits for the body.
//! The kernel moves it. Then HTTP gets as many zeros for a body, and what it writes of them is written nowhere.
//!
//! ```text
//! Flows ──pass──▶ Head ──HTTP flushes──▶ Clear ──all moved, or given up──▶ Sent ──zeros taken──▶ Flows
//! ```

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::Silence;

/// Bodies that are hardly larger than what HTTP reads ahead are not worth it.
pub(crate) const LEAST: u64 = 1 << 20;

/// What HTTP reads.
#[derive(Debug)]
enum Reads {
    Flows,
    /// Nothing. If HTTP has asked, it is woken when it gets something again.
    Held(Option<Waker>),
    /// So many zeros first.
    Owed(u64),
}

/// What HTTP writes.
#[derive(Debug, PartialEq, Eq)]
enum Writes {
    Flows,
    /// The head of an answer is among it, or will be.
    Head,
    /// Nothing: all that it wrote is sent.
    Clear,
    /// So many bytes that are sent already.
    Sent(u64),
}

#[derive(Debug)]
struct Shared {
    reads: Mutex<Reads>,
    writes: Mutex<Writes>,
    /// Told when HTTP asks while it is held.
    asked: Notify,
    /// Told when a head is sent.
    clear: Notify,
    socket: OwnedFd,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection as HTTP has it.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
}

/// The way past HTTP into a connection.
#[derive(Debug, Clone)]
pub(super) struct Past(Arc<Shared>);

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<(Self, Past)> {
        let shared = Arc::new(Shared {
            reads: Mutex::new(Reads::Flows),
            writes: Mutex::new(Writes::Flows),
            asked: Notify::new(),
            clear: Notify::new(),
            socket: stream.as_fd().try_clone_to_owned()?,
        });
        let past = Past(Arc::clone(&shared));
        Ok((Self { stream, shared }, past))
    }

    /// How much of what HTTP writes now is sent already; nothing if it is to be sent.
    fn sent(&self, length: usize) -> Option<usize> {
        let mut writes = lock(&self.shared.writes);
        let Writes::Sent(left) = &mut *writes else {
            return None;
        };
        let some = usize::try_from(*left).unwrap_or(usize::MAX).min(length);
        *left -= some as u64;
        if *left == 0 {
            *writes = Writes::Flows;
        }
        Some(some)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut reads = lock(&this.shared.reads);
        match &mut *reads {
            Reads::Flows => {
                drop(reads);
                Pin::new(&mut this.stream).poll_read(context, buffer)
            }
            Reads::Held(waker) => {
                *waker = Some(context.waker().clone());
                this.shared.asked.notify_one();
                Poll::Pending
            }
            Reads::Owed(left) => {
                let some = usize::try_from(*left).unwrap_or(usize::MAX);
                let some = some.min(buffer.remaining());
                buffer.initialize_unfilled_to(some);
                buffer.advance(some);
                *left -= some as u64;
                if *left == 0 {
                    *reads = Reads::Flows;
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.sent(bytes.len()) {
            Some(sent) => Poll::Ready(Ok(sent)),
            None => Pin::new(&mut self.stream).poll_write(context, bytes),
        }
    }

    /// HTTP flushes its connection only when nothing is left of what it wrote.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writes = lock(&self.shared.writes);
        if *writes == Writes::Head {
            *writes = Writes::Clear;
            self.shared.clear.notify_one();
        }
        drop(writes);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.sent(parts.iter().map(|part| part.len()).sum()) {
            Some(sent) => Poll::Ready(Ok(sent)),
            None => Pin::new(&mut self.stream).poll_write_vectored(context, parts),
        }
    }
}

/// A request whose body, and whose answer's, may go past HTTP: routes find it among the extensions.
#[derive(Debug, Clone)]
pub(crate) struct Direct {
    past: Past,
    /// How many bytes its body has, if that is known.
    length: Option<u64>,
    /// How long its sender may keep quiet.
    pub(crate) quiet: Duration,
    silence: Silence,
}

impl Direct {
    pub(super) fn new(
        past: &Past,
        length: Option<u64>,
        quiet: Duration,
        silence: &Silence,
    ) -> Self {
        Self {
            past: past.clone(),
            length,
            quiet,
            silence: silence.clone(),
        }
    }

    /// From here on HTTP reads nothing more, until the hold is dropped. Also how many bytes the body has. Nothing if it is
    /// not worth it.
    pub(crate) fn hold(&self) -> Option<(Hold<'_>, u64)> {
        let length = self.length.filter(|length| *length >= LEAST)?;
        // Whoever takes it out of the connection watches over its sender.
        self.silence.allow();
        let shared = &*self.past.0;
        *lock(&shared.reads) = Reads::Held(None);
        Some((Hold { shared, moved: 0 }, length))
    }

    /// Passes HTTP with the body of an answer, of which nothing was given to HTTP. To be called when HTTP asks for the
    /// first of it: then the head is written.
    pub(crate) fn pass(&self) -> Pass<'_> {
        let shared = &*self.past.0;
        *lock(&shared.writes) = Writes::Head;
        Pass { shared, moved: 0 }
    }
}

/// HTTP is kept from reading a connection.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    shared: &'a Shared,
    /// How many bytes of the body HTTP never saw.
    pub(crate) moved: u64,
}

impl Hold<'_> {
    /// Waits until HTTP has given away all it had read and asks for more.
    pub(crate) async fn drained(&self) {
        let asked = || matches!(*lock(&self.shared.reads), Reads::Held(Some(_)));
        told(&self.shared.asked, asked).await;
    }

    /// The connection, out of which only the body may be read, and not a byte more.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.shared.socket.try_clone()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let next = match self.moved {
            0 => Reads::Flows,
            moved => Reads::Owed(moved),
        };
        let before = std::mem::replace(&mut *lock(&self.shared.reads), next);
        if let Reads::Held(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// HTTP is passed by the body of an answer.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    shared: &'a Shared,
    /// How many bytes of it HTTP must be given zeros for.
    pub(crate) moved: u64,
}

impl Pass<'_> {
    /// Waits until the head is sent.
    pub(crate) async fn clear(&self) {
        let clear = || *lock(&self.shared.writes) == Writes::Clear;
        told(&self.shared.clear, clear).await;
    }

    /// The connection, into which only the body may be written.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.shared.socket.try_clone()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *lock(&self.shared.writes) = match self.moved {
            0 => Writes::Flows,
            moved => Writes::Sent(moved),
        };
    }
}

/// Waits until something is so. What is told may be of a time before.
async fn told(notify: &Notify, is_so: impl Fn() -> bool) {
    loop {
        let told = notify.notified();
        if is_so() {
            return;
        }
        told.await;
    }
}
