//! The rules: one table of our own, written once by `nft`; whatever changes later is message by netlink,
//! a fraction of a millisecond each time.
//!
//! A sandbox without a policy of its own needs nothing in the table: that a packet's source is the
//! address of the link it came through is asked of the routes, and links are known by the prefix of
//! their names. One with a policy has two chains and two sets there. Policies are asked about every
//! packet in both directions, not about connections: a change cuts what it forbids, however long it
//! was established.

pub(super) mod inventory;
mod policy;
mod transaction;

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use atoll_model::{Code, EgressException, Error, REFUSED};

pub(super) use self::policy::Compiled;
use self::transaction::Transaction;
pub(super) use self::transaction::is_table_deletion;
use super::netlink::{NETFILTER, Socket};
use crate::error::internal;

/// How the names of all instances' tables begin.
const PREFIX: &str = "atoll_";

/// What an instance's table is called.
pub(super) fn table(tag: &str) -> String {
    format!("{PREFIX}{tag}")
}

/// Whether a new table lets anything pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialState {
    /// At once.
    Open,
    /// Not before [`unblock`].
    Blocked,
}

/// What the rules of an instance depend on, besides its tag.
#[derive(Debug)]
pub(super) struct RulesetConfig {
    pub(super) gateway: Ipv4Addr,
    /// Connections of one sandbox at once.
    pub(super) connections: u32,
    /// Refused addresses that the operator opened.
    pub(super) exceptions: Arc<[EgressException]>,
}

/// A rule that ends the judgement of a refused destination.
fn exception_rule(exception: &EgressException) -> String {
    let block = exception.block();
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

/// The whole table as text.
pub(super) fn ruleset(tag: &str, config: &RulesetConfig, state: InitialState) -> String {
    let exceptions: Vec<String> = config.exceptions.iter().map(exception_rule).collect();
    let refused: Vec<String> = REFUSED.iter().map(|(block, _)| block.to_string()).collect();
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

/// Makes the table. What was there of it makes way at the same moment.
pub(super) fn install(tag: &str, config: &RulesetConfig, state: InitialState) -> Result<(), Error> {
    nft(&ruleset(tag, config, state))
}

/// Has `nft` carry something out, all or nothing.
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
            format!("this host cannot provide the network internet: nft refused our rules: {message}"),
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

/// Puts another policy in the place of a sandbox's present one, all or nothing.
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

/// Gives sandboxes their policies in a table that has none yet, some dozens at a time: more may not
/// fit into one message.
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

/// Lets packets pass a table that was made [`InitialState::Blocked`].
pub(super) fn unblock(socket: &mut Socket, tag: &str) -> io::Result<()> {
    let mut transaction = Transaction::new(&table(tag));
    transaction.flush_chain("shut");
    transaction.commit(socket)
}

/// Takes policies of sandboxes away, all or none.
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

/// Whether the table is there.
pub(super) fn exists(socket: &mut Socket, tag: &str) -> io::Result<bool> {
    match socket.request(&transaction::get_table(&table(tag))) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the table away, if it is there.
pub(super) fn remove(socket: &mut Socket, tag: &str) -> io::Result<()> {
    let mut transaction = Transaction::new(&table(tag));
    transaction.delete_table();
    match transaction.commit(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
