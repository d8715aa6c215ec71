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
use crate::sandbox::blocking;

/// A sandbox's link. It is taken away when this is dropped, unless it was told to stay.
#[derive(Debug)]
pub struct Link {
    pub(super) ready: Arc<ActiveNetwork>,
    pub(super) name: String,
    address: Ipv4Addr,
    policy: LinkPolicy,
    stays: AtomicBool,
}

impl Link {
    /// Every failure drops the link, and with it whatever was made.
    pub(super) fn make(
        ready: &Arc<ActiveNetwork>,
        namespace: BorrowedFd<'_>,
        policy: &Policy,
    ) -> Result<Self, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let _in_place = ready.open_for_links()?;
        let address = ready.take_address()?;
        let link = Self {
            name: ready.name(address),
            ready: Arc::clone(ready),
            address,
            policy: Arc::new(Mutex::new(Some(Compiled::default()))),
            stays: AtomicBool::new(false),
        };
        lock(&ready.live).insert(address, Arc::clone(&link.policy));
        let inside = netns::within(namespace, || Socket::open(ROUTE));
        let inside = inside.map_err(|error| jail(&error))?;
        let mut inside = inside.map_err(failed("speak with the kernel about a sandbox's link"))?;
        {
            let mut links = lock(&ready.links);
            veth::pair(&mut links, &ready.family, &link.name, address, namespace)
                .and_then(|index| {
                    veth::lead(&mut links, index, ready.gateway(), address, ready.ipv6)
                })
                .map_err(failed("make a sandbox's link"))?;
        }
        // Before there is a way out.
        enforce(ready, address, &link.policy, policy)?;
        veth::inside(&mut inside, ready.gateway(), address, ready.ipv6)
            .and_then(|()| veth::settle(&mut lock(&ready.links), &link.name))
            .map_err(failed("set a sandbox's end of its link up"))?;
        Ok(link)
    }

    /// One that is there already, under a policy that is in force.
    pub(super) fn found(
        ready: &Arc<ActiveNetwork>,
        address: Ipv4Addr,
        policy: Compiled,
    ) -> Option<Self> {
        let name = ready.name(address);
        veth::find(&mut lock(&ready.links), &name).ok()?;
        let link = Self {
            name,
            ready: Arc::clone(ready),
            address,
            policy: Arc::new(Mutex::new(Some(policy))),
            stays: AtomicBool::new(true),
        };
        lock(&ready.live).insert(address, Arc::clone(&link.policy));
        Some(link)
    }

    /// It stays when this is dropped: another server will go on with it.
    pub fn keep_on_drop(&self) {
        self.stays.store(true, Ordering::Release);
    }

    /// It goes when this is dropped, whatever it was told before.
    pub fn remove_on_drop(&self) {
        self.stays.store(false, Ordering::Release);
    }

    /// The sandbox's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of our end, which answers questions for names.
    pub fn gateway(&self) -> Ipv4Addr {
        self.ready.gateway()
    }

    /// What `/etc/resolv.conf` in the sandbox has to say.
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.ready.gateway())
    }

    /// Changes what the sandbox may reach, at once. Connections that the new policy forbids are cut.
    pub async fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        policy.check()?;
        let (ready, address) = (Arc::clone(&self.ready), self.address);
        let current = Arc::clone(&self.policy);
        blocking(move || enforce(&ready, address, &current, &policy)).await
    }
}

fn enforce(
    ready: &ActiveNetwork,
    address: Ipv4Addr,
    current: &LinkPolicy,
    policy: &Policy,
) -> Result<(), Error> {
    let mut current = lock(current);
    let Some(current) = &mut *current else {
        return Ok(());
    };
    let new = Compiled::of(policy);
    firewall::change(&mut lock(&ready.rules), &ready.tag, address, current, &new)
        .map_err(|error| internal("change a sandbox's policy", &error))?;
    *current = new;
    Ok(())
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.stays.load(Ordering::Acquire) {
            return;
        }
        lock(&self.ready.live).remove(&self.address);
        self.ready.janitor.take(RemovedLink {
            name: std::mem::take(&mut self.name),
            address: self.address,
            policy: lock(&self.policy).take().unwrap_or_default(),
        });
    }
}
