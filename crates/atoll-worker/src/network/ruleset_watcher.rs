//! Restores the instance's nftables table after another program deleted it. A firewall reload often
//! begins with `flush ruleset`, and without the table sandboxes would reach the host.
//!
//! The kernel notifies of every deleted table. Links are down until the rules are restored.

use std::io;
use std::sync::{Arc, Weak};

use super::active::ActiveNetwork;
use super::firewall;
use super::netlink::{NETFILTER, Socket};

/// Multicast group mask for nftables changes.
const NFNLGRP_NFTABLES: u32 = 1 << 6;

/// Starts the watcher thread in the network namespace of this thread. It ends when the network is
/// closed, which deletes the table, or dropped.
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
        // On an overflow or a timeout check the table itself.
        let check = events.receive().map_or(true, |events_received| {
            events_received.iter().any(firewall::is_table_deletion)
        });
        let Some(network) = network.upgrade().filter(|network| !network.is_closed()) else {
            return;
        };
        if check && let Ok(false) = firewall::exists(&mut queries, &network.tag) {
            // If this fails the links stay down, and it is retried after the timeout.
            let _ = network.restore();
        }
    }
}
