//! DNS forwarder for sandboxes.
//!
//! It listens on the gateway address, passes queries on to the host's name servers and caches
//! nothing. An answer with a blocked address that no exception opens is replaced by an empty one.
//! Queries in flight, message sizes and times are bounded for each sandbox.

mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_model::EgressException;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::message::{AnswerCheck, Query, Status, truncated_response};
use crate::sync::lock;

/// The DNS port.
pub(super) const PORT: u16 = 53;
/// Queries and connections of one sandbox at once.
const MAX_PER_SANDBOX: usize = 64;
/// Queries and connections of all sandboxes at once.
const MAX_IN_FLIGHT: usize = 1024;
/// Bytes of a UDP message in either direction.
const MAX_DATAGRAM_BYTES: usize = 4096;
/// Time for one name server to answer.
const RESOLVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Name servers that are tried for one query.
const MAX_RESOLVERS: usize = 3;
/// Idle timeout of a TCP connection, and its number of queries.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_QUERIES_PER_CONNECTION: usize = 100;

/// Which name servers answer queries.
#[derive(Debug, Clone)]
pub enum Resolvers {
    /// Those in the host's `/etc/resolv.conf`, read again every 5 s.
    Host,
    /// A fixed list.
    Fixed(Vec<SocketAddr>),
}

/// Bound sockets of a forwarder that is not started.
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

/// Binds UDP and TCP sockets in the network namespace of this thread. The address need not exist
/// yet (`IP_FREEBIND`).
pub(super) fn listen(address: Ipv4Addr, port: u16) -> io::Result<Sockets> {
    let open = |kind, port| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
        sockopt::set_ip_freebind(&socket, true)?;
        if kind == SocketType::STREAM {
            // Connections of a previous server may be in TIME_WAIT.
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

/// A running forwarder; it stops when dropped.
#[derive(Debug)]
pub(super) struct Forwarder {
    tasks: JoinSet<()>,
    runtime: tokio::runtime::Handle,
}

impl Forwarder {
    /// Starts a forwarder on these sockets.
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

    /// Stops the forwarder and releases its sockets. Blocking; must not be called in an async task.
    pub(super) fn stop(mut self) {
        let runtime = self.runtime.clone();
        runtime.block_on(self.tasks.shutdown());
    }
}

#[derive(Debug)]
struct Shared {
    resolvers: Resolvers,
    /// Blocked addresses that answers may contain.
    exceptions: Arc<[EgressException]>,
    /// The host's name servers, and when they were read.
    host_resolvers: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    /// Queries and connections in flight, by sandbox.
    in_flight: Mutex<HashMap<IpAddr, usize>>,
}

impl Shared {
    fn resolvers(&self) -> Vec<SocketAddr> {
        if let Resolvers::Fixed(resolvers) = &self.resolvers {
            return resolvers.clone();
        }
        let mut read = lock(&self.host_resolvers);
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

    /// Admits a query or a connection; `None` beyond the limits.
    fn try_acquire(self: &Arc<Self>, sandbox: IpAddr) -> Option<QueryPermit> {
        let mut in_flight = lock(&self.in_flight);
        let all: usize = in_flight.values().sum();
        let own = in_flight.get(&sandbox).copied().unwrap_or_default();
        if own >= MAX_PER_SANDBOX || all >= MAX_IN_FLIGHT {
            return None;
        }
        in_flight.insert(sandbox, own + 1);
        Some(QueryPermit(Arc::clone(self), sandbox))
    }
}

/// Counts a query or connection of a sandbox until dropped.
struct QueryPermit(Arc<Shared>, IpAddr);

impl Drop for QueryPermit {
    fn drop(&mut self) {
        let mut in_flight = lock(&self.0.in_flight);
        if let Some(own) = in_flight.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                in_flight.remove(&self.1);
            }
        }
    }
}

/// The name servers in a `resolv.conf`.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok())
        .map(|address: IpAddr| SocketAddr::new(address, PORT))
        .collect()
}

async fn serve_udp(socket: Arc<UdpSocket>, shared: Arc<Shared>) {
    // Dropped with the forwarder, which cancels the queries in flight.
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        // Over the limit: no answer, so that the client retries.
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
            // Possibly out of descriptors: wait until some are closed.
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

/// The answer to a message from a sandbox; `None` if it is not a query.
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
            AnswerCheck::Truncated => truncated_response(&query),
            AnswerCheck::Malformed | AnswerCheck::Foreign => continue,
        });
    }
    Some(query.empty(Status::ServFail))
}

/// Queries from a new ephemeral port, which an attacker would have to guess.
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
