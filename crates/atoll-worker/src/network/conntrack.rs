//! Removal of conntrack entries of released addresses. Entries of a dead sandbox would be kept for
//! days, count against the next sandbox with its address, and let replies through to it.

use std::io;
use std::net::Ipv4Addr;

use super::netlink::{ACK, Batch, Socket};

const CONNTRACK: u16 = 1;
const DELETE_FLOW: u16 = CONNTRACK << 8 | 2;
const TUPLE_ORIG: u16 = 1;
const TUPLE_IP: u16 = 1;
const IP_V4_SRC: u16 = 1;
const FILTER: u16 = 25;
const FILTER_ORIG_FLAGS: u16 = 1;
/// Match by source address alone.
const MATCH_SOURCE_ADDRESS: u32 = 1;

/// Deletes all entries with this original source address.
pub(super) fn delete_flows(socket: &mut Socket, address: Ipv4Addr) -> io::Result<()> {
    let inet = rustix::net::AddressFamily::INET.as_raw() as u8;
    let mut batch = Batch::default();
    batch.message(DELETE_FLOW, ACK, &[inet, 0, 0, 0], |batch| {
        batch.nested(TUPLE_ORIG, &[], |batch| {
            batch.nested(TUPLE_IP, &[], |batch| {
                batch.attribute(IP_V4_SRC, &address.octets());
            });
        });
        batch.nested(FILTER, &[], |batch| {
            batch.attribute(FILTER_ORIG_FLAGS, &MATCH_SOURCE_ADDRESS.to_ne_bytes());
        });
    });
    match socket.request(&batch) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map(drop),
    }
}
