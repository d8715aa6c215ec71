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
use super::firewall::{self, Compiled, InitialState, RulesetConfig};
use super::link_reaper::LinkReaper;
use super::netlink::{ROUTE, Socket};
use super::veth::{self, Ipv6, LinkNames};
use super::{Config, inventory, lock, remove_leftovers, ruleset_watcher};
use crate::error::internal;

/// The policy of a link; nothing once the link was given up. A change that comes late must not
/// concern the next sandbox with the same address.
pub(super) type LinkPolicy = Arc<Mutex<Option<Compiled>>>;

/// An instance's network that was set up.
#[derive(Debug)]
pub(super) struct ActiveNetwork {
    pub(super) tag: String,
    pub(super) names: LinkNames,
    pub(super) ipv6: Ipv6,
    pub(super) addresses: Arc<Addresses>,
    pub(super) links: Mutex<Socket>,
    pub(super) rules: Mutex<Socket>,
    pub(super) reaper: LinkReaper,
    /// What sandboxes that are linked have to obey.
    pub(super) policies: Mutex<BTreeMap<Ipv4Addr, LinkPolicy>>,
    ruleset: RulesetConfig,
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
        let gateway = addresses.allocate(|block| inventory::is_named(&tag, block))?;
        let network = Self::prepare(tag, config, addresses, gateway)?;
        let installed = firewall::install(&network.tag, &network.ruleset, InitialState::Open);
        // The gateway, which nobody else would.
        installed.inspect_err(|_| drop(remove_leftovers(&network.tag)))?;
        Ok(network)
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
        let network = Self::prepare(tag, config, addresses, gateway)?;
        firewall::install(&network.tag, &network.ruleset, InitialState::Blocked)?;
        let policies = sandboxes.iter().map(|(address, policy)| (*address, policy));
        firewall::restore_policies(&mut lock(&network.rules), &network.tag, policies)
            .map_err(failed("put the sandboxes' policies back"))?;
        {
            let mut links = lock(&network.links);
            let found = veth::list_sandbox_links(&mut links, &network.names)
                .map_err(failed("list the links"))?;
            let known: BTreeSet<String> = sandboxes
                .iter()
                .map(|(address, _)| network.link_name(*address))
                .collect();
            let others: Vec<_> = found
                .into_iter()
                .filter(|link| !known.contains(&link.name))
                .collect();
            veth::delete(&mut links, &network.names, &others)
                .map_err(failed("remove links of nobody"))?;
        }
        firewall::unblock(&mut lock(&network.rules), &network.tag)
            .map_err(failed("open the links"))?;
        Ok(network)
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
        enable_forwarding().map_err(failed("turn net.ipv4.ip_forward on"))?;
        let exceptions = Arc::clone(&config.exceptions);
        let forwarder = Forwarder::start(sockets, config.resolvers, exceptions);
        let forwarder = forwarder.map_err(failed("start the forwarder of names"))?;
        let reaper = LinkReaper::start(&tag, Arc::clone(&addresses));
        let reaper = reaper.map_err(failed("start the reaper of links"))?;
        let network = Arc::new(Self {
            names: LinkNames::new(&tag),
            tag,
            ipv6: match fs::exists("/proc/sys/net/ipv6") {
                Ok(true) => Ipv6::Available,
                _ => Ipv6::Missing,
            },
            addresses,
            links: Mutex::new(links),
            rules: Mutex::new(rules),
            reaper,
            policies: Mutex::default(),
            ruleset: RulesetConfig {
                gateway,
                connections: config.connections.min(max_connections()),
                exceptions: config.exceptions,
            },
            forwarder: Mutex::new(Some(forwarder)),
            phase: RwLock::new(Phase::Open),
        });
        ruleset_watcher::start(&network).map_err(failed("start the guard of the rules"))?;
        veth::set_up_gateway(
            &mut lock(&network.links),
            &network.names,
            gateway,
            network.ipv6,
        )
        .map_err(failed("make the gateway"))?;
        Ok(network)
    }

    /// The address of our end of every link, which answers questions for names.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        self.ruleset.gateway
    }

    /// Returns an address that no sandbox has.
    pub(super) fn take_address(&self) -> Result<Ipv4Addr, Error> {
        self.addresses
            .allocate(|block| inventory::is_named(&self.tag, block))
    }

    /// What the link of an address is called.
    pub(super) fn link_name(&self, address: Ipv4Addr) -> String {
        format!("{}{}", self.names.prefix(), addresses::number(address))
    }

    /// Keeps the rules in place while a link is made. After the end there are none.
    pub(super) fn read_ruleset_phase(&self) -> Result<RwLockReadGuard<'_, Phase>, Error> {
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
    pub(super) fn mark_closed(&self) {
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = Phase::Closed;
    }

    /// Takes everything away.
    pub(super) fn close(&self) -> Result<(), Error> {
        self.detach();
        remove_leftovers(&self.tag)
    }

    /// Ends our part, and leaves links and rules to whoever comes next.
    pub(super) fn detach(&self) {
        self.mark_closed();
        if let Some(forwarder) = lock(&self.forwarder).take() {
            forwarder.stop();
        }
        self.reaper.finish();
    }

    /// Puts the rules back that somebody took away. Nothing passes until they are there.
    pub(super) fn restore(&self) -> Result<(), Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let phase = self.phase.write().unwrap_or_else(PoisonError::into_inner);
        if *phase == Phase::Closed {
            return Ok(());
        }
        let mut links = lock(&self.links);
        let found =
            veth::list_sandbox_links(&mut links, &self.names).map_err(failed("list the links"))?;
        veth::set_state(&mut links, &found, veth::LinkState::Down)
            .map_err(failed("shut the links"))?;
        firewall::install(&self.tag, &self.ruleset, InitialState::Open)?;
        for (address, current) in &*lock(&self.policies) {
            if let Some(policy) = &*lock(current) {
                let none = Compiled::default();
                firewall::replace_policy(
                    &mut lock(&self.rules),
                    &self.tag,
                    *address,
                    &none,
                    policy,
                )
                .map_err(failed("put a sandbox's policy back"))?;
            }
        }
        let gateway = self.gateway();
        veth::set_state(&mut links, &found, veth::LinkState::Up { gateway })
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
fn enable_forwarding() -> io::Result<()> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if fs::read_to_string(path)?.trim() == "0" {
        fs::write(path, "1")?;
    }
    Ok(())
}

/// No sandbox may take so much of what the host can remember that others go short.
fn max_connections() -> u32 {
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let max = fs::read_to_string(path).ok();
    let max = max.and_then(|text| text.trim().parse::<u32>().ok());
    max.map_or(u32::MAX, |max| (max / 8).max(64))
}
