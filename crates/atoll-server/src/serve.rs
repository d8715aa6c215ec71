//! Connections: how many there may be, how long one may keep us waiting, and how they end.

mod framing;
mod request_body;
mod stalled_streams;
mod timeouts;
mod transport;
mod unauthenticated;

use std::convert::Infallible;
use std::io::{self, Cursor};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use atoll_model::{Code, Error};
use axum::Router;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt as _;

use crate::middleware::{ClientAddress, Encrypted};
use crate::tls::Tls;
use framing::HEAD;
use timeouts::{Answered, Heard, Overdue, Pace};
pub(crate) use request_body::Silence;
use stalled_streams::{Streams, Taken};
use transport::Transport;
use unauthenticated::Unauthenticated;

/// The most that is read at a time, and that waits to be written, of one connection.
const BUFFER: usize = 256 << 10;
/// How long the words are with which every HTTP/2 begins.
const PREFACE: usize = 24;
/// How long is waited before another try, when the machine can give us no connection.
const BREATH: Duration = Duration::from_millis(100);
/// How often it is said that there are none, and after how long without a failure that this is over.
const REPEAT: Duration = Duration::from_secs(10);
const OVER: Duration = Duration::from_secs(1);

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

/// What a client may take of us.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How many connections there may be at once; more wait.
    pub connections: u32,
    /// How long a handshake and the head of a request may take.
    pub quiet: Duration,
    /// How long a connection is kept without a request. It is only `quiet` before a request on it was authenticated, and while
    /// all places are taken.
    pub idle: Duration,
    /// How long a client may keep quiet in the middle of a body.
    pub body: Duration,
    /// File descriptors from this number on are kept back for others than connections. The kernel gives the lowest free
    /// number: if it gives this one, as many are open.
    pub reserved: i32,
}

impl Patience {
    fn is_reserved(&self, descriptor: &impl AsRawFd) -> bool {
        descriptor.as_raw_fd() >= self.reserved
    }
}

/// Serves until it is told to stop, and then until the requests under way are answered.
pub async fn serve(
    listening: Listening,
    router: Router,
    patience: Patience,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(patience.connections as usize));
    let connections = Connections {
        router,
        languages: Arc::new(Languages::new(patience)),
        patience,
        places: Arc::clone(&places),
        unauthenticated: Unauthenticated::default(),
        stop: stop.clone(),
    };
    let mut lack = Lack::default();
    loop {
        let next = async {
            match accept(&listening).await {
                Ok(accepted)
                    if patience.is_reserved(&accepted)
                        && !connections.unauthenticated.close_oldest() =>
                {
                    lack.lasts(&io::Error::other("the other descriptors are kept back"));
                }
                Ok(accepted) => {
                    lack.ends();
                    let place = connections.place().await;
                    connections.begin(&listening, accepted, place);
                }
                Err(error) if ended_early(&error) => {}
                Err(error) => {
                    lack.lasts(&error);
                    connections.unauthenticated.close_oldest();
                    sleep(BREATH).await;
                }
            }
        };
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            () = next => {}
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

/// Connections that the machine cannot give us: said when it begins, now and then while it lasts, and when it is over.
#[derive(Debug, Default)]
struct Lack {
    attempts: u64,
    /// When one failed last, and when it was said.
    times: Option<(Instant, Instant)>,
}

impl Lack {
    fn lasts(&mut self, error: &io::Error) {
        self.attempts += 1;
        let now = Instant::now();
        let said = self.times.map(|(_, said)| said);
        let due = said.is_none_or(|said| now >= said + REPEAT);
        if due {
            tracing::warn!(%error, attempts = self.attempts, "no connection can be taken");
        }
        let said = said.filter(|_| !due).unwrap_or(now);
        self.times = Some((now, said));
    }

    /// One was taken. While there are too few, one is now and then.
    fn ends(&mut self) {
        if self.times.is_some_and(|(last, _)| last.elapsed() >= OVER) {
            tracing::info!(attempts = self.attempts, "connections are taken again");
            *self = Self::default();
        }
    }
}

enum Accepted {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    fn client(&self) -> Option<ClientAddress> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|peer| ClientAddress(peer.ip())),
            Self::Unix(_) => None,
        }
    }
}

