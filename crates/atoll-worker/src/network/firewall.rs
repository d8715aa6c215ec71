//! Packet filter of an instance: one nftables table, installed by `nft`. Later changes go through
//! netlink, which takes a fraction of a millisecond.
//!
//! A sandbox without a policy needs no element in the table: the routes (`fib`) verify that a
//! packet's source is the address of its link, and links are matched by the prefix of their names.
//! A sandbox with a policy has two chains and two sets. Policies are evaluated for every packet in
//! both directions, not for each connection, so that a change cuts established connections that it
//! forbids.

pub(super) mod inventory;
mod policy;
mod transaction;

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use atoll_model::{BLOCKED_RANGES, Code, EgressException, Error};

pub(super) use self::policy::Compiled;
use self::transaction::Transaction;
pub(super) use self::transaction::is_table_deletion;
use super::netlink::{NETFILTER, Socket};
use crate::error::internal;

/// Prefix of all instances' tables.
const PREFIX: &str = "atoll_";

/// Name of an instance's table.
pub(super) fn table(tag: &str) -> String {
    format!("{PREFIX}{tag}")
}

/// Whether a new table lets packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialState {
    /// From the beginning.
    Open,
    /// Not before [`unblock`].
    Blocked,
}

/// Parameters of an instance's rules, besides its tag.
#[derive(Debug)]
pub(super) struct RulesetConfig {
    pub(super) gateway: Ipv4Addr,
    /// Tracked connections of one sandbox.
    pub(super) connections: u32,
    /// Blocked addresses that the operator opened.
    pub(super) exceptions: Arc<[EgressException]>,
}

/// The rule that exempts a destination from the blocked ranges.
fn exception_rule(exception: &EgressException) -> String {
    let block = exception.cidr();
    let ports = exception.ports().iter();
    let ports: Vec<String> = ports
        .map(|(first, last)| format!("{first}-{last}"))
        .collect();
    if ports.is_empty() {
        return format!("ip daddr {block} return");
    }
    let ports = ports.join(", ");
    format!("ip daddr {block} meta l4proto {{ tcp, udp }} th dport {{ {ports} }} return")
}

/// The table as input for `nft`.
pub(super) fn ruleset(tag: &str, config: &RulesetConfig, state: InitialState) -> String {
    let exceptions: Vec<String> = config.exceptions.iter().map(exception_rule).collect();
    let refused: Vec<String> = BLOCKED_RANGES
        .iter()
        .map(|(block, _)| block.to_string())
        .collect();
    include_str!("firewall/rules.nft")
        .replace("TABLE", &table(tag))
        .replace(
            "SHUT",
            if state == InitialState::Blocked {
                "drop"
            } else {
                ""
            },
        )
        .replace("LINKS", &format!("\"atl-{tag}-*\""))
        .replace("GATEWAY", &config.gateway.to_string())
        .replace("EXCEPTIONS", &exceptions.join("\n\t\t"))
        .replace("REFUSED", &refused.join(", "))
        .replace("CONNECTIONS", &config.connections.to_string())
}

/// Installs the table, replacing an existing one atomically.
pub(super) fn install(tag: &str, config: &RulesetConfig, state: InitialState) -> Result<(), Error> {
    nft(&ruleset(tag, config, state))
}

/// Runs `nft` on a script; all or nothing.
pub(super) fn nft(text: &str) -> Result<(), Error> {
    let start = |program: &str| {
        Command::new(program)
            .args(["-f", "-"])
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
    };
    // Debian's path, which is not in every PATH.
    let child = start("/usr/sbin/nft").or_else(|_| start("nft"));
    let mut child = child.map_err(|error| {
        Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide the network internet: nft does not start: {error}"),
        )
        .remedy("install the package nftables")
        .detail("feature", "network internet")
    })?;
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(text.as_bytes()),
        None => Ok(()),
    };
    let output = child.wait_with_output();
    let output = output.map_err(|error| internal("wait for nft", &error))?;
    if !output.status.success() || written.is_err() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message
            .lines()
            .next()
            .unwrap_or("no error message")
            .to_owned();
        return Err(Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide the network internet: nft rejected the rules: {message}"),
        )
        .remedy("a kernel with nftables, conntrack, fib, reject and masquerade is needed (5.10 or newer)")
        .detail("feature", "network internet"));
    }
    Ok(())
}

/// Opens an nftables netlink socket in the network namespace of this thread.
pub(super) fn open() -> io::Result<Socket> {
    Socket::open(NETFILTER)
}

/// Replaces a sandbox's policy; all or nothing.
pub(super) fn replace_policy(
    socket: &mut Socket,
    tag: &str,
    sandbox: Ipv4Addr,
    old: &Compiled,
    new: &Compiled,
) -> io::Result<()> {
    let mut transaction = Transaction::new(&table(tag));
    transaction.replace(sandbox, old, new);
    transaction.commit(socket)
}

/// Adds policies to a table that has none. In batches of 32, because a message has a maximum size.
pub(super) fn restore_policies<'a>(
    socket: &mut Socket,
    tag: &str,
    sandboxes: impl Iterator<Item = (Ipv4Addr, &'a Compiled)>,
) -> io::Result<()> {
    let all: Vec<_> = sandboxes.collect();
    for some in all.chunks(32) {
        let mut transaction = Transaction::new(&table(tag));
        for (sandbox, policy) in some {
            transaction.replace(*sandbox, &Compiled::default(), policy);
        }
        transaction.commit(socket)?;
    }
    Ok(())
}

/// Lets packets pass a table that was installed as [`InitialState::Blocked`].
pub(super) fn unblock(socket: &mut Socket, tag: &str) -> io::Result<()> {
    let mut transaction = Transaction::new(&table(tag));
    transaction.flush_chain("shut");
    transaction.commit(socket)
}

/// Removes policies of sandboxes; all or none.
pub(super) fn remove_policies<'a>(
    socket: &mut Socket,
    tag: &str,
    sandboxes: impl Iterator<Item = (Ipv4Addr, &'a Compiled)>,
) -> io::Result<()> {
    let mut transaction = Transaction::new(&table(tag));
    for (sandbox, policy) in sandboxes {
        transaction.replace(sandbox, policy, &Compiled::default());
    }
    transaction.commit(socket)
}

/// Whether the table exists.
pub(super) fn exists(socket: &mut Socket, tag: &str) -> io::Result<bool> {
    match socket.request(&transaction::get_table(&table(tag))) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Deletes the table if it exists.
pub(super) fn remove(socket: &mut Socket, tag: &str) -> io::Result<()> {
    let mut transaction = Transaction::new(&table(tag));
    transaction.delete_table();
    match transaction.commit(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
