//! An instance's network from its first sandbox to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error};

use super::addresses::{self, Addresses};
use super::dns::{self, Forwarder, PORT};
use super::firewall::{self, Begin, Compiled, Terms};
use super::link_reaper::LinkReaper;
use super::netlink::{ROUTE, Socket};
use super::veth::{self, Family, Ipv6};
use super::{Config, inventory, lock, remove_leftovers, ruleset_watcher};
use crate::error::internal;

/// The policy of a link; nothing once the link was given up. A change that comes late must not
/// concern the next sandbox with the same address.
pub(super) type LinkPolicy = Arc<Mutex<Option<Compiled>>>;

/// An instance's network that was set up.
#[derive(Debug)]
pub(super) struct ActiveNetwork {
    pub(super) tag: String,
    pub(super) family: Family,
    pub(super) ipv6: Ipv6,
    pub(super) addresses: Arc<Addresses>,
    pub(super) links: Mutex<Socket>,
    pub(super) rules: Mutex<Socket>,
    pub(super) janitor: LinkReaper,
    /// What sandboxes that are linked have to obey.
    pub(super) live: Mutex<BTreeMap<Ipv4Addr, LinkPolicy>>,
    terms: Terms,
    forwarder: Mutex<Option<Forwarder>>,
    phase: RwLock<Phase>,
}

/// Whether the rules are in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Closed,
}

impl ActiveNetwork {
    /// Sets everything up in the network namespace of this thread.
    pub(super) fn open(
        tag: String,
        config: Config,
        addresses: Arc<Addresses>,
    ) -> Result<Arc<Self>, Error> {
        let gateway = addresses.take(|block| inventory::is_named(&tag, block))?;
        let ready = Self::prepare(tag, config, addresses, gateway)?;
        let installed = firewall::install(&ready.tag, &ready.terms, Begin::Open);
        // The gateway, which nobody else would.
        installed.inspect_err(|_| drop(remove_leftovers(&ready.tag)))?;
        Ok(ready)
    }

