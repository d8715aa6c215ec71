//! veth pairs: one end on the host, one in a sandbox.
//!
//! Both ends have the same hardware address and use no ARP, since all that leaves one end is for
//! the other. The end in the sandbox has the sandbox's address and a neighbour route to the
//! gateway. The host's end has a route to the sandbox and no address: a browser on this machine
//! would take every added or removed address for a network change and abort its requests. The
//! gateway's address is on a separate pair that leads nowhere.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::netlink::{ACK, Batch, CREATE, DUMP, REPLACE, Socket, attributes};

const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const NEWADDR: u16 = 20;
const NEWROUTE: u16 = 24;

const UP: u32 = 0x1;
const NOARP: u32 = 0x80;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_AF_SPEC: u16 = 26;
const ADDR_GEN_MODE: u16 = 8;
const IFLA_GROUP: u16 = 27;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;

/// `IF_OPER_UP`.
const OPER_UP: u8 = 6;

/// Prefix of all instances' links.
const PREFIX: &str = "atl-";

/// Name of the end in the sandbox.
pub(super) const SANDBOX_INTERFACE: &str = "eth0";

/// Identification of an instance's links: by name prefix, and by a group number, which lets many be
/// deleted by one message.
#[derive(Debug, Clone)]
pub(super) struct LinkNames {
    prefix: String,
    group: u32,
}

impl LinkNames {
    /// The names of an instance with this tag.
    pub(super) fn new(tag: &str) -> Self {
        // A tag is 4 of 36 characters: 21 bits, with our initials above them and the removal bit
        // below.
        let number = tag.bytes().fold(0_u32, |sum, byte| {
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                _ => byte.wrapping_sub(b'a').wrapping_add(10),
            };
            sum.wrapping_mul(36).wrapping_add(u32::from(digit))
        });
        Self {
            prefix: format!("{PREFIX}{tag}-"),
            group: 0x6100_0000 | (number << 1 & 0x00ff_fffe),
        }
    }

    /// Prefix of the instance's links.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Names of the gateway pair.
    fn gateway_pair(&self) -> [String; 2] {
        ["gate", "wall"].map(|end| format!("{}{end}", self.prefix))
    }

    /// Group of links that are about to be deleted.
    fn removal_group(&self) -> u32 {
        self.group | 1
    }
}

/// The host's end of a link.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostLink {
    pub(super) index: u32,
    pub(super) name: String,
    /// Whether the sandbox ever sent a packet.
    pub(super) has_sent: bool,
    /// Whether `operstate` is up.
    oper_up: bool,
    /// The sandbox's address, from the hardware address.
    sandbox: Ipv4Addr,
}

/// An `ifinfomsg` that sets flags.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    link_header_with_mask(index, flags, flags)
}

