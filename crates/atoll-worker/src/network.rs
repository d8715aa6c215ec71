//! The network `internet`: a veth pair for each sandbox, nftables rules about what may pass it, and
//! a DNS forwarder.
//!
//! ```text
//! sandbox  eth0 198.18.0.9 ── atl-TAG-9   atl-TAG-gate 198.18.0.1 (DNS)   table atoll_TAG ── the host's default route
//! ```
//!
//! There is no bridge: both ends of each link have a route, and one address is the gateway of all.
//! Nothing is set up before the first sandbox needs it. Everything is in the network namespace of
//! the thread that set it up and carries the instance's tag: links in name and group, rules in the
//! table's name. The only other change is `net.ipv4.ip_forward`, which is turned on if it is off
//! and stays on, since other software may rely on it by then.
//!
//! Nothing here trusts the sandbox: a process with all capabilities in the sandbox's network
//! namespace could remove its own end of the link, and no more.

mod active;
mod addresses;
mod conntrack;
mod dns;
pub(crate) mod egress_check;
mod firewall;
pub(crate) mod inventory;
mod link;
mod link_reaper;
mod netlink;
pub mod ports;
mod ruleset_watcher;
#[cfg(test)]
mod tests;
mod veth;

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use atoll_jail::netns;
use atoll_model::{Code, EgressException, Error, NetworkPolicy};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use self::active::ActiveNetwork;
use self::addresses::Addresses;
pub use self::dns::Resolvers;
use self::firewall::Compiled;
pub use self::link::Link;
use self::netlink::{ROUTE, Socket};
use self::veth::LinkNames;
use crate::error::{internal, jail};
use crate::sandbox::run_blocking;

/// Error of a kernel without this netlink protocol.
const PROTONOSUPPORT: i32 = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();

/// Network settings of an instance.
#[derive(Debug, Clone)]
pub struct Config {
    /// File with the claims on address blocks, shared by all instances of a host.
    pub addresses: PathBuf,
    /// Name servers that answer the sandboxes' DNS queries.
    pub resolvers: Resolvers,
    /// Tracked connections of one sandbox, recently closed ones included. At most an eighth of the
    /// host's `nf_conntrack_max`.
    pub connections: u32,
    /// Blocked addresses that the operator opens to sandboxes with a network.
    pub exceptions: Arc<[EgressException]>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: "/run/atoll/addresses".into(),
            resolvers: Resolvers::Host,
            connections: 4096,
            exceptions: Arc::default(),
        }
    }
}

/// The network of an instance, set up by the first [`Network::attach`].
#[derive(Debug)]
pub struct Network {
    tag: String,
    config: Config,
    addresses: Arc<Addresses>,
    active: OnceCell<Arc<ActiveNetwork>>,
}

impl Network {
    /// Creates a network that is not set up yet. `inherited` is the claims file that the keeper
    /// held for the previous server.
    pub fn new(
        tag: impl Into<String>,
        config: Config,
        inherited: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let addresses = match inherited {
            Some(file) => Addresses::from_inherited(file),
            None => Addresses::open(&config.addresses)?,
        };
        Ok(Self {
            tag: tag.into(),
            config,
            addresses: Arc::new(addresses),
            active: OnceCell::new(),
        })
    }

    /// Rejects a policy with rules that can never match an allowed address.
    pub fn check(&self, policy: &NetworkPolicy) -> Result<(), Error> {
        policy.check_reachable(&self.config.exceptions)
    }

