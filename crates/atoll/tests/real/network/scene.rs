//! A simulated host for each test, with an internet that answers on every address, also on those that no sandbox
//! may reach. It consists of network namespaces that are removed with the test.
//!
//! ```text
//! sandboxes ── host 203.0.113.2 ── 203.0.113.1 internet: 1.1.1.1, 9.9.9.9 (names), 10.0.0.1, 169.254.169.254, …
//! ```

use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use atoll_jail::netns;
use atoll_testkit::run;
use atoll_worker::network::{self, Resolvers};

/// The public address of the host.
pub const HOST: &str = "203.0.113.2";
/// Addresses of the internet that a sandbox may reach.
pub const PUBLIC: [&str; 2] = ["1.1.1.1", "9.9.9.9"];
/// Addresses that sandboxes must not reach.
pub const PRIVATE: [&str; 6] = [
    "10.0.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.0.1",
];
/// IPv6 addresses of the internet: the metadata service of some clouds, and a public address.
pub const PRIVATE_SIX: [&str; 1] = ["fd00:ec2::254"];
pub const PUBLIC_SIX: [&str; 1] = ["2001:db8::1"];
/// The port of the server that is on all of them, for connections and for datagrams.
pub const WEB: u16 = 80;
/// Names that the internet knows.
const NAMES: [(&str, [u8; 4]); 3] = [
    ("public", [1, 1, 1, 1]),
    ("metadata", [169, 254, 169, 254]),
    ("inside", [10, 0, 0, 1]),
];

/// A host with its surroundings.
#[derive(Debug)]
pub struct Scene {
    pub internet: OwnedFd,
}

impl Scene {
    /// Runs a test on a simulated host. All threads of the async runtime and all child processes run in its
    /// namespace.
    pub fn with<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F + Send) {
        let host = netns::create().unwrap();
        netns::within(host.as_fd(), || {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let scene = Self::build();
                    let mut runtime = tokio::runtime::Builder::new_multi_thread();
                    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
                    runtime.block_on(async {
                        let limit = Duration::from_mins(2);
                        tokio::time::timeout(limit, test(scene)).await.unwrap();
                    });
                });
                if let Err(panic) = thread.join() {
                    std::panic::resume_unwind(panic);
                }
            });
        })
        .unwrap();
    }

    fn build() -> Self {
        let internet = netns::create().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), internet.as_raw_fd());
        sh("ip link set lo up");
        sh(&format!(
            "ip link add up0 type veth peer name eth0 netns {path}"
        ));
        sh(&format!("ip addr add {HOST}/24 dev up0"));
        sh("ip link set up0 up");
        sh("ip route add default via 203.0.113.1");
        sh("ip -6 addr add fd00:1::2/64 dev up0 nodad");
        sh("ip -6 route add default via fd00:1::1");
        netns::within(internet.as_fd(), || {
            sh("ip link set lo up");
            sh("ip addr add 203.0.113.1/24 dev eth0");
            sh("ip link set eth0 up");
            for address in PUBLIC.iter().chain(&PRIVATE) {
                sh(&format!("ip addr add {address}/32 dev lo"));
            }
            sh("ip -6 addr add fd00:1::1/64 dev eth0 nodad");
            for address in PUBLIC_SIX.iter().chain(&PRIVATE_SIX) {
                sh(&format!("ip -6 addr add {address}/128 dev lo nodad"));
            }
            serve();
            PUBLIC
                .iter()
                .chain(&PRIVATE)
                .for_each(|address| answer(address));
            names();
        })
        .unwrap();
        // Services of an insecurely configured host.
        serve();
        answer(HOST);
        Self { internet }
    }

    /// Network configuration for runtimes on this host.
    pub fn network() -> network::Config {
        network::Config {
            resolvers: Resolvers::Fixed(vec!["9.9.9.9:53".parse().unwrap()]),
            ..network::Config::default()
        }
    }

    /// Connections to a port of an address of the internet.
    pub fn listen(&self, address: &str) -> Receiver<TcpStream> {
        let listener = netns::within(self.internet.as_fd(), || TcpListener::bind(address));
        let listener = listener.unwrap().unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if sender.send(stream).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

/// Waits for the next connection.
pub fn accept(from: &Receiver<TcpStream>) -> TcpStream {
    from.recv_timeout(Duration::from_secs(20)).unwrap()
}

/// Sends data to an echo probe and checks the reply.
pub fn echo(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"again")?;
    stream.read_exact(&mut [0; 5])
}

/// Connects in the network namespace of this thread, and reads the greeting.
pub fn reach(address: &str) -> io::Result<()> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(20))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.read_exact(&mut [0; 5])
}

/// Runs a command in the network namespace of this thread.
#[track_caller]
pub fn sh(line: &str) -> String {
    let output = run(Command::new("sh").args(["-c", line]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Our links in the network namespace of this thread, by name.
pub fn links() -> Vec<String> {
    let mut links = traces();
    links.retain(|name| name.ends_with(|last: char| last.is_ascii_digit()));
    links
}

/// The same, and the gateways of instances.
pub fn traces() -> Vec<String> {
    let all = sh("ip -o link show");
    let names = all.lines().filter_map(|line| line.split(": ").nth(1));
    let names = names.map(|name| name.split('@').next().unwrap_or(name).to_owned());
    names.filter(|name| name.starts_with("atl-")).collect()
}

/// The address that belongs to a link's name.
pub fn address_of(link: &str) -> Ipv4Addr {
    let number: u32 = link.rsplit('-').next().unwrap().parse().unwrap();
    Ipv4Addr::from_bits(atoll_model::SANDBOX_RANGE.first().to_bits() + number)
}

/// Sends a greeting to each connection, in the network namespace of this thread.
fn serve() {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, WEB)).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"hello");
            held.push(stream);
        }
    });
}

/// Responds to datagrams from the address to which they were sent.
fn answer(address: &str) {
    let socket = UdpSocket::bind((address, WEB)).unwrap();
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(b"hello", from);
        }
    });
}

/// A name server.
fn names() {
    let socket = UdpSocket::bind("9.9.9.9:53").unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let mut answer = buffer[..length].to_vec();
            let label = &answer[13..13 + usize::from(answer[12])];
            let known = NAMES.iter().find(|(name, _)| name.as_bytes() == label);
            answer[2] |= 0x80;
            if let Some((_, address)) = known {
                answer[7] = 1;
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
                answer.extend(address);
            } else {
                answer[3] |= 3;
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}
