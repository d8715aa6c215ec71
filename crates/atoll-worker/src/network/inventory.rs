//! Lists links and rules of all instances in the network namespace of this thread, dead instances
//! included.
//!
//! Locks on address blocks end with the processes that hold them; rules and links stay until they
//! are removed, and an instance's rules drop packets of other instances to its gateway. So the
//! kernel is checked before a block is used.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use atoll_model::Error;

use super::firewall::{self, inventory};
use super::netlink::{ROUTE, Socket};
use super::{PROTONOSUPPORT, veth};
use crate::error::internal;

/// Whether rules or links of another instance use an address of a block.
pub(super) fn is_in_use(tag: &str, block: &RangeInclusive<Ipv4Addr>) -> Result<bool, Error> {
    let links = links()?;
    if links
        .iter()
        .any(|(owner, address)| owner != tag && block.contains(address))
    {
        return Ok(true);
    }
    let Some((mut socket, tags)) = tables()? else {
        return Ok(false);
    };
    for owner in tags.iter().filter(|owner| *owner != tag) {
        let named = inventory::addresses(&mut socket, owner)
            .map_err(|error| internal("read an instance's rules", &error))?;
        if named.iter().any(|address| block.contains(address)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tags of all instances with rules or links.
pub(crate) fn tags() -> Result<BTreeSet<String>, Error> {
    let mut tags: BTreeSet<String> = links()?.into_iter().map(|(tag, _)| tag).collect();
    tags.extend(tables()?.into_iter().flat_map(|(_, tags)| tags));
    Ok(tags)
}

fn links() -> Result<Vec<(String, Ipv4Addr)>, Error> {
    Socket::open(ROUTE)
        .and_then(|mut socket| veth::list_owners(&mut socket))
        .map_err(|error| internal("list the links of instances", &error))
}

/// Tags of the instances with a table, and the socket for further requests; `None` if the kernel
/// has no nftables.
fn tables() -> Result<Option<(Socket, Vec<String>)>, Error> {
    let result = firewall::open().and_then(|mut socket| {
        let tags = inventory::tags(&mut socket)?;
        Ok((socket, tags))
    });
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_unsupported(&error) => Ok(None),
        Err(error) => Err(internal("list the tables of instances", &error)),
    }
}

/// Whether the kernel lacks nftables.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(PROTONOSUPPORT)
}