    /// The open file whose locks are the claims on addresses, for the keeper to hold.
    pub fn claims(&self) -> BorrowedFd<'_> {
        self.addresses.as_fd()
    }

    /// Adopts the links of a previous server: sandboxes with their addresses and policies, all with
    /// this gateway. Established connections continue. The result is `None` for a link that does
    /// not exist any more. Everything else that the server left is removed. Blocking; must be
    /// called in a tokio runtime before the first attach.
    pub fn resume(
        &self,
        gateway: Ipv4Addr,
        sandboxes: &[(Ipv4Addr, NetworkPolicy)],
    ) -> Result<Vec<Option<Link>>, Error> {
        let compiled: Vec<_> = sandboxes
            .iter()
            .map(|(address, policy)| (*address, Compiled::new(policy)))
            .collect();
        let (tag, config) = (self.tag.clone(), self.config.clone());
        let addresses = Arc::clone(&self.addresses);
        let active = ActiveNetwork::resume(tag, config, addresses, gateway, &compiled)?;
        let links = compiled
            .into_iter()
            .map(|(address, policy)| Link::existing(&active, address, policy))
            .collect();
        self.active
            .set(active)
            .map_err(|error| internal("adopt the network", &error))?;
        Ok(links)
    }

    /// Removes everything that a previous server left.
    pub fn discard_previous(&self) -> Result<(), Error> {
        self.addresses.inherit(&BTreeSet::new());
        remove_leftovers(&self.tag)
    }

    /// Creates a link into a sandbox's network namespace, under a policy. It is removed in the
    /// background after the returned value is dropped.
    pub async fn attach(&self, namespace: OwnedFd, policy: NetworkPolicy) -> Result<Link, Error> {
        policy.check()?;
        let active = self.active.get_or_try_init(|| {
            let (tag, config) = (self.tag.clone(), self.config.clone());
            let addresses = Arc::clone(&self.addresses);
            run_blocking(move || ActiveNetwork::open(tag, config, addresses))
        });
        let active = Arc::clone(active.await?);
        run_blocking(move || Link::create(&active, namespace.as_fd(), &policy)).await
    }

    /// Removes links and rules, and releases the address blocks. Running sandboxes lose their link.
    pub async fn tear_down(&self) -> Result<(), Error> {
        let Some(active) = self.active.get().map(Arc::clone) else {
            return Ok(());
        };
        let addresses = Arc::clone(&self.addresses);
        run_blocking(move || {
            active.close()?;
            addresses.release_all();
            Ok(())
        })
        .await
    }

    /// Stops this server's part. Links and rules stay for the next server.
    pub async fn detach(&self) -> Result<(), Error> {
        let Some(active) = self.active.get().map(Arc::clone) else {
            return Ok(());
        };
        run_blocking(move || {
            active.detach();
            Ok(())
        })
        .await
    }
}

/// Removes the links and rules of an instance that is dead or ends.
pub fn remove_leftovers(tag: &str) -> Result<(), Error> {
    let names = LinkNames::new(tag);
    let links = Socket::open(ROUTE).and_then(|mut socket| {
        let found = veth::list(&mut socket, &names)?;
        veth::delete(&mut socket, &names, &found)
    });
    links.map_err(|error| internal("remove an instance's links", &error))?;
    match firewall::open().and_then(|mut socket| firewall::remove(&mut socket, tag)) {
        // A kernel without nftables has no rules.
        Err(error) if !inventory::is_unsupported(&error) => {
            Err(internal("remove an instance's rules", &error))
        }
        _ => Ok(()),
    }
}

/// Connects to a TCP server in a sandbox's network namespace, its loopback included.
pub async fn dial(namespace: OwnedFd, address: SocketAddr) -> Result<TcpStream, Error> {
    let socket =
        run_blocking(move || netns::dial(namespace.as_fd(), address).map_err(|error| jail(&error)));
    let refused = |error: io::Error| {
        Error::new(
            Code::Conflict,
            format!("no server accepts connections at {address} in the sandbox: {error}"),
        )
        .remedy("start a server on that port")
        .detail("address", address.to_string())
    };
    let stream = TcpStream::from_std(socket.await?.into()).map_err(refused)?;
    stream.writable().await.map_err(refused)?;
    match stream.take_error() {
        Ok(None) => Ok(stream),
        Ok(Some(error)) | Err(error) => Err(refused(error)),
    }
}
