//! The forwarder: names for sandboxes, response of the host's own name servers.
//!
//! It listens on the gateway address, keeps nothing, and passes on what it can read. An answer with
//! an address that is refused to sandboxes, and in no exception of the operator, becomes an answer without records. How much of the host
//! one sandbox can use is bounded: questions at once, sizes, times.

mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::EgressException;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::message::{AnswerCheck, Query, Status, truncated};

/// Where names are response for.
pub(super) const PORT: u16 = 53;
/// Questions and connections at once, of one sandbox.
const MAX_PER_SANDBOX: usize = 64;
/// Of all together.
const MAX_IN_FLIGHT: usize = 1024;
/// The longest datagram in either direction.
const MAX_DATAGRAM_BYTES: usize = 4096;
/// How long one name server may think.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(3);
/// How many name servers are tried.
const MAX_RESOLVERS: usize = 3;
/// How long a connection may be silent, and how many questions it may ask.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_QUERIES_PER_CONNECTION: usize = 100;

/// Who is response.
#[derive(Debug, Clone)]
pub enum Resolvers {
    /// Whom `/etc/resolv.conf` of the host names at the time.
    Host,
    /// These.
    Fixed(Vec<SocketAddr>),
}

/// The sockets of a forwarder that does not run yet.
#[derive(Debug)]
pub(super) struct Sockets {
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
}

impl Sockets {
    #[cfg(test)]
    fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Binds an address which need not be there yet, in the network namespace of this thread.
pub(super) fn listen(address: Ipv4Addr, port: u16) -> io::Result<Sockets> {
    let open = |kind, port| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
        sockopt::set_ip_freebind(&socket, true)?;
        if kind == SocketType::STREAM {
            // Connections of a former instance with this address may still be closing.
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        rustix::net::bind(&socket, &SocketAddr::from((address, port)))?;
        io::Result::Ok(socket)
    };
    let tcp = open(SocketType::STREAM, port)?;
    rustix::net::listen(&tcp, 128)?;
    let tcp = std::net::TcpListener::from(tcp);
    let udp = open(SocketType::DGRAM, tcp.local_addr()?.port())?;
    Ok(Sockets {
        udp: udp.into(),
        tcp,
    })
}

/// A running forwarder. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    tasks: JoinSet<()>,
    runtime: tokio::runtime::Handle,
}

