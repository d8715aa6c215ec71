//! The rules: one table of our own, written once by `nft`; then only elements of its sets change,
//! by netlink, a fraction of a millisecond each.
//!
//! A sandbox without a policy of its own needs no element: that a packet's source is the address
//! of the link it came through is asked of the routes, and links are known by the prefix of their
//! names. Policies are asked about every packet in both directions, not about connections: a change
//! cuts what it forbids, however long it was established.

mod policy;

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use atoll_model::{Code, Error, REFUSED};

pub(super) use self::policy::{Element, elements};
use super::netlink::{ACK, Batch, NETFILTER, Socket};
use crate::error::internal;

/// The protocol family of a table that sees IPv4 and IPv6.
const INET: u8 = 1;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFTABLES: u16 = 10;
const DELTABLE: u16 = NFTABLES << 8 | 2;
const NEWSETELEM: u16 = NFTABLES << 8 | 12;
const DELSETELEM: u16 = NFTABLES << 8 | 14;

const TABLE_NAME: u16 = 1;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_KEY_END: u16 = 10;
const VALUE: u16 = 1;

/// What an instance's table is called.
pub(super) fn table(tag: &str) -> String {
    format!("atoll_{tag}")
}

/// The whole table as text.
pub(super) fn ruleset(tag: &str, gateway: Ipv4Addr, connections: u32) -> String {
    let refused: Vec<String> = REFUSED.iter().map(|(block, _)| block.to_string()).collect();
    include_str!("firewall/rules.nft")
        .replace("TABLE", &table(tag))
        .replace("LINKS", &format!("\"atl-{tag}-*\""))
        .replace("GATEWAY", &gateway.to_string())
        .replace("REFUSED", &refused.join(", "))
        .replace("CONNECTIONS", &connections.to_string())
}

/// Makes the table.
pub(super) fn install(tag: &str, gateway: Ipv4Addr, connections: u32) -> Result<(), Error> {
    let start = |program: &str| {
        Command::new(program)
            .args(["-f", "-"])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    };
    // Where Debian has it, which is not on everybody's PATH.
    let child = start("/usr/sbin/nft").or_else(|_| start("nft"));
    let mut child = child.map_err(|error| {
        Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide the network internet: nft does not start: {error}"),
        )
        .remedy("install the package nftables")
        .detail("feature", "network internet")
    })?;
    let text = ruleset(tag, gateway, connections);
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    let output = child.wait_with_output();
    let output = output.map_err(|error| internal("wait for nft", &error))?;
    if !output.status.success() || written.is_err() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("it said nothing").to_owned();
        return Err(Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide the network internet: nft refused our rules: {said}"),
        )
        .remedy("a kernel with nftables, conntrack, fib, reject and masquerade is needed (5.10 or newer)")
        .detail("feature", "network internet"));
    }
    Ok(())
}

/// Opens the conversation about elements, in the network namespace of this thread.
pub(super) fn open() -> io::Result<Socket> {
    Socket::open(NETFILTER)
}

/// The fixed part of every message.
fn about(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

fn transaction(inside: impl FnOnce(&mut Batch)) -> Batch {
    let mut batch = Batch::default();
    batch.message(BATCH_BEGIN, 0, &about(0, NFTABLES), |_| {});
    inside(&mut batch);
    batch.message(BATCH_END, 0, &about(0, NFTABLES), |_| {});
    batch
}

/// Takes some elements away and adds others, all or nothing.
pub(super) fn change(
    socket: &mut Socket,
    tag: &str,
    old: &[Element],
    new: &[Element],
) -> io::Result<()> {
    let gone: Vec<&Element> = old.iter().filter(|one| !new.contains(one)).collect();
    let come: Vec<&Element> = new.iter().filter(|one| !old.contains(one)).collect();
    if gone.is_empty() && come.is_empty() {
        return Ok(());
    }
    let table = table(tag);
    let batch = transaction(|batch| {
        for (kind, elements) in [(DELSETELEM, gone), (NEWSETELEM, come)] {
            // Lists have a 16-bit length.
            for elements in elements
                .chunk_by(|a, b| a.set == b.set)
                .flat_map(|same| same.chunks(256))
            {
                write(batch, kind, &table, elements);
            }
        }
    });
    socket.ask(&batch).map(drop)
}

fn write(batch: &mut Batch, kind: u16, table: &str, elements: &[&Element]) {
    const CREATE: u16 = 0x400;
    let flags = if kind == NEWSETELEM {
        ACK | CREATE
    } else {
        ACK
    };
    batch.message(kind, flags, &about(INET, 0), |batch| {
        batch.text(LIST_TABLE, table);
        batch.text(LIST_SET, elements[0].set.name());
        batch.nested(LIST_ELEMENTS, &[], |batch| {
            for element in elements {
                batch.nested(ELEMENT, &[], |batch| {
                    let (first, last) = element.bounds();
                    batch.nested(ELEMENT_KEY, &[], |batch| batch.attribute(VALUE, &first));
                    batch.nested(ELEMENT_KEY_END, &[], |batch| batch.attribute(VALUE, &last));
                });
            }
        });
    });
}

/// Takes the table away, if it is there.
pub(super) fn remove(socket: &mut Socket, tag: &str) -> io::Result<()> {
    let batch = transaction(|batch| {
        batch.message(DELTABLE, ACK, &about(INET, 0), |batch| {
            batch.text(TABLE_NAME, &table(tag));
        });
    });
    match socket.ask(&batch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
