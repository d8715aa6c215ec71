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
const CHANGES: u32 = 1 << 6;

/// Starts the guard of a network, in the network namespace of this thread. It ends when the network
/// is closed, which deletes the table, or dropped.
pub(super) fn start(ready: &Arc<ActiveNetwork>) -> io::Result<()> {
    let events = Socket::listen(NETFILTER, CHANGES)?;
    let questions = firewall::open()?;
    let ready = Arc::downgrade(ready);
    std::thread::Builder::new()
        .name("atoll-guard".into())
        .stack_size(256 << 10)
        .spawn(move || watch(&ready, events, questions))
        .map(drop)
}

fn watch(ready: &Weak<ActiveNetwork>, mut events: Socket, mut questions: Socket) {
    loop {
        // Too much at once, or nothing for a while: look oneself.
        let look = events
            .hear()
            .map_or(true, |heard| heard.iter().any(firewall::is_deletion));
        let Some(ready) = ready.upgrade().filter(|ready| !ready.is_closed()) else {
            return;
        };
        if look && let Ok(false) = firewall::exists(&mut questions, &ready.tag) {
            // Where this fails the links stay shut, and it is tried again after a while.
            let _ = ready.restore();
        }
    }
}