impl Forwarder {
    /// Starts one on these sockets.
    pub(super) fn start(
        sockets: Sockets,
        resolvers: Resolvers,
        exceptions: Arc<[EgressException]>,
    ) -> io::Result<Self> {
        let udp = Arc::new(UdpSocket::from_std(sockets.udp)?);
        let tcp = TcpListener::from_std(sockets.tcp)?;
        let shared = Arc::new(Shared {
            resolvers,
            exceptions,
            host_resolvers: Mutex::default(),
            in_flight: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, Arc::clone(&shared)));
        tasks.spawn(serve_tcp(tcp, shared));
        Ok(Self {
            tasks,
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// Ends it; its address is free when this returns. Not for a thread of the runtime itself.
    pub(super) fn stop(mut self) {
        let runtime = self.runtime.clone();
        runtime.block_on(self.tasks.shutdown());
    }
}

#[derive(Debug)]
struct Shared {
    resolvers: Resolvers,
    /// Refused addresses that may be answered.
    exceptions: Arc<[EgressException]>,
    /// When the host's configuration was read, and what it said.
    host_resolvers: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    /// What each sandbox has under way.
    in_flight: Mutex<HashMap<IpAddr, usize>>,
}

impl Shared {
    fn resolvers(&self) -> Vec<SocketAddr> {
        if let Resolvers::Fixed(resolvers) = &self.resolvers {
            return resolvers.clone();
        }
        let mut read = self
            .host_resolvers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &*read {
            Some((when, resolvers)) if when.elapsed() < Duration::from_secs(5) => resolvers.clone(),
            _ => {
                let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
                let resolvers = name_servers(&text);
                *read = Some((Instant::now(), resolvers.clone()));
                resolvers
            }
        }
    }

    /// Lets a question or a connection in, if there is room.
    fn try_acquire(self: &Arc<Self>, sandbox: IpAddr) -> Option<QueryPermit> {
        let mut in_flight = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let all: usize = in_flight.values().sum();
        let own = in_flight.get(&sandbox).copied().unwrap_or_default();
        if own >= MAX_PER_SANDBOX || all >= MAX_IN_FLIGHT {
            return None;
        }
        in_flight.insert(sandbox, own + 1);
        Some(QueryPermit(Arc::clone(self), sandbox))
    }
}

/// Something of a sandbox that is under way.
struct QueryPermit(Arc<Shared>, IpAddr);

impl Drop for QueryPermit {
    fn drop(&mut self) {
        let mut in_flight = self
            .0
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = in_flight.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                in_flight.remove(&self.1);
            }
        }
    }
}

/// The name servers a configuration names.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
        .map(|address: IpAddr| SocketAddr::new(address, PORT))
        .collect()
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    // Dropped with the forwarder, and with it whatever is under way.
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        // Too much at once: silence, and whoever response asks again.
        let Some(permit) = shared.try_acquire(from.ip()) else {
            continue;
        };
        let (socket, bytes) = (Arc::clone(&socket), buffer[..length].to_vec());
        tasks.spawn(async move {
            if let Some(answer) = resolve(&permit.0, &bytes, Transport::Udp).await {
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

async fn serve_tcp(listener: TcpListener, shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                if let Some(permit) = shared.try_acquire(from.ip()) {
                    tasks.spawn(async move { drop(serve_connection(stream, permit).await) });
                }
            }
            // Out of descriptors, perhaps: give others a chance to close some.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve_connection(mut stream: TcpStream, permit: QueryPermit) -> io::Result<()> {
    for _ in 0..MAX_QUERIES_PER_CONNECTION {
        let bytes = timeout(CONNECTION_IDLE_TIMEOUT, receive(&mut stream)).await??;
        match resolve(&permit.0, &bytes, Transport::Tcp).await {
            Some(answer) => timeout(CONNECTION_IDLE_TIMEOUT, send(&mut stream, &answer)).await??,
            None => break,
        }
    }
    Ok(())
}

async fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u16).to_be_bytes();
    stream.write_all(&[&length, bytes].concat()).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

/// What a sandbox is told; nothing if what it said was no question.
async fn resolve(shared: &Shared, bytes: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let query = match Query::read(bytes) {
        Ok(query) => query,
        Err(refusal) => return refusal,
    };
    if query.wants_ipv6() {
        return Some(query.empty(Status::NoError));
    }
    for resolver in shared.resolvers().into_iter().take(MAX_RESOLVERS) {
        let response = timeout(RESOLVER_TIMEOUT, async {
            match transport {
                Transport::Udp => query_udp(resolver, &query, &shared.exceptions).await,
                Transport::Tcp => query_tcp(resolver, &query).await,
            }
        });
        let Ok(Ok(answer)) = response.await else {
            continue;
        };
        return Some(match query.check_answer(&answer, &shared.exceptions) {
            AnswerCheck::Allowed => answer,
            AnswerCheck::BlockedAddress => query.empty(Status::NoError),
            AnswerCheck::Truncated => truncated(&query),
            AnswerCheck::Malformed | AnswerCheck::Foreign => continue,
        });
    }
    Some(query.empty(Status::ServFail))
}

/// Asks from a port of its own, so that a stranger would have to guess it.
async fn query_udp(
    resolver: SocketAddr,
    query: &Query<'_>,
    exceptions: &[EgressException],
) -> io::Result<Vec<u8>> {
    let any: IpAddr = match resolver {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(query.bytes()).await?;
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if query.check_answer(&buffer[..length], exceptions) != AnswerCheck::Foreign {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn query_tcp(resolver: SocketAddr, query: &Query<'_>) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(resolver).await?;
    send(&mut stream, query.bytes()).await?;
    receive(&mut stream).await
}
