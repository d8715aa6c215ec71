//! Background removal of links, in batches: deleting one link takes the kernel as long as deleting
//! dozens.
//!
//! Most links are already gone when their turn comes, because they were removed with their
//! sandbox's namespace. An address is released when its link, its nftables elements and its
//! conntrack entries are gone.

use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::addresses::Addresses;
use super::conntrack;
use super::firewall::{self, Compiled};
use super::netlink::{ROUTE, Socket};
use super::veth::{self, LinkNames};
use crate::sync::lock;

/// Delay in which further links join a batch.
const BATCH_DELAY: Duration = Duration::from_millis(20);

/// A link to remove.
#[derive(Debug)]
pub(super) struct RemovedLink {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) policy: Compiled,
}

/// Handle of the reaper thread.
#[derive(Debug)]
pub(super) struct LinkReaper {
    queue: Mutex<Option<Sender<RemovedLink>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LinkReaper {
    /// Starts the thread in the network namespace of the calling thread.
    pub(super) fn start(tag: &str, addresses: Arc<Addresses>) -> io::Result<Self> {
        let worker = Worker {
            tag: tag.to_owned(),
            names: LinkNames::new(tag),
            links: Socket::open(ROUTE)?,
            rules: firewall::open()?,
            addresses,
        };
        let (queue, leaving) = channel();
        let thread = std::thread::Builder::new()
            .name("atoll-reaper".into())
            .stack_size(256 << 10)
            .spawn(move || worker.run(&leaving))?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Queues a link for removal.
    pub(super) fn remove(&self, link: RemovedLink) {
        let queue = lock(&self.queue);
        if let Some(queue) = &*queue {
            // After [`Self::finish`] everything is removed by the instance's end.
            let _ = queue.send(link);
        }
    }

    /// Removes all queued links and ends the thread.
    pub(super) fn finish(&self) {
        let queue = lock(&self.queue).take();
        drop(queue);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// State of the reaper thread.
struct Worker {
    tag: String,
    names: LinkNames,
    links: Socket,
    rules: Socket,
    addresses: Arc<Addresses>,
}

impl Worker {
    fn run(mut self, leaving: &Receiver<RemovedLink>) {
        while let Ok(first) = leaving.recv() {
            std::thread::sleep(BATCH_DELAY);
            let mut batch = vec![first];
            batch.extend(leaving.try_iter());
            self.remove_all(&batch);
        }
    }

    fn remove_all(&mut self, links: &[RemovedLink]) {
        let found = links
            .iter()
            .map(|link| veth::find(&mut self.links, &link.name));
        let found: Vec<_> = found.collect();
        // Of a link that is already gone it is unknown whether it was used.
        let used: Vec<bool> = found
            .iter()
            .map(|f| f.as_ref().map_or(true, |f| f.has_sent))
            .collect();
        let existing: Vec<_> = found.into_iter().flatten().collect();
        if veth::delete(&mut self.links, &self.names, &existing).is_err() {
            // Their addresses stay allocated until the instance ends and removes the links.
            return;
        }
        let policies = links.iter().map(|link| (link.address, &link.policy));
        if firewall::remove_policies(&mut self.rules, &self.tag, policies.clone()).is_err() {
            // A missing element fails the whole batch: remove one by one.
            for policy in policies {
                let _ =
                    firewall::remove_policies(&mut self.rules, &self.tag, std::iter::once(policy));
            }
        }
        for (link, used) in links.iter().zip(used) {
            if used {
                // Older kernels lack the filter; the entries then expire.
                let _ = conntrack::delete_flows(&mut self.rules, link.address);
            }
            self.addresses.release(link.address);
        }
    }
}
