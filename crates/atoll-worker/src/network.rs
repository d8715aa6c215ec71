//! The network `internet`: a link for each sandbox, rules about what may pass it, and names.
//!
//! ```text
//! sandbox  eth0 198.18.0.9 ── atl-TAG-9 198.18.0.1 (gateway, names)   table atoll_TAG ── the host's way out
//! ```
//! No bridge: each link has two addresses and a route between them. Nothing is set up before the
//! first sandbox asks for it. All of it is in the network namespace of the thread that asked first,
//! and carries the instance's tag: links by name and group, rules by table. The only other thing
//! that is touched is `net.ipv4.ip_forward`, which is turned on if it is off and stays so: nobody
//! can tell who else relies on it by then.
//!
//! What goes on inside a sandbox's network namespace is decided by its kernel settings, never by
//! its programs, which lack `CAP_NET_ADMIN`.

mod addresses;
mod dns;
mod firewall;
mod flows;
mod janitor;
mod link;
mod netlink;
pub mod ports;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_jail::netns;
use atoll_model::{Code, Error, Policy};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use self::addresses::Addresses;
pub use self::dns::Resolvers;
use self::dns::{Forwarder, PORT};
use self::firewall::Compiled;
use self::janitor::{Janitor, Leaving};
use self::link::{Family, Ipv6};
use self::netlink::{ROUTE, Socket};
use crate::error::{internal, jail};
use crate::sandbox::blocking;

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
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: "/run/atoll/addresses".into(),
            resolvers: Resolvers::Host,
            connections: 4096,
        }
    }
}

/// The network of an instance.
#[derive(Debug)]
pub struct Network {
    tag: String,
    config: Config,
    ready: OnceCell<Arc<Ready>>,
}

impl Network {
    /// One that is set up when the first sandbox needs it.
    pub fn new(tag: impl Into<String>, config: Config) -> Self {
        Self {
            tag: tag.into(),
            config,
            ready: OnceCell::new(),
        }
    }

    /// Links a sandbox's network namespace with the world, under a policy. The link is gone some
    /// time after what this returns was dropped.
    pub async fn attach(&self, namespace: OwnedFd, policy: Policy) -> Result<Link, Error> {
        policy.check()?;
        let ready = self.ready.get_or_try_init(|| {
            let (tag, config) = (self.tag.clone(), self.config.clone());
            blocking(move || Ready::open(tag, config).map(Arc::new))
        });
        let ready = Arc::clone(ready.await?);
        blocking(move || Link::make(ready, namespace.as_fd(), &policy)).await
    }

    /// Takes everything away. Sandboxes that still have a link lose it.
    pub async fn dismantle(&self) -> Result<(), Error> {
        let Some(ready) = self.ready.get().map(Arc::clone) else {
            return Ok(());
        };
        blocking(move || {
            lock(&ready.forwarder).take();
            ready.janitor.finish();
            collect(&ready.tag)
        })
        .await
    }
}

/// Takes away the links and rules that an instance left. It is dead, or about to be.
pub fn collect(tag: &str) -> Result<(), Error> {
    let family = Family::of(tag);
    let links = Socket::open(ROUTE).and_then(|mut socket| {
        let found = link::list(&mut socket, &family)?;
        link::delete(&mut socket, &family, &found)
    });
    links.map_err(|error| internal("remove an instance's links", &error))?;
    match firewall::open().and_then(|mut socket| firewall::remove(&mut socket, tag)) {
        // A kernel without rules has none of ours.
        Err(error) if error.kind() != io::ErrorKind::Unsupported => {
            Err(internal("remove an instance's rules", &error))
        }
        _ => Ok(()),
    }
}

/// An instance's network that was set up.
#[derive(Debug)]
struct Ready {
    tag: String,
    family: Family,
    gateway: Ipv4Addr,
    ipv6: Ipv6,
    addresses: Arc<Addresses>,
    links: Mutex<Socket>,
    rules: Mutex<Socket>,
    janitor: Janitor,
    forwarder: Mutex<Option<Forwarder>>,
}

