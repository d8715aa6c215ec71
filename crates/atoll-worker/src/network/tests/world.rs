//! A separate environment for each test: a host, an internet that answers on every blocked address,
//! and sandboxes. All are network namespaces that are removed with the test.
//!
//! ```text
//! sandbox … sandbox ── host 203.0.113.2 ── 203.0.113.1 internet: 1.1.1.1, 10.0.0.1, 169.254.169.254, …
//! ```

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use atoll_jail::netns;
use atoll_model::{NetworkPolicy, PolicyAction};
use atoll_testkit::run;

use crate::network::{Config, Link, Network, Resolvers};

/// The host's public address.
pub(super) const HOST: &str = "203.0.113.2";
/// Public addresses, which a sandbox may reach.
pub(super) const PUBLIC: [&str; 2] = ["1.1.1.1", "9.9.9.9"];
/// Blocked addresses.
pub(super) const PRIVATE: [&str; 9] = [
    "10.0.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.0.1",
    "198.19.255.1",
    "203.0.113.1",
];
/// Port of the TCP server on all of them.
pub(super) const WEB_PORT: u16 = 80;

/// Port for UDP.
pub(super) const ECHO_PORT: u16 = 7;

/// A host and an internet.
pub(super) struct World {
    pub(super) internet: OwnedFd,
    scratch: tempfile::TempDir,
}

impl World {
    /// Runs a test in the namespace of a new host, with all threads of its runtime.
    pub(super) fn with<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F + Send) {
        let host = netns::create().expect("a network namespace");
        let done = netns::within(host.as_fd(), || {
            let world = Self::build();
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let limit = Duration::from_mins(1);
                tokio::time::timeout(limit, test(world))
                    .await
                    .expect("a minute is enough");
            });
        });
        done.expect("a host");
    }

    fn build() -> Self {
        let internet = netns::create().expect("a network namespace");
        let path = format!("/proc/{}/fd/{}", std::process::id(), internet.as_raw_fd());
        sh("ip link set lo up");
        sh(&format!(
            "ip link add up0 type veth peer name eth0 netns {path}"
        ));
        sh(&format!("ip addr add {HOST}/24 dev up0"));
        sh("ip link set up0 up");
        sh("ip route add default via 203.0.113.1");
        netns::within(internet.as_fd(), || {
            sh("ip link set lo up");
            sh("ip addr add 203.0.113.1/24 dev eth0");
            sh("ip link set eth0 up");
            for address in PUBLIC.iter().chain(&PRIVATE) {
                if *address != "203.0.113.1" {
                    sh(&format!("ip addr add {address}/32 dev lo"));
                }
            }
            serve(&format!("0.0.0.0:{WEB_PORT}"));
        })
        .expect("an internet");
        // A server that listens on all addresses of the host.
        serve(&format!("0.0.0.0:{WEB_PORT}"));
        Self {
            internet,
            scratch: tempfile::tempdir().expect("a directory"),
        }
    }

    /// Settings with a separate claims file.
    pub(super) fn config(&self) -> Config {
        Config {
            addresses: self.claims(),
            resolvers: Resolvers::Fixed(Vec::new()),
            ..Config::default()
        }
    }

    fn claims(&self) -> PathBuf {
        self.scratch.path().join("addresses")
    }
}

/// A sandbox as the network sees it: a namespace with a link.
pub(super) struct TestSandbox {
    pub(super) namespace: OwnedFd,
    pub(super) link: Link,
}

impl TestSandbox {
    /// A sandbox without a policy, with a TCP server.
    pub(super) async fn attach(network: &Network) -> Self {
        let namespace = netns::create().expect("a network namespace");
        netns::within(namespace.as_fd(), || {
            sh("ip link set lo up");
            serve(&format!("0.0.0.0:{WEB_PORT}"));
        })
        .expect("inside");
        let link = network
            .attach(copy(&namespace), NetworkPolicy::default())
            .await;
        Self {
            namespace,
            link: link.expect("a link"),
        }
    }

    /// Runs `work` in the sandbox's namespace.
    pub(super) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::within(self.namespace.as_fd(), work).expect("inside")
    }

    /// Connects to a server and reads its greeting.
    pub(super) fn reach(&self, address: &str) -> io::Result<TcpStream> {
        self.inside(|| connect(&format!("{address}:{WEB_PORT}")))
    }

    /// Replaces its policy.
    pub(super) async fn set_policy(&self, allow: &[&str], deny: &[&str], default: PolicyAction) {
        let policy = NetworkPolicy::parse(allow, deny, default).expect("a policy");
        self.link.set_policy(policy).await.expect("a change");
    }
}

pub(super) fn copy(descriptor: &OwnedFd) -> OwnedFd {
    descriptor.try_clone().expect("a copy")
}

/// Runs a command in the network namespace of this thread.
#[track_caller]
pub(super) fn sh(line: &str) -> String {
    let output = run(Command::new("sh").args(["-c", line]));
    let response = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {response}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts a TCP server in the network namespace of this thread that sends a greeting, then echoes.
pub(super) fn serve(address: &str) {
    let listener = TcpListener::bind(address).expect(address);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                let _ = stream.write_all(b"hello");
                let _ = io::copy(&mut stream.try_clone().expect("a copy"), &mut stream);
            });
        }
    });
}

/// Connects in the network namespace of this thread, and reads the greeting.
pub(super) fn connect(address: &str) -> io::Result<TcpStream> {
    let address: SocketAddr = address.parse().expect("an address");
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    (&stream).read_exact(&mut [0; 5])?;
    Ok(stream)
}

/// Sends bytes on a connection and reads the echo.
pub(super) fn echo(mut stream: &TcpStream) -> io::Result<()> {
    stream.write_all(b"again")?;
    stream.read_exact(&mut [0; 5])
}

/// Opens a UDP socket with a short read timeout in the network namespace of this thread.
pub(super) fn udp_socket() -> UdpSocket {
    let socket = UdpSocket::bind(("0.0.0.0", ECHO_PORT)).expect("bind");
    let timeout = Some(Duration::from_millis(100));
    socket.set_read_timeout(timeout).expect("a timeout");
    socket
}

/// Whether a datagram sent by `from` reaches `to`.
pub(super) fn is_delivered(from: &UdpSocket, to: &UdpSocket, address: &str) -> bool {
    to.set_read_timeout(Some(Duration::from_millis(300)))
        .expect("a timeout");
    let sent = from.send_to(b"hello", address);
    sent.is_ok() && to.recv_from(&mut [0; 16]).is_ok()
}
