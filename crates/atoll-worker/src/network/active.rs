//! Network of an instance while it is set up: its sockets, policies, forwarder and background
//! threads.

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
use super::{Config, inventory, remove_leftovers, ruleset_watcher};
use crate::error::internal;
use crate::sync::lock;

/// The policy of a link; `None` once the link is being removed. A late change must not apply to the
/// next sandbox with the same address.
pub(super) type LinkPolicy = Arc<Mutex<Option<Compiled>>>;

/// An instance's network that is set up.
#[derive(Debug)]
pub(super) struct ActiveNetwork {
    pub(super) tag: String,
    pub(super) names: LinkNames,
    pub(super) ipv6: Ipv6,
    pub(super) addresses: Arc<Addresses>,
    pub(super) links: Mutex<Socket>,
    pub(super) rules: Mutex<Socket>,
    pub(super) reaper: LinkReaper,
    /// Policies of the links, by address.
    pub(super) policies: Mutex<BTreeMap<Ipv4Addr, LinkPolicy>>,
    ruleset: RulesetConfig,
    forwarder: Mutex<Option<Forwarder>>,
    phase: RwLock<Phase>,
}

/// Whether the network is in use.
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
        let gateway = addresses.allocate(|block| inventory::is_in_use(&tag, block))?;
        let network = Self::prepare(tag, config, addresses, gateway)?;
        let installed = firewall::install(&network.tag, &network.ruleset, InitialState::Open);
        // Removes the gateway, which nothing else would.
        installed.inspect_err(|_| drop(remove_leftovers(&network.tag)))?;
        Ok(network)
    }

    /// Adopts the links of a previous server, during which no packet passes. Links of other
    /// sandboxes are removed.
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
            .map_err(failed("restore the sandboxes' policies"))?;
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
                .map_err(failed("remove unused links"))?;
        }
        firewall::unblock(&mut lock(&network.rules), &network.tag)
            .map_err(failed("unblock the links"))?;
        Ok(network)
    }

    /// Sets up everything but the rules, which come last, so that on an error only the gateway has
    /// to be removed.
    fn prepare(
        tag: String,
        config: Config,
        addresses: Arc<Addresses>,
        gateway: Ipv4Addr,
    ) -> Result<Arc<Self>, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let links = Socket::open(ROUTE).map_err(failed("open a route netlink socket"))?;
        let rules = firewall::open().map_err(failed("open an nftables netlink socket"))?;
        let sockets = listen(gateway).map_err(failed("listen for DNS queries"))?;
        enable_forwarding().map_err(failed("turn net.ipv4.ip_forward on"))?;
        let exceptions = Arc::clone(&config.exceptions);
        let forwarder = Forwarder::start(sockets, config.resolvers, exceptions);
        let forwarder = forwarder.map_err(failed("start the DNS forwarder"))?;
        let reaper = LinkReaper::start(&tag, Arc::clone(&addresses));
        let reaper = reaper.map_err(failed("start the link reaper"))?;
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
        ruleset_watcher::start(&network).map_err(failed("start the ruleset watcher"))?;
        veth::set_up_gateway(
            &mut lock(&network.links),
            &network.names,
            gateway,
            network.ipv6,
        )
        .map_err(failed("create the gateway"))?;
        Ok(network)
    }

    /// The gateway address, on which the DNS forwarder listens.
    pub(super) fn gateway(&self) -> Ipv4Addr {
        self.ruleset.gateway
    }

    /// Allocates an address.
    pub(super) fn allocate_address(&self) -> Result<Ipv4Addr, Error> {
        self.addresses
            .allocate(|block| inventory::is_in_use(&self.tag, block))
    }

    /// Interface name of the link with this address.
    pub(super) fn link_name(&self, address: Ipv4Addr) -> String {
        format!(
            "{}{}",
            self.names.prefix(),
            addresses::address_index(address)
        )
    }

    /// Locks the rules while a link is created; fails once the network is closed.
    pub(super) fn read_ruleset_phase(&self) -> Result<RwLockReadGuard<'_, Phase>, Error> {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        match *phase {
            Phase::Open => Ok(phase),
            Phase::Closed => Err(Error::new(Code::Conflict, "the instance is being removed")),
        }
    }

    /// Whether the network is closed.
    pub(super) fn is_closed(&self) -> bool {
        *self.phase.read().unwrap_or_else(PoisonError::into_inner) == Phase::Closed
    }

    /// Closes the network: nothing is created or restored any more.
    pub(super) fn mark_closed(&self) {
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = Phase::Closed;
    }

    /// Removes everything.
    pub(super) fn close(&self) -> Result<(), Error> {
        self.detach();
        remove_leftovers(&self.tag)
    }

    /// Stops forwarder and reaper; links and rules stay for the next server.
    pub(super) fn detach(&self) {
        self.mark_closed();
        if let Some(forwarder) = lock(&self.forwarder).take() {
            forwarder.stop();
        }
        self.reaper.finish();
    }

    /// Restores the rules after another program deleted them. The links are down meanwhile.
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
            .map_err(failed("set the links down"))?;
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
                .map_err(failed("restore a sandbox's policy"))?;
            }
        }
        let gateway = self.gateway();
        veth::set_state(&mut links, &found, veth::LinkState::Up { gateway })
            .map_err(failed("unblock the links"))
    }
}

/// Binds the DNS sockets. A server that was killed just now may still hold them.
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

/// Turns on `net.ipv4.ip_forward`.
fn enable_forwarding() -> io::Result<()> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if fs::read_to_string(path)?.trim() == "0" {
        fs::write(path, "1")?;
    }
    Ok(())
}

/// An eighth of `nf_conntrack_max`, so that no sandbox exhausts the host's table.
fn max_connections() -> u32 {
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let max = fs::read_to_string(path).ok();
    let max = max.and_then(|text| text.trim().parse::<u32>().ok());
    max.map_or(u32::MAX, |max| (max / 8).max(64))
}