    /// Goes on with the links of a server that is gone, which nothing passes for a moment. Links of
    /// others than these sandboxes are taken away.
    pub(super) fn resume(
        tag: String,
        config: Config,
        addresses: Arc<Addresses>,
        gateway: Ipv4Addr,
        sandboxes: &[(Ipv4Addr, Compiled)],
    ) -> Result<Arc<Self>, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let used = sandboxes.iter().map(|(address, _)| *address);
        addresses.inherit(&used.chain([gateway]).collect());
        let ready = Self::prepare(tag, config, addresses, gateway)?;
        firewall::install(&ready.tag, &ready.terms, Begin::Shut)?;
        let policies = sandboxes.iter().map(|(address, policy)| (*address, policy));
        firewall::fill(&mut lock(&ready.rules), &ready.tag, policies)
            .map_err(failed("put the sandboxes' policies back"))?;
        {
            let mut links = lock(&ready.links);
            let found =
                veth::sandboxes(&mut links, &ready.family).map_err(failed("list the links"))?;
            let known: BTreeSet<String> = sandboxes
                .iter()
                .map(|(address, _)| ready.name(*address))
                .collect();
            let others: Vec<_> = found
                .into_iter()
                .filter(|link| !known.contains(&link.name))
                .collect();
            veth::delete(&mut links, &ready.family, &others)
                .map_err(failed("remove links of nobody"))?;
        }
        firewall::lift(&mut lock(&ready.rules), &ready.tag).map_err(failed("open the links"))?;
        Ok(ready)
    }

    /// Everything but the rules, which come last, so that nothing but the gateway has to be taken back.
    fn prepare(
        tag: String,
        config: Config,
        addresses: Arc<Addresses>,
        gateway: Ipv4Addr,
    ) -> Result<Arc<Self>, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let links = Socket::open(ROUTE).map_err(failed("speak with the kernel about links"))?;
        let rules = firewall::open().map_err(failed("speak with the kernel about rules"))?;
        let sockets = listen(gateway).map_err(failed("listen for names"))?;
        forward().map_err(failed("turn net.ipv4.ip_forward on"))?;
        let exceptions = Arc::clone(&config.exceptions);
        let forwarder = Forwarder::start(sockets, config.resolvers, exceptions);
        let forwarder = forwarder.map_err(failed("start the forwarder of names"))?;
        let janitor = LinkReaper::start(&tag, Arc::clone(&addresses));
        let janitor = janitor.map_err(failed("start the janitor of links"))?;
        let ready = Arc::new(Self {
            family: Family::of(&tag),
            tag,
            ipv6: match fs::exists("/proc/sys/net/ipv6") {
                Ok(true) => Ipv6::Known,
                _ => Ipv6::Unknown,
            },
            addresses,
            links: Mutex::new(links),
            rules: Mutex::new(rules),
            janitor,
            live: Mutex::default(),
            terms: Terms {
                gateway,
                connections: config.connections.min(most_connections()),
                exceptions: config.exceptions,
            },
            forwarder: Mutex::new(Some(forwarder)),
            phase: RwLock::new(Phase::Open),
        });
        ruleset_watcher::start(&ready).map_err(failed("start the guard of the rules"))?;
        veth::gate(&mut lock(&ready.links), &ready.family, gateway, ready.ipv6)
            .map_err(failed("make the gateway"))?;
        Ok(ready)
    }

    /// The address of our end of every link, which answers questions for names.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        self.terms.gateway
    }

    /// Returns an address that no sandbox has.
    pub(super) fn take_address(&self) -> Result<Ipv4Addr, Error> {
        self.addresses
            .take(|block| inventory::is_named(&self.tag, block))
    }

    /// What the link of an address is called.
    pub(super) fn name(&self, address: Ipv4Addr) -> String {
        format!("{}{}", self.family.prefix(), addresses::number(address))
    }

    /// Keeps the rules in place while a link is made. After the end there are none.
    pub(super) fn open_for_links(&self) -> Result<RwLockReadGuard<'_, Phase>, Error> {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        match *phase {
            Phase::Open => Ok(phase),
            Phase::Closed => Err(Error::new(
                Code::Conflict,
                "the instance is being taken away",
            )),
        }
    }

    /// Whether it came to its end.
    pub(super) fn is_closed(&self) -> bool {
        *self.phase.read().unwrap_or_else(PoisonError::into_inner) == Phase::Closed
    }

    /// Nothing is made or put back from here on.
    pub(super) fn end(&self) {
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = Phase::Closed;
    }

    /// Takes everything away.
    pub(super) fn close(&self) -> Result<(), Error> {
        self.detach();
        remove_leftovers(&self.tag)
    }

    /// Ends our part, and leaves links and rules to whoever comes next.
    pub(super) fn detach(&self) {
        self.end();
        if let Some(forwarder) = lock(&self.forwarder).take() {
            forwarder.end();
        }
        self.janitor.finish();
    }

    /// Puts the rules back that somebody took away. Nothing passes until they are there.
    pub(super) fn restore(&self) -> Result<(), Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let phase = self.phase.write().unwrap_or_else(PoisonError::into_inner);
        if *phase == Phase::Closed {
            return Ok(());
        }
        let mut links = lock(&self.links);
        let found = veth::sandboxes(&mut links, &self.family).map_err(failed("list the links"))?;
        veth::switch(&mut links, &found, veth::Switch::Off).map_err(failed("shut the links"))?;
        firewall::install(&self.tag, &self.terms, Begin::Open)?;
        for (address, current) in &*lock(&self.live) {
            if let Some(policy) = &*lock(current) {
                let none = Compiled::default();
                firewall::change(&mut lock(&self.rules), &self.tag, *address, &none, policy)
                    .map_err(failed("put a sandbox's policy back"))?;
            }
        }
        let gateway = self.gateway();
        veth::switch(&mut links, &found, veth::Switch::On { gateway })
            .map_err(failed("open the links"))
    }
}

/// Listens for names. A server that was killed just now may still be on its way out.
fn listen(gateway: Ipv4Addr) -> io::Result<dns::Sockets> {
    let begin = Instant::now();
    loop {
        match dns::listen(gateway, PORT) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && begin.elapsed() < Duration::from_secs(5) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Lets the host pass packets on.
fn forward() -> io::Result<()> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if fs::read_to_string(path)?.trim() == "0" {
        fs::write(path, "1")?;
    }
    Ok(())
}

/// No sandbox may take so much of what the host can remember that others go short.
fn most_connections() -> u32 {
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let most = fs::read_to_string(path).ok();
    let most = most.and_then(|text| text.trim().parse::<u32>().ok());
    most.map_or(u32::MAX, |most| (most / 8).max(64))
}
