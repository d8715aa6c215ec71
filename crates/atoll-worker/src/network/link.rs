//! A sandbox's link, from attaching it to giving it up.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use atoll_jail::netns;
use atoll_model::{Error, Policy};

use super::active::{ActiveNetwork, LinkPolicy};
use super::firewall::{self, Compiled};
use super::link_reaper::RemovedLink;
use super::netlink::{ROUTE, Socket};
use super::{lock, veth};
use crate::error::{internal, jail};
use crate::sandbox::run_blocking;

/// A sandbox's link. It is taken away when this is dropped, unless it was told to stay.
#[derive(Debug)]
pub struct Link {
    pub(super) network: Arc<ActiveNetwork>,
    pub(super) name: String,
    address: Ipv4Addr,
    policy: LinkPolicy,
    keep_on_drop: AtomicBool,
}

impl Link {
    /// Every failure drops the link, and with it whatever was made.
    pub(super) fn create(
        network: &Arc<ActiveNetwork>,
        namespace: BorrowedFd<'_>,
        policy: &Policy,
    ) -> Result<Self, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let _in_place = network.read_ruleset_phase()?;
        let address = network.take_address()?;
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
        let mut netlink =
            netlink.map_err(failed("speak with the kernel about a sandbox's link"))?;
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
                .map_err(failed("make a sandbox's link"))?;
        }
        // Before there is a way out.
        apply_policy(network, address, &link.policy, policy)?;
        veth::set_up_sandbox_end(&mut netlink, network.gateway(), address, network.ipv6)
            .and_then(|()| veth::wait_oper_up(&mut lock(&network.links), &link.name))
            .map_err(failed("set a sandbox's end of its link up"))?;
        Ok(link)
    }

    /// One that is there already, under a policy that is in force.
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

    /// It keep_on_drop when this is dropped: another server will go on with it.
    pub fn keep_on_drop(&self) {
        self.keep_on_drop.store(true, Ordering::Release);
    }

    /// It goes when this is dropped, whatever it was told before.
    pub fn remove_on_drop(&self) {
        self.keep_on_drop.store(false, Ordering::Release);
    }

    /// The sandbox's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of our end, which answers questions for names.
    pub fn gateway(&self) -> Ipv4Addr {
        self.network.gateway()
    }

    /// What `/etc/resolv.conf` in the sandbox has to say.
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.network.gateway())
    }

    /// Changes what the sandbox may reach, at once. Connections that the new policy forbids are cut.
    pub async fn set_policy(&self, policy: Policy) -> Result<(), Error> {
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
    policy: &Policy,
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