impl AsRawFd for Accepted {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }
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
    patience: Patience,
    places: Arc<Semaphore>,
    unauthenticated: Unauthenticated,
    stop: watch::Receiver<bool>,
}

impl Connections {
    /// A place for the connection that was accepted last: a free one, or that of the oldest unauthenticated one.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Some(place);
        }
        let place = Arc::clone(&self.places).acquire_owned();
        let mut place = pin!(place);
        loop {
            self.unauthenticated.close_oldest();
            // It takes a moment until a closed one is gone. If there was none, there may be one later.
            if let Ok(place) = timeout(BREATH, place.as_mut()).await {
                return place.ok();
            }
        }
    }

    /// Each in a task of its own: one that is slow holds up nobody.
    fn begin(
        &self,
        listening: &Listening,
        accepted: Accepted,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let languages = Arc::clone(&self.languages);
        let acceptor = match listening {
            Listening::Tls(_, tls) => Some(tls.acceptor()),
            Listening::Plain(_) | Listening::Unix(_) => None,
        };
        let pace = Pace::new(self.patience, &self.places, &self.unauthenticated);
        let mut served = Served {
            router: self.router.clone(),
            encrypted: acceptor.is_some(),
            client: accepted.client(),
            patience: self.patience,
            pace: pace.clone(),
            stop: self.stop.clone(),
        };
        let serving = async move {
            let done = match (accepted, acceptor) {
                (Accepted::Unix(stream), _) => languages.one(stream, served, place).await,
                (Accepted::Tcp(stream), None) => languages.one(stream, served, place).await,
                (Accepted::Tcp(stream), Some(acceptor)) => {
                    let quiet = served.patience.quiet;
                    let shaken = tokio::select! {
                        _ = served.stop.wait_for(|stop| *stop) => return,
                        shaken = timeout(quiet, acceptor.accept(stream)) => shaken,
                    };
                    // Whoever cannot speak TLS, or never does, is told nothing.
                    let Ok(Ok(stream)) = shaken else { return };
                    match stream.get_ref().1.alpn_protocol() {
                        Some(b"h2") => {
                            let _place = place;
                            languages.two(stream, served).await
                        }
                        _ => languages.one(stream, served, place).await,
                    }
                }
            };
            // What goes wrong here is the client's: it broke off, or speaks something else.
            if let Err(error) = done {
                tracing::debug!(%error, "a connection ended");
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = pace.closed() => {}
                () = serving => {}
            }
            pace.leave();
        });
    }
}

/// The connection a request came over: routes find it among the extensions.
#[derive(Debug, Clone)]
pub(crate) struct Connection(Pace);

impl Connection {
    /// The request was authenticated: by a key, a token, a ticket or a signature.
    pub(crate) fn authenticate(&self) {
        self.0.authenticate();
    }

    /// A sandbox serves the request of a visitor without credentials.
    pub(crate) fn visit(&self) {
        self.0.visit();
    }

    /// Has a connection with HTTP/1 closed with a TCP reset. Some clients take a close of another kind, in the middle of a
    /// response, for a fault of the protocol. With HTTP/2 the stream alone is reset.
    pub(crate) fn reset_at_close(&self) {
        self.0.reset_at_close();
    }

    /// Refuses a further connection, to a port, that has taken a descriptor which is kept back.
    pub(crate) fn check_descriptor(&self, descriptor: &impl AsRawFd) -> Result<(), Error> {
        if !self.0.patience().is_reserved(descriptor) {
            return Ok(());
        }
        let message = "the server has no descriptors left for connections to ports";
        Err(Error::new(Code::NoCapacity, message)
            .remedy("try again; if it goes on, raise the server's limit of open files"))
    }
}