fn link_header_with_mask(index: u32, flags: u32, mask: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(index.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(mask.to_ne_bytes());
    bytes
}

/// Creates a pair: the host's end with this name, the other in a sandbox's namespace. Both are
/// down.
pub(super) fn create_pair(
    socket: &mut Socket,
    names: &LinkNames,
    name: &str,
    address: Ipv4Addr,
    namespace: BorrowedFd<'_>,
) -> io::Result<u32> {
    create(socket, names, name, address, PeerEnd::Namespace(namespace))
}

/// Place of the other end of a pair.
#[derive(Clone, Copy)]
enum PeerEnd<'a> {
    /// In this network namespace.
    Namespace(BorrowedFd<'a>),
    /// On the host, with this name.
    Host(&'a str),
}

fn create(
    socket: &mut Socket,
    names: &LinkNames,
    name: &str,
    address: Ipv4Addr,
    peer: PeerEnd<'_>,
) -> io::Result<u32> {
    let [a, b, c, d] = address.octets();
    // Locally administered, and unique because the address is.
    let hardware = [0x02, 0x61, a, b, c, d];
    let common = |batch: &mut Batch, name: &str| {
        batch.text(IFLA_IFNAME, name);
        batch.attribute(IFLA_ADDRESS, &hardware);
        batch.attribute(IFLA_NUM_TX_QUEUES, &1_u32.to_ne_bytes());
        batch.attribute(IFLA_NUM_RX_QUEUES, &1_u32.to_ne_bytes());
    };
    let mut batch = Batch::default();
    batch.message(NEWLINK, ACK | CREATE, &link_header(0, NOARP), |batch| {
        common(batch, name);
        batch.attribute(IFLA_GROUP, &names.group.to_ne_bytes());
        batch.nested(IFLA_LINKINFO, &[], |batch| {
            batch.text(INFO_KIND, "veth");
            batch.nested(INFO_DATA, &[], |batch| {
                batch.nested(VETH_PEER, &link_header(0, NOARP), |batch| match peer {
                    PeerEnd::Namespace(namespace) => {
                        common(batch, SANDBOX_INTERFACE);
                        let namespace = namespace.as_raw_fd().to_ne_bytes();
                        batch.attribute(IFLA_NET_NS_FD, &namespace);
                    }
                    PeerEnd::Host(name) => {
                        common(batch, name);
                        batch.attribute(IFLA_GROUP, &names.group.to_ne_bytes());
                    }
                });
            });
        });
    });
    socket.request(&batch)?;
    find(socket, name).map(|found| found.index)
}

/// Finds a link by name.
pub(super) fn find(socket: &mut Socket, name: &str) -> io::Result<HostLink> {
    let mut batch = Batch::default();
    batch.message(GETLINK, ACK, &link_header(0, 0), |batch| {
        batch.text(IFLA_IFNAME, name);
    });
    let replies = socket.request(&batch)?;
    let found = replies.iter().find_map(|reply| parse(&reply.body));
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// All sandbox links of an instance.
pub(super) fn list_sandbox_links(
    socket: &mut Socket,
    names: &LinkNames,
) -> io::Result<Vec<HostLink>> {
    let gate = names.gateway_pair();
    let mut links = list(socket, names)?;
    links.retain(|link| !gate.contains(&link.name));
    Ok(links)
}

/// All links of an instance, the gateway pair included.
pub(super) fn list(socket: &mut Socket, names: &LinkNames) -> io::Result<Vec<HostLink>> {
    let mut links = all(socket)?;
    links.retain(|link| link.name.starts_with(names.prefix()));
    Ok(links)
}

/// All links in the network namespace.
fn all(socket: &mut Socket) -> io::Result<Vec<HostLink>> {
    let mut batch = Batch::default();
    batch.message(GETLINK, DUMP, &link_header(0, 0), |_| {});
    let replies = socket.request(&batch)?;
    Ok(replies
        .iter()
        .filter_map(|reply| parse(&reply.body))
        .collect())
}

/// All instances' links: the tag, and the address of the sandbox or gateway.
pub(super) fn list_owners(socket: &mut Socket) -> io::Result<Vec<(String, Ipv4Addr)>> {
    let links = all(socket)?;
    let owners = links.iter().filter_map(|link| {
        let (tag, _) = link.name.strip_prefix(PREFIX)?.split_once('-')?;
        Some((tag.to_owned(), link.sandbox))
    });
    Ok(owners.collect())
}

fn parse(body: &[u8]) -> Option<HostLink> {
    let mut found = HostLink {
        index: u32::from_ne_bytes(body.get(4..8)?.try_into().ok()?),
        name: String::new(),
        has_sent: false,
        oper_up: false,
        sandbox: Ipv4Addr::UNSPECIFIED,
    };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_IFNAME => {
                let text = value.strip_suffix(b"\0").unwrap_or(value);
                found.name = String::from_utf8_lossy(text).into_owned();
            }
            IFLA_ADDRESS => {
                if let [_, _, address @ ..] = value
                    && let Ok(address) = <[u8; 4]>::try_from(address)
                {
                    found.sandbox = address.into();
                }
            }
            IFLA_OPERSTATE => found.oper_up = value == [OPER_UP],
            IFLA_STATS64 => found.has_sent = value.get(..8)? != [0; 8],
            _ => {}
        }
    }
    Some(found)
}

/// Adds a point-to-point address, which adds a route to the peer.
fn add_address(batch: &mut Batch, index: u32, own: Ipv4Addr, other: Ipv4Addr) {
    let mut fixed = vec![rustix::net::AddressFamily::INET.as_raw() as u8, 32, 0, 0];
    fixed.extend(index.to_ne_bytes());
    batch.message(NEWADDR, ACK | REPLACE, &fixed, |batch| {
        batch.attribute(IFA_LOCAL, &own.octets());
        batch.attribute(IFA_ADDRESS, &other.octets());
    });
}

/// Whether the kernel has IPv6, which must then be disabled on each link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ipv6 {
    Available,
    Missing,
}

/// Sets an end up without IPv6, along with further messages: the link gets no link-local address,
/// and the sandbox cannot add one. A sysctl would be simpler, but with a thousand namespaces the
/// lookup in `/proc/sys` takes longer than everything else.
fn bring_up(
    socket: &mut Socket,
    index: u32,
    ipv6: Ipv6,
    with: impl FnOnce(&mut Batch),
) -> io::Result<()> {
    const NO_ADDRESS: u8 = 1;
    let inet6 = rustix::net::AddressFamily::INET6.as_raw();
    let mut batch = Batch::default();
    batch.message(SETLINK, ACK, &link_header(index, UP), |batch| {
        if ipv6 == Ipv6::Available {
            batch.nested(IFLA_AF_SPEC, &[], |batch| {
                batch.nested(inet6, &[], |batch| {
                    batch.attribute(ADDR_GEN_MODE, &[NO_ADDRESS]);
                });
            });
        }
    });
    with(&mut batch);
    socket.request(&batch).map(drop)
}

/// Creates the instance's gateway pair, if it does not exist, and sets it up.
pub(super) fn set_up_gateway(
    socket: &mut Socket,
    names: &LinkNames,
    gateway: Ipv4Addr,
    ipv6: Ipv6,
) -> io::Result<()> {
    let [gate, wall] = names.gateway_pair();
    let index = match find(socket, &gate) {
        Ok(found) => found.index,
        Err(error) if is_gone(&error) => {
            create(socket, names, &gate, gateway, PeerEnd::Host(&wall))?
        }
        Err(error) => return Err(error),
    };
    set_up_addressed_end(socket, index, gateway, gateway, ipv6)
}