impl Ready {
    fn open(tag: String, config: Config) -> Result<Self, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let addresses = Arc::new(Addresses::open(&config.addresses)?);
        let gateway = addresses.take()?;
        let links = Socket::open(ROUTE).map_err(failed("speak with the kernel about links"))?;
        let rules = firewall::open().map_err(failed("speak with the kernel about rules"))?;
        let sockets = dns::listen(gateway, PORT).map_err(failed("listen for names"))?;
        forward().map_err(failed("turn net.ipv4.ip_forward on"))?;
        let forwarder = Forwarder::start(sockets, config.resolvers);
        let forwarder = forwarder.map_err(failed("start the forwarder of names"))?;
        let janitor = Janitor::start(&tag, Arc::clone(&addresses));
        let janitor = janitor.map_err(failed("start the janitor of links"))?;
        let ipv6 = match fs::exists("/proc/sys/net/ipv6") {
            Ok(true) => Ipv6::Known,
            _ => Ipv6::Unknown,
        };
        firewall::install(&tag, gateway, config.connections.min(most_connections()))?;
        Ok(Self {
            family: Family::of(&tag),
            tag,
            gateway,
            ipv6,
            addresses,
            links: Mutex::new(links),
            rules: Mutex::new(rules),
            janitor,
            forwarder: Mutex::new(Some(forwarder)),
        })
    }
}

/// Lets the host pass packets on.
fn forward() -> io::Result<()> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    if fs::read_to_string(path)?.trim() == "0" {
        fs::write(path, "1")?;
    }
    Ok(())
}

/// No sandbox may take so much of what the host can remember that others go short.
fn most_connections() -> u32 {
    let path = "/proc/sys/net/netfilter/nf_conntrack_max";
    let most = fs::read_to_string(path).ok();
    let most = most.and_then(|text| text.trim().parse::<u32>().ok());
    most.map_or(u32::MAX, |most| (most / 8).max(64))
}

/// A sandbox's link. It is taken away when this is dropped.
#[derive(Debug)]
pub struct Link {
    ready: Arc<Ready>,
    name: String,
    address: Ipv4Addr,
    /// Nothing once the link was given up: a change that comes late must not concern the next
    /// sandbox with this address.
    policy: Arc<Mutex<Option<Compiled>>>,
}

impl Link {
    /// Every failure drops the link, and with it whatever was made.
    fn make(ready: Arc<Ready>, namespace: BorrowedFd<'_>, policy: &Policy) -> Result<Self, Error> {
        let failed = |step: &'static str| move |error: io::Error| internal(step, &error);
        let address = ready.addresses.take()?;
        let link = Self {
            name: format!("{}{}", ready.family.prefix(), addresses::number(address)),
            ready,
            address,
            policy: Arc::new(Mutex::new(Some(Compiled::default()))),
        };
        let ready = &link.ready;
        let inside = netns::within(namespace, || {
            without_ipv6()?;
            Socket::open(ROUTE)
        });
        let inside = inside.map_err(|error| jail(&error))?;
        let mut inside = inside.map_err(failed("prepare a sandbox's network namespace"))?;
        {
            let mut links = lock(&ready.links);
            link::pair(&mut links, &ready.family, &link.name, address, namespace)
                .and_then(|index| {
                    link::outside(&mut links, index, ready.gateway, address, ready.ipv6)
                })
                .map_err(failed("make a sandbox's link"))?;
        }
        // Before there is a way out.
        link.enforce(policy)?;
        link::inside(&mut inside, ready.gateway, address)
            .and_then(|()| link::settle(&mut lock(&ready.links), &link.name))
            .map_err(failed("set a sandbox's end of its link up"))?;
        Ok(link)
    }

    /// The sandbox's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What `/etc/resolv.conf` in the sandbox has to say.
    pub fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.ready.gateway)
    }

    /// Changes what the sandbox may reach, at once. Connections that the new policy forbids are cut.
    pub async fn set_policy(&self, policy: Policy) -> Result<(), Error> {
        policy.check()?;
        let (ready, address) = (Arc::clone(&self.ready), self.address);
        let current = Arc::clone(&self.policy);
        blocking(move || enforce(&ready, address, &current, &policy)).await
    }

    fn enforce(&self, policy: &Policy) -> Result<(), Error> {
        enforce(&self.ready, self.address, &self.policy, policy)
    }
}

fn enforce(
    ready: &Ready,
    address: Ipv4Addr,
    current: &Mutex<Option<Compiled>>,
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
        self.ready.janitor.take(Leaving {
            name: std::mem::take(&mut self.name),
            address: self.address,
            policy: lock(&self.policy).take().unwrap_or_default(),
        });
    }
}

/// Links that are made from now on in this thread's namespace get no IPv6. Loopback keeps `::1`.
fn without_ipv6() -> io::Result<()> {
    match fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Connects to a TCP server inside a sandbox's network namespace, on its loopback too.
pub async fn dial(namespace: OwnedFd, address: SocketAddr) -> Result<TcpStream, Error> {
    let socket =
        blocking(move || netns::dial(namespace.as_fd(), address).map_err(|error| jail(&error)));
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
