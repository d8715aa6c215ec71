//! A sandbox's link: creation, policy changes and removal.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use atoll_jail::netns;
use atoll_model::{Error, NetworkPolicy};

use super::active::{ActiveNetwork, LinkPolicy};
use super::firewall::{self, Compiled};
use super::link_reaper::RemovedLink;
use super::netlink::{ROUTE, Socket};
use super::veth;
use crate::error::{internal, jail};
use crate::sandbox::run_blocking;
use crate::sync::lock;

/// A sandbox's link. It is removed when dropped, except after [`Link::keep_on_drop`].
#[derive(Debug)]
pub struct Link {
    pub(super) network: Arc<ActiveNetwork>,
    pub(super) name: String,
    address: Ipv4Addr,
    policy: LinkPolicy,
    keep_on_drop: AtomicBool,
}

impl Link {
    /// Creates a link. An error drops it, which removes whatever was created.
    pub(super) fn create(
        network: &Arc<ActiveNetwork>,
        namespace: BorrowedFd<'_>,
        policy: &NetworkPolicy,
    ) -> Result<Self, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let _in_place = network.read_ruleset_phase()?;
        let address = network.allocate_address()?;
        let link = Self {
            name: network.link_name(address),
            network: Arc::clone(network),
            address,
            policy: Arc::new(Mutex::new(Some(Compiled::default()))),
            keep_on_drop: AtomicBool::new(false),
        };
        lock(&network.policies).insert(address, Arc::clone(&link.policy));
        let netlink = netns::within(namespace, || Socket::open(ROUTE));
        let netlink = netlink.map_err(|error| jail(&error))?;
        let mut netlink = netlink.map_err(failed("open a netlink socket in a sandbox"))?;
        {
            let mut links = lock(&network.links);
            veth::create_pair(&mut links, &network.names, &link.name, address, namespace)
                .and_then(|index| {
                    veth::set_up_host_end(
                        &mut links,
                        index,
                        network.gateway(),
                        address,
                        network.ipv6,
                    )
                })
                .map_err(failed("create a sandbox's link"))?;
        }
        // Applied before the sandbox has a route.
        apply_policy(network, address, &link.policy, policy)?;
        veth::set_up_sandbox_end(&mut netlink, network.gateway(), address, network.ipv6)
            .and_then(|()| veth::wait_oper_up(&mut lock(&network.links), &link.name))
            .map_err(failed("set up a sandbox's end of its link"))?;
        Ok(link)
    }

    /// An existing link whose policy is in force.
    pub(super) fn existing(
        network: &Arc<ActiveNetwork>,
        address: Ipv4Addr,
        policy: Compiled,
    ) -> Option<Self> {
        let name = network.link_name(address);
        veth::find(&mut lock(&network.links), &name).ok()?;
        let link = Self {
            name,
            network: Arc::clone(network),
            address,
            policy: Arc::new(Mutex::new(Some(policy))),
            keep_on_drop: AtomicBool::new(true),
        };
        lock(&network.policies).insert(address, Arc::clone(&link.policy));
        Some(link)
    }

    /// Keeps the link when dropped, for the next server.
    pub fn keep_on_drop(&self) {
        self.keep_on_drop.store(true, Ordering::Release);
    }

    /// Removes the link when dropped; undoes [`Self::keep_on_drop`].
    pub fn remove_on_drop(&self) {
        self.keep_on_drop.store(false, Ordering::Release);
    }

    /// The sandbox's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The gateway address, on which the DNS forwarder listens.
    pub fn gateway(&self) -> Ipv4Addr {
        self.network.gateway()
    }

    /// Contents of the sandbox's `/etc/resolv.conf`.
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.network.gateway())
    }

    /// Replaces the policy. Established connections that it forbids are cut.
    pub async fn set_policy(&self, policy: NetworkPolicy) -> Result<(), Error> {
        policy.check()?;
        let (network, address) = (Arc::clone(&self.network), self.address);
        let current = Arc::clone(&self.policy);
        run_blocking(move || apply_policy(&network, address, &current, &policy)).await
    }
}

fn apply_policy(
    network: &ActiveNetwork,
    address: Ipv4Addr,
    current: &LinkPolicy,
    policy: &NetworkPolicy,
) -> Result<(), Error> {
    let mut current = lock(current);
    let Some(current) = &mut *current else {
        return Ok(());
    };
    let new = Compiled::new(policy);
    firewall::replace_policy(
        &mut lock(&network.rules),
        &network.tag,
        address,
        current,
        &new,
    )
    .map_err(|error| internal("change a sandbox's policy", &error))?;
    *current = new;
    Ok(())
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.keep_on_drop.load(Ordering::Acquire) {
            return;
        }
        lock(&self.network.policies).remove(&self.address);
        self.network.reaper.remove(RemovedLink {
            name: std::mem::take(&mut self.name),
            address: self.address,
            policy: lock(&self.policy).take().unwrap_or_default(),
        });
    }
}
