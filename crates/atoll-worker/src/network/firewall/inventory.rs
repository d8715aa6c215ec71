//! Reads instances' tables back from the kernel.

use std::io;
use std::net::Ipv4Addr;

use atoll_model::SANDBOX_RANGE;

use super::transaction::{
    GETTABLE, INET, ITEM, RULE_CHAIN, RULE_EXPRESSIONS, TABLE, VALUE, header, message_type,
};
use super::{PREFIX, table};
use crate::network::netlink::{Batch, DUMP, Socket, attributes};

const GETRULE: u16 = message_type(7);
/// Length of `nfgenmsg`.
const FIXED: usize = 4;

/// Tags of all instances with a table in the network namespace of the socket.
pub(in crate::network) fn tags(socket: &mut Socket) -> io::Result<Vec<String>> {
    let mut batch = Batch::default();
    batch.message(GETTABLE, DUMP, &header(INET, 0), |_| {});
    let replies = socket.request(&batch)?;
    let names = replies
        .iter()
        .filter_map(|reply| text_attribute(reply.body.get(FIXED..)?, TABLE));
    Ok(names
        .filter_map(|name| name.strip_prefix(PREFIX).map(str::to_owned))
        .collect())
}

/// Sandbox and gateway addresses in the rules of an instance's table.
pub(in crate::network) fn addresses(socket: &mut Socket, tag: &str) -> io::Result<Vec<Ipv4Addr>> {
    let mut batch = Batch::default();
    batch.message(GETRULE, DUMP, &header(INET, 0), |batch| {
        batch.text(TABLE, &table(tag));
    });
    let replies = socket.request(&batch)?;
    let mut found = Vec::new();
    for rule in replies.iter().filter_map(|reply| reply.body.get(FIXED..)) {
        found.extend(text_attribute(rule, RULE_CHAIN).and_then(|chain| chain_owner(&chain)));
        found.extend(compared_addresses(rule));
    }
    Ok(found)
}

/// The address of a sandbox's chain: `out_9` and `in_9` belong to the address with index 9.
fn chain_owner(chain: &str) -> Option<Ipv4Addr> {
    let number = chain
        .strip_prefix("out_")
        .or_else(|| chain.strip_prefix("in_"))?;
    let number: u32 = number.parse().ok()?;
    let first = SANDBOX_RANGE.first().to_bits();
    Some(Ipv4Addr::from_bits(first.checked_add(number)?))
}

/// The sandbox addresses that a rule compares with.
fn compared_addresses(rule: &[u8]) -> impl Iterator<Item = Ipv4Addr> {
    const DATA: u16 = 2;
    const COMPARED: u16 = 3;
    let path = [RULE_EXPRESSIONS, ITEM, DATA, COMPARED, VALUE];
    let values = path.iter().fold(vec![rule], |found, kind| {
        let inside = found.into_iter().flat_map(attributes);
        let wanted = inside.filter(|(found, _)| found == kind);
        wanted.map(|(_, value)| value).collect()
    });
    let addresses = values
        .into_iter()
        .filter_map(|value| <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from));
    addresses.filter(|address| SANDBOX_RANGE.contains(*address))
}

/// The value of a string attribute.
fn text_attribute(bytes: &[u8], wanted: u16) -> Option<String> {
    let (_, value) = attributes(bytes).find(|(kind, _)| *kind == wanted)?;
    let value = value.strip_suffix(b"\0").unwrap_or(value);
    Some(String::from_utf8_lossy(value).into_owned())
}
