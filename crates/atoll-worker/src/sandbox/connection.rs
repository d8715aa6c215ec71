//! A sandbox's connection with the world: its link from when it is made to when it is given up, what it
//! is told about names, and its network namespace, which the host enters for a moment to look or to dial.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use atoll_jail::netns;
use atoll_model::{
    Caller, Error, Network, Policy, SandboxSpec, SandboxState, Verdict, WriteOptions,
};
use serde::{Deserialize, Serialize};

use super::{Record, Sandbox, lock};
use crate::error::jail;
use crate::files;
use crate::network::Link;
use crate::runtime::Shared;

/// Where programs look for name servers.
const RESOLVERS: &[u8] = b"/etc/resolv.conf";

/// What the next server has to know to go on with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Linked {
    pub(crate) address: Ipv4Addr,
    pub(crate) gateway: Ipv4Addr,
}

impl From<&Link> for Linked {
    fn from(link: &Link) -> Self {
        Self {
            address: link.address(),
            gateway: link.gateway(),
        }
    }
}

/// Links the network namespace of a PID 1 with what is asked for.
pub(super) async fn attach(
    shared: &Shared,
    pid: i32,
    spec: &SandboxSpec,
) -> Result<Option<Arc<Link>>, Error> {
    match spec.network {
        Network::None => Ok(None),
        Network::Internet => {
            let namespace = netns::of(pid).map_err(|error| jail(&error))?;
            let link = shared.network.attach(namespace, spec.policy.clone());
            link.await.map(|link| Some(Arc::new(link)))
        }
    }
}

/// The number of a process's network namespace, as long as somebody is in it.
pub(super) fn number(pid: i32) -> Option<u64> {
    let namespace = netns::of(pid).ok()?;
    Some(rustix::fs::fstat(&namespace).ok()?.st_ino)
}

impl Sandbox {
    /// Its network namespace. A pid may be another's by the time we look: only the very namespace it was
    /// made with will do.
    pub(crate) fn namespace(&self) -> Result<OwnedFd, Error> {
        let stopped = || SandboxState::Stopped.refusal("connected to");
        if self.died.borrow().is_some() {
            return Err(stopped());
        }
        let namespace = netns::of(self.pid).map_err(|_| stopped())?;
        let found = rustix::fs::fstat(&namespace).ok().map(|about| about.st_ino);
        if found.is_none() || found != self.namespace {
            return Err(stopped());
        }
        Ok(namespace)
    }

    /// Tells programs inside whom to ask for names. Written inside, by a helper: the host resolves no path
    /// of a sandbox.
    pub(crate) async fn tell_names(self: &Arc<Self>) -> Result<(), Error> {
        let Some(text) = lock(&self.link).as_ref().map(|link| link.resolv_conf()) else {
            return Ok(());
        };
        let options = WriteOptions {
            in_place: true,
            parents: true,
            ..WriteOptions::default()
        };
        let root = Caller::root();
        let mut writer = files::write(Arc::clone(self), &root, RESOLVERS, options).await?;
        writer.write(text.as_bytes()).await?;
        writer.commit().await.map(drop)
    }

    /// Links it with what is asked for; nothing is written down yet.
    pub(crate) async fn link_with(&self, shared: &Shared, spec: &SandboxSpec) -> Result<(), Error> {
        if spec.network == Network::None {
            return Ok(());
        }
        let policy = spec.policy.clone();
        let link = shared.network.attach(self.namespace()?, policy).await?;
        if shared.instance.lasting.is_some() {
            link.keep_on_drop();
        }
        lock(&self.record).linked = Some(Linked::from(&link));
        *lock(&self.link) = Some(Arc::new(link));
        if self.died.borrow().is_some() {
            self.unlink();
        }
        Ok(())
    }

    /// Gives it the network `internet`, under a policy.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        shared: &Shared,
        policy: Policy,
    ) -> Result<(), Error> {
        let state = *self.state.borrow();
        if state != SandboxState::Running {
            return Err(state.refusal("connected"));
        }
        let spec = SandboxSpec {
            network: Network::Internet,
            policy,
            ..SandboxSpec::default()
        };
        self.link_with(shared, &spec).await?;
        if let Err(error) = self.write_network(spec.network, spec.policy) {
            self.unlink();
            let mut record = lock(&self.record);
            record.linked = None;
            record.set_network(Network::None, Policy::default());
            return Err(error);
        }
        // What its own programs made of its files is their business.
        let _ = self.tell_names().await;
        Ok(())
    }

    /// Takes the network `internet` from it.
    pub(crate) async fn disconnect(&self) -> Result<(), Error> {
        let link = lock(&self.link).clone();
        if let Some(link) = link {
            // The link itself goes a little later; nothing passes it from here on.
            let nothing = Policy {
                default: Verdict::Deny,
                ..Policy::default()
            };
            link.set_policy(nothing).await?;
        }
        self.unlink();
        lock(&self.record).linked = None;
        self.write_network(Network::None, Policy::default())
    }

    fn write_network(&self, network: Network, policy: Policy) -> Result<(), Error> {
        let mut record = lock(&self.record);
        record.set_network(network, policy);
        record.write(&self.directory)
    }

    /// What its record says of its link, and under which policy that is.
    pub(crate) fn linked(&self) -> Option<(Linked, Policy)> {
        let record = lock(&self.record);
        Some((record.linked?, record.spec.policy.clone()))
    }

    /// Gives it a link after a change of servers.
    pub(crate) fn relink(&self, link: Link) -> Result<(), Error> {
        link.keep_on_drop();
        {
            let mut record = lock(&self.record);
            let linked = Some(Linked::from(&link));
            if record.linked != linked {
                record.linked = linked;
                record.write(&self.directory)?;
            }
        }
        *lock(&self.link) = Some(Arc::new(link));
        if self.died.borrow().is_some() {
            self.unlink();
        }
        Ok(())
    }

    /// Gives its link up.
    pub(super) fn unlink(&self) {
        if let Some(link) = lock(&self.link).take() {
            link.remove_on_drop();
        }
    }

    /// Changes what it may reach, at once and for whoever starts it again.
    pub(crate) async fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        // Written first: a server that is killed in between is followed by one that obeys.
        let old = self.write_policy(policy.clone())?;
        let link = lock(&self.link).clone();
        let Some(link) = link else { return Ok(()) };
        let changed = link.set_policy(policy).await;
        if changed.is_err() {
            self.write_policy(old)?;
        }
        changed
    }

    fn write_policy(&self, policy: Policy) -> Result<Policy, Error> {
        let mut record = lock(&self.record);
        let old = std::mem::replace(&mut record.spec.policy, policy);
        record.write(&self.directory)?;
        Ok(old)
    }
}

impl Record {
    /// Writes another network in, for now and for when it is started again.
    pub(crate) fn set_network(&mut self, network: Network, policy: Policy) {
        self.info.network = network;
        self.spec.network = network;
        self.spec.policy = policy;
    }
}
