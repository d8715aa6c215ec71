//! Takes links away, many at a time and on nobody's way: deleting one takes the kernel as long as
//! deleting dozens.
//!
//! Most links are gone already when their turn comes, because their sandbox's namespace took them
//! along. An address is given back when its link, its elements and its flows are gone.

use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::addresses::Addresses;
use super::conntrack;
use super::firewall::{self, Compiled};
use super::netlink::{ROUTE, Socket};
use super::veth::{self, Family};

/// How long others may come along before the work is done.
const GATHERING: Duration = Duration::from_millis(20);

/// A link that nobody needs any more.
#[derive(Debug)]
pub(super) struct RemovedLink {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    pub(super) policy: Compiled,
}

/// The thread that does it.
#[derive(Debug)]
pub(super) struct LinkReaper {
    queue: Mutex<Option<Sender<RemovedLink>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LinkReaper {
    /// Starts the thread in the network namespace of this one.
    pub(super) fn start(tag: &str, addresses: Arc<Addresses>) -> io::Result<Self> {
        let work = Work {
            tag: tag.to_owned(),
            family: Family::of(tag),
            links: Socket::open(ROUTE)?,
            rules: firewall::open()?,
            addresses,
        };
        let (queue, leaving) = channel();
        let thread = std::thread::Builder::new()
            .name("atoll-janitor".into())
            .stack_size(256 << 10)
            .spawn(move || work.run(&leaving))?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Takes a link away some time soon.
    pub(super) fn take(&self, leaving: RemovedLink) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = &*queue {
            // Without a janitor everything was taken away already.
            let _ = queue.send(leaving);
        }
    }

    /// Waits until everything that was handed over is gone, and ends.
    pub(super) fn finish(&self) {
        let queue = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(queue);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Work {
    tag: String,
    family: Family,
    links: Socket,
    rules: Socket,
    addresses: Arc<Addresses>,
}

impl Work {
    fn run(mut self, leaving: &Receiver<RemovedLink>) {
        while let Ok(first) = leaving.recv() {
            std::thread::sleep(GATHERING);
            let mut some = vec![first];
            some.extend(leaving.try_iter());
            self.remove(&some);
        }
    }

    fn remove(&mut self, leaving: &[RemovedLink]) {
        let found = leaving
            .iter()
            .map(|leaving| veth::find(&mut self.links, &leaving.name));
        let found: Vec<_> = found.collect();
        // One that went with its namespace cannot say any more whether it was used.
        let used: Vec<bool> = found
            .iter()
            .map(|f| f.as_ref().map_or(true, |f| f.used))
            .collect();
        let there: Vec<_> = found.into_iter().flatten().collect();
        if veth::delete(&mut self.links, &self.family, &there).is_err() {
            // Their addresses are lost to this instance; the links go with it.
            return;
        }
        let policies = leaving.iter().map(|one| (one.address, &one.policy));
        if firewall::forget(&mut self.rules, &self.tag, policies.clone()).is_err() {
            // One that is not there spoils it for all.
            for policy in policies {
                let _ = firewall::forget(&mut self.rules, &self.tag, std::iter::once(policy));
            }
        }
        for (leaving, used) in leaving.iter().zip(used) {
            if used {
                // Older kernels cannot: then flows end by their own clocks.
                let _ = conntrack::delete_flows(&mut self.rules, leaving.address);
            }
            self.addresses.give_back(leaving.address);
        }
    }
}
