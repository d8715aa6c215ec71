//! Connections: how many there may be, how long one may keep us waiting, and how they end.

use std::io::{self, Cursor};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::map_request;
use axum::{BoxError, Router};
use hyper::body::{Frame, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Sleep, sleep, timeout};

use crate::guard::Encrypted;
use crate::tls::Tls;

/// The largest head of a request.
const HEAD: u16 = u16::MAX;
/// How long the words are with which every HTTP/2 begins.
const PREFACE: usize = 24;
/// How long is waited before another try, when the machine can give us no connection.
const BREATH: Duration = Duration::from_millis(100);

/// Where requests come from.
#[derive(Debug)]
pub enum Listening {
    /// Over the network, as they are.
    Plain(TcpListener),
    /// Over the network, encrypted.
    Tls(TcpListener, Tls),
    /// From this machine.
    Unix(UnixListener),
}

/// What a client may take of us before it has said who it is.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How many connections there may be at once; more wait.
    pub connections: u32,
    /// How long a client may keep quiet in the middle of a handshake, a head or a body, and how long a
    /// connection may be kept without a request.
    pub quiet: Duration,
}

/// Serves until it is told to stop, and then until the requests under way are answered.
pub async fn serve(
    listening: Listening,
    router: Router,
    patience: Patience,
    mut stop: watch::Receiver<bool>,
) {
    let quiet = patience.quiet;
    let encrypted = matches!(listening, Listening::Tls(..));
    let connections = Connections {
        router: router.layer(map_request(move |mut request: Request| async move {
            if encrypted {
                request.extensions_mut().insert(Encrypted);
            }
            request.map(|body| waited_for(body, quiet))
        })),
        languages: Arc::new(Languages::new(quiet)),
        quiet,
        stop: stop.clone(),
    };
    let places = Arc::new(Semaphore::new(patience.connections as usize));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (accept(&listening).await, place.ok())
        };
        let (accepted, place) = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            next = next => next,
        };
        match accepted {
            Ok(accepted) => connections.begin(&listening, accepted, place),
            Err(error) if ended_early(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be taken");
                sleep(BREATH).await;
            }
        }
    }
    drop(listening);
    // Every connection has given its place back.
    let _ = places.acquire_many(patience.connections).await;
}

/// A client that went before it was let in is its own affair.
fn ended_early(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn accept(listening: &Listening) -> io::Result<Accepted> {
    match listening {
        Listening::Plain(listener) | Listening::Tls(listener, _) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Accepted::Tcp(stream))
        }
        Listening::Unix(listener) => listener
            .accept()
            .await
            .map(|(stream, _)| Accepted::Unix(stream)),
    }
}

/// What every connection is served with.
struct Connections {
    router: Router,
    languages: Arc<Languages>,
    quiet: Duration,
    stop: watch::Receiver<bool>,
}

impl Connections {
    /// Each in a task of its own: one that is slow holds up nobody.
    fn begin(
        &self,
        listening: &Listening,
        accepted: Accepted,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let (languages, router) = (Arc::clone(&self.languages), self.router.clone());
        let (quiet, mut stop) = (self.quiet, self.stop.clone());
        let acceptor = match listening {
            Listening::Tls(_, tls) => Some(tls.acceptor()),
            Listening::Plain(_) | Listening::Unix(_) => None,
        };
        tokio::spawn(async move {
            let _place = place;
            let done = match (accepted, acceptor) {
                (Accepted::Unix(stream), _) => languages.one(stream, router, stop).await,
                (Accepted::Tcp(stream), None) => languages.one(stream, router, stop).await,
                (Accepted::Tcp(stream), Some(acceptor)) => {
                    let shaken = tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => return,
                        shaken = timeout(quiet, acceptor.accept(stream)) => shaken,
                    };
                    // Whoever cannot speak TLS, or never does, is told nothing.
                    let Ok(Ok(stream)) = shaken else { return };
                    match stream.get_ref().1.alpn_protocol() {
                        Some(b"h2") => languages.two(stream, router, stop).await,
                        _ => languages.one(stream, router, stop).await,
                    }
                }
            };
            // What goes wrong here is the client's: it broke off, was too slow, or speaks something else.
            if let Err(error) = done {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}

/// The two HTTPs.
struct Languages {
    one: http1::Builder,
    two: http2::Builder<TokioExecutor>,
    quiet: Duration,
}

impl Languages {
    fn new(quiet: Duration) -> Self {
        let mut one = http1::Builder::new();
        one.timer(TokioTimer::new())
            .header_read_timeout(quiet)
            .max_header_size(HEAD.into());
        let mut two = http2::Builder::new(TokioExecutor::new());
        two.timer(TokioTimer::new())
            // A client that is not there any more is found out.
            .keep_alive_interval(quiet)
            .keep_alive_timeout(quiet)
            .max_header_list_size(HEAD.into());
        Self { one, two, quiet }
    }

    async fn one(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        router: Router,
        stop: watch::Receiver<bool>,
    ) -> hyper::Result<()> {
        let service = TowerToHyperService::new(router);
        let connection = self.one.serve_connection(TokioIo::new(stream), service);
        let end = http1::UpgradeableConnection::graceful_shutdown;
        until_stopped(connection.with_upgrades(), end, stop).await
    }

    async fn two(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        router: Router,
        stop: watch::Receiver<bool>,
    ) -> hyper::Result<()> {
        // Only whoever has said its first words is asked whether it is still there.
        let mut first = [0; PREFACE];
        let heard = timeout(self.quiet, stream.read_exact(&mut first)).await;
        if !matches!(heard, Ok(Ok(_))) {
            return Ok(());
        }
        let (reader, writer) = tokio::io::split(stream);
        let stream = tokio::io::join(Cursor::new(first).chain(reader), writer);
        let service = TowerToHyperService::new(router);
        let connection = self.two.serve_connection(TokioIo::new(stream), service);
        until_stopped(connection, http2::Connection::graceful_shutdown, stop).await
    }
}

/// Serves a connection until its client goes, or until all is answered that was asked for before the stop.
async fn until_stopped<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    end: impl FnOnce(Pin<&mut C>),
    mut stop: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    tokio::select! {
        done = connection.as_mut() => return done,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    end(connection.as_mut());
    connection.await
}

/// A body whose sender may not keep quiet for ever.
fn waited_for(body: Body, quiet: Duration) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(Waited {
        body,
        quiet,
        clock: None,
        waiting: false,
    })
}

struct Waited {
    body: Body,
    quiet: Duration,
    clock: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl HttpBody for Waited {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let quiet = this.quiet;
        let clock = this.clock.get_or_insert_with(|| Box::pin(sleep(quiet)));
        // From the last piece on.
        if !std::mem::replace(&mut this.waiting, true) {
            clock.as_mut().reset(tokio::time::Instant::now() + quiet);
        }
        ready!(clock.as_mut().poll(context));
        Poll::Ready(Some(Err("nothing more of the body came".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
