//! Proves with a packet that what sandboxes send gets through this host. Our rules accepting it is not
//! enough: what any other table drops is dropped, and Docker, ufw and firewalld drop what is forwarded.
//!
//! ```text
//! sandbox ── host ── atd-TAG 203.0.113.78 ── 203.0.113.77 a namespace of our own
//! ```
//! The other end has an address that nobody has, which the instance's rules refuse: for as long as it
//! lives after this, it does not. So it is for an instance that was made for the trial.

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

/// The two ends, from a range for documentation.
const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 78);
const PEER_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 77);
const TEST_RANGE: &str = "203.0.113.0/24";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects from a sandbox's namespace through the host; how long that took.
pub(crate) fn run(tag: &str, sandbox: BorrowedFd<'_>) -> Result<Duration, Error> {
    let name = format!("atd-{tag}");
    let result = try_connect(tag, &name, sandbox);
    // It would go with its namespace, a moment later.
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
    let mut links = Socket::open(ROUTE).map_err(failed("speak with the kernel about links"))?;
    let names = LinkNames::new(tag);
    veth::create_pair(&mut links, &names, name, PEER_ADDRESS, outside.as_fd())
        .and_then(|index| {
            veth::set_up_addressed_end(&mut links, index, HOST_ADDRESS, PEER_ADDRESS, ipv6)
        })
        .map_err(failed("make a link to try"))?;
    let server = netns::within(outside.as_fd(), || {
        veth::set_up_sandbox_end(&mut Socket::open(ROUTE)?, HOST_ADDRESS, PEER_ADDRESS, ipv6)?;
        TcpListener::bind((PEER_ADDRESS, 0))
    });
    let server = server
        .map_err(|error| jail(&error))?
        .map_err(failed("make a server to try"))?;
    veth::wait_oper_up(&mut links, name).map_err(failed("make a link to try"))?;
    let address = server.local_addr().map_err(failed("ask for an address"))?;
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

/// What to do about whoever drops our packets.
fn forwarding_error(error: &io::Error) -> Error {
    let docker =
        "iptables -I DOCKER-USER -i atl-+ -j ACCEPT && iptables -I DOCKER-USER -o atl-+ -j ACCEPT";
    let remedy = if Path::new("/sys/class/net/docker0").exists() {
        format!("Docker drops what is forwarded: {docker}")
    } else {
        format!(
            "let your firewall forward what comes from and goes to interfaces atl-*. \
             ufw: ufw default allow routed. \
             firewalld: firewall-cmd --permanent --zone=trusted --add-interface=atl-+ && firewall-cmd --reload. \
             Docker: {docker}"
        )
    };
    let message = format!("this host does not forward what sandboxes send: {error}");
    Error::new(Code::UnsupportedByHost, message)
        .remedy(remedy)
        .detail("feature", "network internet")
}
