//! Puts the rules back if somebody takes them away: reloading a firewall often begins with deleting
//! every table of the host, and without ours sandboxes would reach the host.
//!
//! The kernel tells about every deletion of a table. Links are shut until the rules are back.

use std::io;
use std::sync::{Arc, Weak};

use super::active::ActiveNetwork;
use super::firewall;
use super::netlink::{NETFILTER, Socket};

/// The group that hears about changes of tables.
const NFNLGRP_NFTABLES: u32 = 1 << 6;

/// Starts the guard of a network, in the network namespace of this thread. It ends when the network
/// is closed, which deletes the table, or dropped.
pub(super) fn start(network: &Arc<ActiveNetwork>) -> io::Result<()> {
    let events = Socket::listen(NETFILTER, NFNLGRP_NFTABLES)?;
    let queries = firewall::open()?;
    let network = Arc::downgrade(network);
    std::thread::Builder::new()
        .name("atoll-nftables".into())
        .stack_size(256 << 10)
        .spawn(move || watch(&network, events, queries))
        .map(drop)
}

fn watch(network: &Weak<ActiveNetwork>, mut events: Socket, mut queries: Socket) {
    loop {
        // Too much at once, or nothing for a while: look oneself.
        let check = events.receive().map_or(true, |events_received| {
            events_received.iter().any(firewall::is_table_deletion)
        });
        let Some(network) = network.upgrade().filter(|network| !network.is_closed()) else {
            return;
        };
        if check && let Ok(false) = firewall::exists(&mut queries, &network.tag) {
            // Where this fails the links stay shut, and it is tried again after a while.
            let _ = network.restore();
        }
    }
}
