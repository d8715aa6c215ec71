//! Checks with a TCP connection that the host forwards packets of sandboxes. Accepting them in our
//! table is not enough: any other table can drop them, and Docker, ufw and firewalld do drop
//! forwarded packets.
//!
//! ```text
//! sandbox ── host ── atd-TAG 203.0.113.78 ── 203.0.113.77 a temporary namespace
//! ```
//!
//! The peer has a documentation address, which is blocked; the check removes that range from the
//! instance's set and does not restore it. So it must run in an instance that was created for the
//! check.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_jail::netns;
use atoll_model::{Code, Error};

use super::firewall;
use super::netlink::{ROUTE, Socket};
use super::veth::{self, Ipv6, LinkNames};
use crate::error::{internal, jail};

/// Both ends of the test link, from a documentation range (RFC 5737).
const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 78);
const PEER_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 77);
const TEST_RANGE: &str = "203.0.113.0/24";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects from a sandbox's namespace through the host and returns the time it took.
pub(crate) fn run(tag: &str, sandbox: BorrowedFd<'_>) -> Result<Duration, Error> {
    let name = format!("atd-{tag}");
    let result = try_connect(tag, &name, sandbox);
    // It would be removed with its namespace, a moment later.
    if let Ok(mut links) = Socket::open(ROUTE)
        && let Ok(link) = veth::find(&mut links, &name)
    {
        let _ = veth::delete(&mut links, &LinkNames::new(tag), &[link]);
    }
    result
}

fn try_connect(tag: &str, name: &str, sandbox: BorrowedFd<'_>) -> Result<Duration, Error> {
    let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
    let outside = netns::create().map_err(|error| jail(&error))?;
    let ipv6 = match std::fs::exists("/proc/sys/net/ipv6") {
        Ok(true) => Ipv6::Available,
        _ => Ipv6::Missing,
    };
    let mut links = Socket::open(ROUTE).map_err(failed("open a route netlink socket"))?;
    let names = LinkNames::new(tag);
    veth::create_pair(&mut links, &names, name, PEER_ADDRESS, outside.as_fd())
        .and_then(|index| {
            veth::set_up_addressed_end(&mut links, index, HOST_ADDRESS, PEER_ADDRESS, ipv6)
        })
        .map_err(failed("create a test link"))?;
    let server = netns::within(outside.as_fd(), || {
        veth::set_up_sandbox_end(&mut Socket::open(ROUTE)?, HOST_ADDRESS, PEER_ADDRESS, ipv6)?;
        TcpListener::bind((PEER_ADDRESS, 0))
    });
    let server = server
        .map_err(|error| jail(&error))?
        .map_err(failed("start a test server"))?;
    veth::wait_oper_up(&mut links, name).map_err(failed("create a test link"))?;
    let address = server
        .local_addr()
        .map_err(failed("get the test server's address"))?;
    let table = firewall::table(tag);
    firewall::nft(&format!(
        "delete element inet {table} refused {{ {TEST_RANGE} }}"
    ))?;
    let begin = Instant::now();
    netns::within(sandbox, || connect(address))
        .map_err(|error| jail(&error))?
        .map_err(|error| forwarding_error(&error))?;
    Ok(begin.elapsed())
}

fn connect(address: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map(drop)
}

/// The error with a remedy for the firewall that probably drops packets.
fn forwarding_error(error: &io::Error) -> Error {
    let docker =
        "iptables -I DOCKER-USER -i atl-+ -j ACCEPT && iptables -I DOCKER-USER -o atl-+ -j ACCEPT";
    let remedy = if Path::new("/sys/class/net/docker0").exists() {
        format!("Docker drops forwarded packets; allow them: {docker}")
    } else {
        format!(
            "allow forwarding from and to interfaces atl-* in the host's firewall. \
             ufw: ufw default allow routed. \
             firewalld: firewall-cmd --permanent --zone=trusted --add-interface=atl-+ && firewall-cmd --reload. \
             Docker: {docker}"
        )
    };
    let message = format!("this host does not forward packets of sandboxes: {error}");
    Error::new(Code::UnsupportedByHost, message)
        .remedy(remedy)
        .detail("feature", "network internet")
}