/// Sets up the host's end with a route to the sandbox and the gateway as source address.
pub(super) fn set_up_host_end(
    socket: &mut Socket,
    index: u32,
    gateway: Ipv4Addr,
    sandbox: Ipv4Addr,
    ipv6: Ipv6,
) -> io::Result<()> {
    bring_up(socket, index, ipv6, |batch| {
        add_route(batch, index, gateway, sandbox);
    })
}

fn add_route(batch: &mut Batch, index: u32, gateway: Ipv4Addr, sandbox: Ipv4Addr) {
    const LINK: u8 = 253;
    let fixed = route_header(32, LINK);
    batch.message(NEWROUTE, ACK | REPLACE, &fixed, |batch| {
        batch.attribute(RTA_DST, &sandbox.octets());
        batch.attribute(RTA_OIF, &index.to_ne_bytes());
        batch.attribute(RTA_PREFSRC, &gateway.octets());
    });
}

/// An `rtmsg`.
fn route_header(length: u8, scope: u8) -> [u8; 12] {
    const MAIN: u8 = 254;
    const STATIC: u8 = 4;
    const UNICAST: u8 = 1;
    let family = rustix::net::AddressFamily::INET.as_raw() as u8;
    [
        family, length, 0, 0, MAIN, STATIC, scope, UNICAST, 0, 0, 0, 0,
    ]
}

/// Sets up the host's end with an address.
pub(super) fn set_up_addressed_end(
    socket: &mut Socket,
    index: u32,
    gateway: Ipv4Addr,
    sandbox: Ipv4Addr,
    ipv6: Ipv6,
) -> io::Result<()> {
    bring_up(socket, index, ipv6, |batch| {
        add_address(batch, index, gateway, sandbox);
    })
}

/// Sets up the end in the sandbox, with the default route.
pub(super) fn set_up_sandbox_end(
    socket: &mut Socket,
    gateway: Ipv4Addr,
    sandbox: Ipv4Addr,
    ipv6: Ipv6,
) -> io::Result<()> {
    const ANYWHERE: u8 = 0;
    let index = find(socket, SANDBOX_INTERFACE)?.index;
    bring_up(socket, index, ipv6, |batch| {
        add_address(batch, index, sandbox, gateway);
        batch.message(
            NEWROUTE,
            ACK | CREATE,
            &route_header(0, ANYWHERE),
            |batch| {
                batch.attribute(RTA_GATEWAY, &gateway.octets());
                batch.attribute(RTA_OIF, &index.to_ne_bytes());
            },
        );
    })
}

/// Waits until the host's end is up. When the peer comes up, the kernel updates `operstate` later
/// and drops packets until then, so that a first reply would be lost.
pub(super) fn wait_oper_up(socket: &mut Socket, name: &str) -> io::Result<()> {
    let (mut pause, begin) = (Duration::from_micros(50), Instant::now());
    while !find(socket, name)?.oper_up {
        if begin.elapsed() > Duration::from_secs(5) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    Ok(())
}

/// Administrative state for [`set_state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Also adds the route, which the kernel removes when a link goes down.
    Up {
        gateway: Ipv4Addr,
    },
    Down,
}

/// Sets links up or down.
pub(super) fn set_state(socket: &mut Socket, links: &[HostLink], to: LinkState) -> io::Result<()> {
    let flags = if to == LinkState::Down { 0 } else { UP };
    for link in links {
        let mut batch = Batch::default();
        batch.message(
            SETLINK,
            ACK,
            &link_header_with_mask(link.index, flags, UP),
            |_| {},
        );
        if let LinkState::Up { gateway } = to {
            add_route(&mut batch, link.index, gateway, link.sandbox);
        }
        match socket.request(&batch) {
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Deletes existing links by group: one by one, each would take about 25 ms.
pub(super) fn delete(socket: &mut Socket, names: &LinkNames, links: &[HostLink]) -> io::Result<()> {
    let mut moved = 0;
    for link in links {
        let mut batch = Batch::default();
        batch.message(SETLINK, ACK, &link_header(link.index, 0), |batch| {
            batch.attribute(IFLA_GROUP, &names.removal_group().to_ne_bytes());
        });
        match socket.request(&batch) {
            Ok(_) => moved += 1,
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if moved == 0 {
        return Ok(());
    }
    let mut batch = Batch::default();
    batch.message(DELLINK, ACK, &link_header(0, 0), |batch| {
        batch.attribute(IFLA_GROUP, &names.removal_group().to_ne_bytes());
    });
    match socket.request(&batch) {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the error means that the link was removed, for example with its namespace.
pub(super) fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NODEV, Errno::NXIO, Errno::NOENT]
        .contains(&Errno::from_io_error(error).unwrap_or(Errno::IO))
        || error.kind() == io::ErrorKind::NotFound
}
