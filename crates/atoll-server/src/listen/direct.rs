//! Large bodies past HTTP: out of their connection into a sandbox, without a copy through our memory.
//!
//! HTTP reads its connection itself, ahead of what it was asked for. Whoever wants the rest of a body first holds the
//! connection and takes what HTTP has read as ever; when HTTP asks for more, it has nothing left, and what comes next
//! in the connection is the body's. The kernel moves it. Then HTTP is given as many zeros, which nobody looks at, and stands
//! where it would have stood.
//!
//! ```text
//! Flows ──hold──▶ Held ──HTTP asks──▶ Held, Asked ──all moved, or given up──▶ Owed ──zeros given──▶ Flows
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

#[derive(Debug)]
enum State {
    Flows,
    /// HTTP gets nothing. If it has asked, it is woken when it gets something again.
    Held(Option<Waker>),
    /// HTTP gets so many zeros first.
    Owed(u64),
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when HTTP asks while it is held.
    asked: Notify,
    socket: OwnedFd,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection as HTTP reads it.
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
            state: Mutex::new(State::Flows),
            asked: Notify::new(),
            socket: stream.as_fd().try_clone_to_owned()?,
        });
        let past = Past(Arc::clone(&shared));
        Ok((Self { stream, shared }, past))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = this.shared.state();
        match &mut *state {
            State::Flows => {
                drop(state);
                Pin::new(&mut this.stream).poll_read(context, buffer)
            }
            State::Held(waker) => {
                *waker = Some(context.waker().clone());
                this.shared.asked.notify_one();
                Poll::Pending
            }
            State::Owed(left) => {
                let some = usize::try_from(*left).unwrap_or(usize::MAX);
                let some = some.min(buffer.remaining());
                buffer.initialize_unfilled_to(some);
                buffer.advance(some);
                *left -= some as u64;
                if *left == 0 {
                    *state = State::Flows;
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
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }
}

/// A body that may be taken out of its connection: routes find it among the extensions.
#[derive(Debug, Clone)]
pub(crate) struct Direct {
    past: Past,
    /// How many bytes it has.
    pub(crate) length: u64,
    /// How long its sender may keep quiet.
    pub(crate) quiet: Duration,
    silence: Silence,
}

impl Direct {
    /// Bodies that are hardly larger than what HTTP reads ahead are not worth it.
    const LEAST: u64 = 1 << 20;

    pub(super) fn new(
        past: &Past,
        length: Option<u64>,
        quiet: Duration,
        silence: &Silence,
    ) -> Option<Self> {
        let length = length.filter(|length| *length >= Self::LEAST)?;
        Some(Self {
            past: past.clone(),
            length,
            quiet,
            silence: silence.clone(),
        })
    }

    /// From here on HTTP reads nothing more, until the hold is dropped.
    pub(crate) fn hold(&self) -> Hold<'_> {
        // Whoever takes it out of the connection watches over its sender.
        self.silence.allow();
        let shared = &*self.past.0;
        *shared.state() = State::Held(None);
        Hold { shared, moved: 0 }
    }
}

/// HTTP is kept from a connection.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    shared: &'a Shared,
    /// How many bytes of the body HTTP never saw.
    pub(crate) moved: u64,
}

impl Hold<'_> {
    /// Waits until HTTP has given away all it had read and asks for more.
    pub(crate) async fn drained(&self) {
        loop {
            let asked = self.shared.asked.notified();
            // What is told may be of a hold before this one.
            if matches!(*self.shared.state(), State::Held(Some(_))) {
                return;
            }
            asked.await;
        }
    }

    /// The connection, out of which only the body may be read, and not a byte more.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.shared.socket.try_clone()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let next = match self.moved {
            0 => State::Flows,
            moved => State::Owed(moved),
        };
        let before = std::mem::replace(&mut *self.shared.state(), next);
        if let State::Held(Some(waker)) = before {
            waker.wake();
        }
    }
}