/// One connection.
#[derive(Clone)]
struct Served {
    router: Router,
    encrypted: bool,
    client: Option<ClientAddress>,
    patience: Patience,
    pace: Pace,
    stop: watch::Receiver<bool>,
}

impl Served {
    async fn answer(self, request: Request<Incoming>) -> Result<Response<Answered>, Infallible> {
        let under_way = self.pace.request();
        let silence = Silence::default();
        let mut request = request_body::limited(request, self.patience.body, &silence, &under_way);
        request.extensions_mut().insert(silence);
        request
            .extensions_mut()
            .insert(Connection(self.pace.clone()));
        if let Some(client) = self.client {
            request.extensions_mut().insert(client);
        }
        if self.encrypted {
            request.extensions_mut().insert(Encrypted);
        }
        let response = self.router.oneshot(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.pace.upgrade();
        }
        Ok(response.map(|body| Answered::new(body, under_way, Taken::here())))
    }

    /// Serves until its client goes or is too slow, or until all is answered that was asked for before the stop.
    async fn until_over<C: Future<Output = hyper::Result<()>>>(
        mut self,
        connection: C,
        end: impl FnOnce(Pin<&mut C>),
    ) -> hyper::Result<()> {
        let mut connection = pin!(connection);
        tokio::select! {
            done = connection.as_mut() => return done,
            _ = self.stop.wait_for(|stop| *stop) => {}
            overdue = self.pace.overdue(self.patience.idle) => if overdue == Overdue::Head {
                return Ok(());
            }
        }
        end(connection.as_mut());
        tokio::select! {
            done = connection => done,
            _ = self.pace.overdue(self.patience.quiet) => Ok(()),
        }
    }
}

/// The two HTTPs.
struct Languages {
    one: http1::Builder,
    two: http2::Builder<Streams>,
}

impl Languages {
    fn new(patience: Patience) -> Self {
        let quiet = patience.quiet;
        let mut one = http1::Builder::new();
        // How long a head may take, and how long none need come, is watched by ourselves.
        one.header_read_timeout(None)
            .max_header_size(HEAD)
            .max_buf_size(BUFFER);
        let mut two = http2::Builder::new(Streams {
            quiet: patience.body,
        });
        two.timer(TokioTimer::new())
            // A client that is not there any more is found out.
            .keep_alive_interval(quiet)
            .keep_alive_timeout(quiet)
            .max_header_list_size(u16::MAX.into());
        Self { one, two }
    }

    async fn one(
        &self,
        stream: impl Transport,
        served: Served,
        place: Option<OwnedSemaphorePermit>,
    ) -> hyper::Result<()> {
        let service = served.clone();
        let service = service_fn(move |request| service.clone().answer(request));
        let stream = TokioIo::new(Heard::new(stream, served.pace.clone(), place));
        let connection = self.one.serve_connection(stream, service).with_upgrades();
        let end = http1::UpgradeableConnection::graceful_shutdown;
        served.until_over(connection, end).await
    }

    async fn two(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        served: Served,
    ) -> hyper::Result<()> {
        // Only whoever has said its first words is asked whether it is still there.
        let mut first = [0; PREFACE];
        let heard = timeout(served.patience.quiet, stream.read_exact(&mut first)).await;
        if !matches!(heard, Ok(Ok(_))) {
            return Ok(());
        }
        served.pace.greeted();
        let (reader, writer) = tokio::io::split(stream);
        let stream = tokio::io::join(Cursor::new(first).chain(reader), writer);
        let service = served.clone();
        let service = service_fn(move |request| service.clone().answer(request));
        let connection = self.two.serve_connection(TokioIo::new(stream), service);
        served
            .until_over(connection, http2::Connection::graceful_shutdown)
            .await
    }
}
