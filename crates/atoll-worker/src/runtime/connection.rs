//! A sandbox's network, network policy and listening ports.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_model::{Error, Network, NetworkPolicy, PortEvent, SandboxId, SandboxInfo, SandboxSpec};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::{EntryState, LocalRuntime};
use crate::network::{self, ports};
use crate::sandbox::run_blocking;
use crate::sync::lock;

/// Poll interval for listening ports while a client watches them.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl LocalRuntime {
    /// Changes a sandbox's network policy. When this returns the policy is in force, and
    /// connections that it forbids are closed.
    pub async fn set_network_policy(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxInfo, Error> {
        policy.check()?;
        self.shared.network.check(&policy)?;
        self.transition(id, |runtime, entry, state| async move {
            match state {
                EntryState::Live(sandbox) => {
                    has_network(&sandbox.info())?;
                    sandbox.set_policy(policy).await
                }
                EntryState::Stopped(mut record, execs) => {
                    has_network(&record.info)?;
                    record.spec.policy = policy;
                    runtime.update_stopped(&entry, record, execs)
                }
                EntryState::Unadoptable(sandbox) => Err(sandbox.error()),
                EntryState::Gone => Ok(()),
            }
        })
        .await
    }

    /// Changes a sandbox's network and policy, in force when this returns. Programs that run keep
    /// the name servers they have read. A paused sandbox cannot get a network, because a helper in
    /// it has to write `/etc/resolv.conf`.
    pub async fn set_network(
        &self,
        id: &SandboxId,
        network: Network,
        policy: NetworkPolicy,
    ) -> Result<SandboxInfo, Error> {
        let spec = SandboxSpec {
            network,
            policy,
            ..SandboxSpec::default()
        };
        spec.check_network()?;
        self.shared.network.check(&spec.policy)?;
        let _time = self.time("set_network");
        self.transition(id, move |runtime, entry, state| async move {
            let SandboxSpec {
                network, policy, ..
            } = spec;
            match state {
                EntryState::Live(sandbox) => match (sandbox.info().network, network) {
                    (Network::Internet, Network::Internet) => sandbox.set_policy(policy).await,
                    (Network::None, Network::Internet) => {
                        sandbox.connect(&runtime.shared, policy).await
                    }
                    (Network::Internet, Network::None) => sandbox.disconnect().await,
                    (Network::None, Network::None) => Ok(()),
                },
                EntryState::Stopped(mut record, execs) => {
                    record.set_network(network, policy);
                    runtime.update_stopped(&entry, record, execs)
                }
                EntryState::Unadoptable(sandbox) => Err(sandbox.error()),
                EntryState::Gone => Ok(()),
            }
        })
        .await
    }

    /// Addresses on which TCP servers of a sandbox listen, on any interface.
    pub async fn ports(&self, id: &SandboxId) -> Result<Vec<SocketAddr>, Error> {
        let namespace = self.find(id)?.namespace()?;
        run_blocking(move || ports::listening(namespace.as_fd())).await
    }

    /// Connects to a TCP port on a sandbox's loopback interface; its network does not matter.
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<TcpStream, Error> {
        let _time = self.time("dial");
        let sandbox = self.find(id)?;
        let at = |ip: IpAddr| SocketAddr::new(ip, port);
        let first = network::dial(sandbox.namespace()?, at(Ipv4Addr::LOCALHOST.into())).await;
        let error = match first {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let second = network::dial(sandbox.namespace()?, at(Ipv6Addr::LOCALHOST.into())).await;
        second.map_err(|_| error)
    }

    /// Waits until a sandbox has no processes.
    pub async fn wait_stopped(&self, id: &SandboxId) {
        let state = self.entry(id).map(|entry| entry.state());
        if let Ok(EntryState::Live(sandbox)) = state {
            let mut exit_status = sandbox.exit_status.clone();
            drop(sandbox);
            let _ = exit_status.wait_for(Option::is_some).await;
        }
    }

    /// Connects from a sandbox with the network `internet` through this host to a server of our
    /// own, and returns the time that took. It adds an exception to the instance's rules: close the
    /// runtime after this.
    pub async fn check_egress(&self, id: &SandboxId) -> Result<Duration, Error> {
        let namespace = self.find(id)?.namespace()?;
        let tag = self.tag().to_owned();
        run_blocking(move || network::egress_check::run(&tag, namespace.as_fd())).await
    }

    /// Watches the listening ports of a sandbox: first all current ones, then every change.
    pub async fn watch_ports(&self, id: &SandboxId) -> Result<PortWatch, Error> {
        let sandbox = self.find(id)?;
        let namespace = sandbox.namespace()?;
        let socket = run_blocking(move || ports::open(namespace.as_fd())).await?;
        Ok(PortWatch {
            socket: Arc::new(Mutex::new(socket)),
            known: None,
            events: VecDeque::new(),
            exit_status: sandbox.exit_status.clone(),
        })
    }
}

/// Fails if the sandbox has no network: a policy would have no effect.
fn has_network(info: &SandboxInfo) -> Result<(), Error> {
    match info.network {
        Network::Internet => Ok(()),
        Network::None => Err(Error::invalid(
            "policy",
            "a policy needs the network internet, and this sandbox has no network",
            "create a sandbox with the network internet",
        )),
    }
}

/// Port events of a sandbox. The kernel is polled only during [`PortWatch::next`].
#[derive(Debug)]
pub struct PortWatch {
    socket: Arc<Mutex<ports::SockDiag>>,
    /// Ports at the last poll; `None` before the first.
    known: Option<BTreeSet<SocketAddr>>,
    events: VecDeque<PortEvent>,
    exit_status: watch::Receiver<Option<i32>>,
}

impl PortWatch {
    /// Waits for the next event; `None` once the sandbox has no processes.
    pub async fn next(&mut self) -> Result<Option<PortEvent>, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.known.is_some() {
                tokio::select! {
                    _ = self.exit_status.wait_for(Option::is_some) => return Ok(None),
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
            let socket = Arc::clone(&self.socket);
            let now = run_blocking(move || ports::list(&mut lock(&socket))).await?;
            let now = BTreeSet::from_iter(now);
            let known = self.known.replace(now.clone()).unwrap_or_default();
            let closed = known.difference(&now).copied().map(PortEvent::Closed);
            let opened = now.difference(&known).copied().map(PortEvent::Opened);
            self.events.extend(closed.chain(opened));
        }
    }
}
