//! A sandbox's network: its link, its `/etc/resolv.conf`, and its network namespace, which the host
//! enters to list ports and to connect.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use atoll_jail::netns;
use atoll_model::{
    Error, Network, NetworkPolicy, PolicyAction, RunAs, SandboxSpec, SandboxState, WriteOptions,
};
use serde::{Deserialize, Serialize};

use super::{Record, Sandbox};
use crate::error::jail;
use crate::files;
use crate::network::Link;
use crate::runtime::RuntimeState;
use crate::sync::lock;

/// Configuration of name servers.
const RESOLV_CONF: &[u8] = b"/etc/resolv.conf";

/// What the next server needs to adopt a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkRecord {
    pub(crate) address: Ipv4Addr,
    pub(crate) gateway: Ipv4Addr,
}

impl From<&Link> for LinkRecord {
    fn from(link: &Link) -> Self {
        Self {
            address: link.address(),
            gateway: link.gateway(),
        }
    }
}

/// Attaches the network namespace of a PID 1 as the spec says.
pub(super) async fn attach(
    shared: &RuntimeState,
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

/// Inode of a process's network namespace; `None` if the process is gone.
pub(super) fn netns_inode(pid: i32) -> Option<u64> {
    let namespace = netns::of(pid).ok()?;
    Some(rustix::fs::fstat(&namespace).ok()?.st_ino)
}

impl Sandbox {
    /// Descriptor of its network namespace. The pid may have been reused, so the inode has to be
    /// the one at creation.
    pub(crate) fn namespace(&self) -> Result<OwnedFd, Error> {
        let stopped = || SandboxState::Stopped.state_error("connected to");
        if self.exit_status.borrow().is_some() {
            return Err(stopped());
        }
        let namespace = netns::of(self.pid).map_err(|_| stopped())?;
        let found = rustix::fs::fstat(&namespace).ok().map(|about| about.st_ino);
        if found.is_none() || found != self.netns_inode {
            return Err(stopped());
        }
        Ok(namespace)
    }

    /// Writes `/etc/resolv.conf` in the sandbox. A helper writes it: the host resolves no path of a
    /// sandbox.
    pub(crate) async fn write_resolv_conf(self: &Arc<Self>) -> Result<(), Error> {
        let Some(text) = lock(&self.link).as_ref().map(|link| link.resolv_conf()) else {
            return Ok(());
        };
        let options = WriteOptions {
            in_place: true,
            parents: true,
            ..WriteOptions::default()
        };
        let root = RunAs::root();
        let mut writer = files::write(Arc::clone(self), &root, RESOLV_CONF, options).await?;
        writer.write(text.as_bytes()).await?;
        writer.commit().await.map(drop)
    }

    /// Attaches the network of a spec. The caller writes the record.
    pub(crate) async fn attach_network(
        &self,
        shared: &RuntimeState,
        spec: &SandboxSpec,
    ) -> Result<(), Error> {
        if spec.network == Network::None {
            return Ok(());
        }
        let policy = spec.policy.clone();
        let link = shared.network.attach(self.namespace()?, policy).await?;
        if shared.instance.data_lock.is_some() {
            link.keep_on_drop();
        }
        lock(&self.record).linked = Some(LinkRecord::from(&link));
        *lock(&self.link) = Some(Arc::new(link));
        if self.exit_status.borrow().is_some() {
            self.unlink();
        }
        Ok(())
    }

    /// Changes the network from `none` to `internet`, under a policy.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        shared: &RuntimeState,
        policy: NetworkPolicy,
    ) -> Result<(), Error> {
        let state = *self.state.borrow();
        if state != SandboxState::Running {
            return Err(state.state_error("connected"));
        }
        let spec = SandboxSpec {
            network: Network::Internet,
            policy,
            ..SandboxSpec::default()
        };
        self.attach_network(shared, &spec).await?;
        if let Err(error) = self.write_network(spec.network, spec.policy) {
            self.unlink();
            let mut record = lock(&self.record);
            record.linked = None;
            record.set_network(Network::None, NetworkPolicy::default());
            return Err(error);
        }
        // Programs in the sandbox may have made the file unwritable; that is no error of this call.
        let _ = self.write_resolv_conf().await;
        Ok(())
    }

    /// Changes the network from `internet` to `none`.
    pub(crate) async fn disconnect(&self) -> Result<(), Error> {
        let link = lock(&self.link).clone();
        if let Some(link) = link {
            // The link is removed a little later; from here on it passes no packet.
            let deny_all = NetworkPolicy {
                default: PolicyAction::Deny,
                ..NetworkPolicy::default()
            };
            link.set_policy(deny_all).await?;
        }
        self.unlink();
        lock(&self.record).linked = None;
        self.write_network(Network::None, NetworkPolicy::default())
    }

    fn write_network(&self, network: Network, policy: NetworkPolicy) -> Result<(), Error> {
        let mut record = lock(&self.record);
        record.set_network(network, policy);
        record.write(&self.directory)
    }

    /// The link and the policy in its record.
    pub(crate) fn link_record(&self) -> Option<(LinkRecord, NetworkPolicy)> {
        let record = lock(&self.record);
        Some((record.linked?, record.spec.policy.clone()))
    }

    /// Gives it an adopted or new link after a change of servers.
    pub(crate) fn relink(&self, link: Link) -> Result<(), Error> {
        link.keep_on_drop();
        {
            let mut record = lock(&self.record);
            let linked = Some(LinkRecord::from(&link));
            if record.linked != linked {
                record.linked = linked;
                record.write(&self.directory)?;
            }
        }
        *lock(&self.link) = Some(Arc::new(link));
        if self.exit_status.borrow().is_some() {
            self.unlink();
        }
        Ok(())
    }

    /// Removes its link.
    pub(super) fn unlink(&self) {
        if let Some(link) = lock(&self.link).take() {
            link.remove_on_drop();
        }
    }

    /// Changes its policy, now and in the record.
    pub(crate) async fn set_policy(&self, policy: NetworkPolicy) -> Result<(), Error> {
        // Record first: if the server is killed in between, the next one applies it.
        let old = self.write_policy(policy.clone())?;
        let link = lock(&self.link).clone();
        let Some(link) = link else { return Ok(()) };
        let changed = link.set_policy(policy).await;
        if changed.is_err() {
            self.write_policy(old)?;
        }
        changed
    }

    fn write_policy(&self, policy: NetworkPolicy) -> Result<NetworkPolicy, Error> {
        let mut record = lock(&self.record);
        let old = std::mem::replace(&mut record.spec.policy, policy);
        record.write(&self.directory)?;
        Ok(old)
    }
}

impl Record {
    /// Sets network and policy, in effect now and after a restart.
    pub(crate) fn set_network(&mut self, network: Network, policy: NetworkPolicy) {
        self.info.network = network;
        self.spec.network = network;
        self.spec.policy = policy;
    }
}
