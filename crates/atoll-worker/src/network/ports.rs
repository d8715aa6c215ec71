//! Listening TCP ports of a sandbox, from the kernel's `sock_diag`: no process in the sandbox is
//! involved.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use atoll_jail::netns;
use atoll_model::Error;

use super::netlink::{Batch, DUMP, SOCK_DIAG, Socket};
use crate::error::{internal, jail};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const TCP: u8 = 6;
/// State mask: only `TCP_LISTEN`.
const LISTEN: u32 = 1 << 10;
const INET: u8 = rustix::net::AddressFamily::INET.as_raw() as u8;
const INET6: u8 = rustix::net::AddressFamily::INET6.as_raw() as u8;

/// Listening TCP addresses in a network namespace, sorted by port.
pub fn listening(namespace: BorrowedFd<'_>) -> Result<Vec<SocketAddr>, Error> {
    list(&mut open(namespace)?)
}

/// A `sock_diag` socket in a sandbox's network namespace, which it keeps alive.
#[derive(Debug)]
pub(crate) struct SockDiag(Socket);

/// Opens a `sock_diag` socket in a network namespace.
pub(crate) fn open(namespace: BorrowedFd<'_>) -> Result<SockDiag, Error> {
    let socket = netns::within(namespace, || Socket::open(SOCK_DIAG));
    let socket = socket.map_err(|error| jail(&error))?;
    socket
        .map(SockDiag)
        .map_err(|error| internal("open a sock_diag socket", &error))
}

/// Current listening TCP addresses, sorted by port.
pub(crate) fn list(SockDiag(socket): &mut SockDiag) -> Result<Vec<SocketAddr>, Error> {
    let found = dump(socket, INET).and_then(|mut found| {
        found.extend(dump(socket, INET6)?);
        Ok(found)
    });
    let mut found = found.map_err(|error| internal("list a sandbox's ports", &error))?;
    found.sort_unstable_by_key(|address| (address.port(), address.ip()));
    found.dedup();
    Ok(found)
}

fn dump(socket: &mut Socket, family: u8) -> io::Result<Vec<SocketAddr>> {
    let mut request = vec![family, TCP, 0, 0];
    request.extend(LISTEN.to_ne_bytes());
    // The zeroed `inet_diag_sockid` matches all sockets.
    request.resize(56, 0);
    let mut batch = Batch::default();
    batch.message(SOCK_DIAG_BY_FAMILY, DUMP, &request, |_| {});
    let replies = socket.request(&batch)?;
    Ok(replies
        .iter()
        .filter_map(|reply| parse(&reply.body))
        .collect())
}

/// Parses family, port and address of an `inet_diag_msg`.
fn parse(body: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(body.get(4..6)?.try_into().ok()?);
    let address: IpAddr = match *body.first()? {
        INET => Ipv4Addr::from(<[u8; 4]>::try_from(body.get(8..12)?).ok()?).into(),
        INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, port))
}
