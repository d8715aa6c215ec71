//! The network `internet`: a link for each sandbox, rules about what may pass it, and names.
//!
//! ```text
//! sandbox  eth0 198.18.0.9 ── atl-TAG-9   atl-TAG-gate 198.18.0.1 (names)   table atoll_TAG ── the host's way out
//! ```
//! No bridge: each link has a route at either end, and one address is the gateway of all. Nothing is set up before the
//! first sandbox asks for it. All of it is in the network namespace of the thread that asked first,
//! and carries the instance's tag: links by name and group, rules by table. The only other thing
//! that is touched is `net.ipv4.ip_forward`, which is turned on if it is off and stays so: nobody
//! can tell who else relies on it by then.
//!
//! Nothing here trusts what is inside: a sandbox that had every right in its network namespace could
//! take its own end away, and no more.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_jail::netns;
use atoll_model::{Code, EgressException, Error, Policy};
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

/// What a kernel answers that was built without a kind of netlink.
const PROTONOSUPPORT: i32 = rustix::io::Errno::PROTONOSUPPORT.raw_os_error();

/// How an instance's network is set up.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file of claims on addresses, shared by all instances of a host.
    pub addresses: PathBuf,
    /// Who is asked for names.
    pub resolvers: Resolvers,
    /// Connections of one sandbox at once, those that were closed lately included. Never more than
    /// an eighth of what the host can remember.
    pub connections: u32,
    /// Refused addresses that the operator opens to sandboxes with a network.
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

/// The network of an instance.
#[derive(Debug)]
pub struct Network {
    tag: String,
    config: Config,
    addresses: Arc<Addresses>,
    active: OnceCell<Arc<ActiveNetwork>>,
}

impl Network {
    /// One that is set up when the first sandbox needs it. `held` is what a keeper held of the
    /// server before: its claims on addresses.
    pub fn new(
        tag: impl Into<String>,
        config: Config,
        inherited: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let addresses = match inherited {
            Some(file) => Addresses::take_over(file),
            None => Addresses::open(&config.addresses)?,
        };
        Ok(Self {
            tag: tag.into(),
            config,
            addresses: Arc::new(addresses),
            active: OnceCell::new(),
        })
    }

    /// Refuses a policy with rules that can never open anything.
    pub fn check(&self, policy: &Policy) -> Result<(), Error> {
        policy.check_reachable(&self.config.exceptions)
    }

    /// What holds its claims on addresses as long as somebody has it open.
    pub fn claims(&self) -> BorrowedFd<'_> {
        self.addresses.as_fd()
    }

    /// Goes on with the links of a server that is gone: sandboxes with their addresses and policies,
    /// all with this gateway. Established connections go on. A link that is not there any more is
    /// not returned. Everything else that server left is taken away. Blocks, and must be called
    /// within a tokio runtime, before anything is attached.
    pub fn resume(
        &self,
        gateway: Ipv4Addr,
        sandboxes: &[(Ipv4Addr, Policy)],
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
            .map_err(|error| internal("go on with the network", &error))?;
        Ok(links)
    }

    /// Nothing of a server before is gone on with: what it left is taken away.
    pub fn discard_previous(&self) -> Result<(), Error> {
        self.addresses.inherit(&BTreeSet::new());
        remove_leftovers(&self.tag)
    }

    /// Links a sandbox's network namespace with the world, under a policy. The link is gone some
    /// time after what this returns was dropped.
    pub async fn attach(&self, namespace: OwnedFd, policy: Policy) -> Result<Link, Error> {
        policy.check()?;
        let active = self.active.get_or_try_init(|| {
            let (tag, config) = (self.tag.clone(), self.config.clone());
            let addresses = Arc::clone(&self.addresses);
            run_blocking(move || ActiveNetwork::open(tag, config, addresses))
        });
        let active = Arc::clone(active.await?);
        run_blocking(move || Link::create(&active, namespace.as_fd(), &policy)).await
    }

    /// Removes links and rules, and releases the blocks of addresses. Sandboxes that still have a link lose it.
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

    /// Ends our part of it. Links and rules stay for the next server.
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

/// Takes away the links and rules that an instance left. It is dead, or about to be.
pub fn remove_leftovers(tag: &str) -> Result<(), Error> {
    let names = LinkNames::new(tag);
    let links = Socket::open(ROUTE).and_then(|mut socket| {
        let found = veth::list(&mut socket, &names)?;
        veth::delete(&mut socket, &names, &found)
    });
    links.map_err(|error| internal("remove an instance's links", &error))?;
    match firewall::open().and_then(|mut socket| firewall::remove(&mut socket, tag)) {
        // A kernel without rules has none of ours.
        Err(error) if !inventory::is_unsupported(&error) => {
            Err(internal("remove an instance's rules", &error))
        }
        _ => Ok(()),
    }
}

/// Connects to a TCP server inside a sandbox's network namespace, on its loopback too.
pub async fn dial(namespace: OwnedFd, address: SocketAddr) -> Result<TcpStream, Error> {
    let socket =
        run_blocking(move || netns::dial(namespace.as_fd(), address).map_err(|error| jail(&error)));
    let refused = |error: io::Error| {
        Error::new(
            Code::Conflict,
            format!("nothing answers at {address} in the sandbox: {error}"),
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
