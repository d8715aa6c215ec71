//! Raw frames from a sandbox's network namespace, which the test enters as root of the host. Programs inside cannot open
//! such sockets (B05), so these frames show the host's own check.
//!
//! Two chains of the test record the packets that come from links, one before the rules of the instance and one after.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::Command;

use atoll_jail::netns;
use atoll_model::SandboxId;
use atoll_testkit::run_within;

use super::scene::{HOST, PRIVATE, PUBLIC, Scene, WEB, address_of, links, sh};
use super::{internet, reached, world};
use crate::harness::{DEADLINE, Kind, World};

const SEND: &str = include_str!("frames.py");
/// Port that receives responses.
const PORT: u16 = 40_000;
/// Response of the simulated internet to a datagram.
const ANSWER: &[u8] = b"hello";

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

type Hardware = [u8; 6];

/// The hardware address of both ends of a link.
fn hardware(sandbox: Ipv4Addr) -> Hardware {
    let [a, b, c, d] = sandbox.octets();
    [0x02, 0x61, a, b, c, d]
}

fn frame(to: Hardware, from: Hardware, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

/// A datagram to the port of the server.
fn datagram() -> Vec<u8> {
    let length = 8 + ANSWER.len() as u16;
    let mut bytes = Vec::new();
    // No UDP checksum, which IPv4 allows.
    for field in [PORT, WEB, length, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(ANSWER);
    bytes
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let datagram = datagram();
    let length = 20 + datagram.len() as u16;
    let mut head = vec![0x45, 0];
    head.extend(length.to_be_bytes());
    // No fragmentation; TTL 64; protocol UDP; checksum.
    head.extend([0, 1, 0x40, 0, 64, 17, 0, 0]);
    head.extend(from.octets());
    head.extend(to.octets());
    let words = head
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    head[10..12].copy_from_slice(&sum.to_be_bytes());
    [head, datagram].concat()
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let datagram = datagram();
    let mut head = vec![0x60, 0, 0, 0, 0, datagram.len() as u8, 17, 64];
    head.extend(from.octets());
    head.extend(to.octets());
    [head, datagram].concat()
}

/// ARP operation: 1 is a request, 2 a reply.
fn arp(operation: u8, own: Hardware, from: Ipv4Addr, about: Ipv4Addr) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, operation];
    bytes.extend(own);
    bytes.extend(from.octets());
    bytes.extend([0; 6]);
    bytes.extend(about.octets());
    bytes
}

/// A sandbox with its link.
struct Sender {
    id: SandboxId,
    address: Ipv4Addr,
    link: String,
}

impl Sender {
    async fn make(world: &World) -> Self {
        let before: BTreeSet<String> = links().into_iter().collect();
        let id = world.sandbox_spec(Kind::Static, internet).await;
        let link = links().into_iter().find(|link| !before.contains(link));
        let link = link.unwrap();
        Self {
            id,
            address: address_of(&link),
            link,
        }
    }

    /// From its own hardware address to that of the other end, which is the same.
    fn frame(&self, kind: u16, payload: &[u8]) -> Vec<u8> {
        let own = hardware(self.address);
        frame(own, own, kind, payload)
    }

    /// A frame with the sandbox's own addresses, which is answered.
    fn own(&self) -> Vec<u8> {
        let public = PUBLIC[0].parse().unwrap();
        self.frame(IPV4, &ipv4(self.address, public))
    }

    /// Sends frames. Returns the frames that arrive, up to one that contains `answer`.
    fn send(&self, world: &World, frames: &[Vec<u8>], answer: &[u8]) -> Vec<Vec<u8>> {
        let namespace = netns::of(world.runtime.host_pid(&self.id).unwrap()).unwrap();
        let lines: Vec<String> = frames.iter().map(|frame| hex(frame) + "\n").collect();
        let mut python = Command::new("python3");
        python.args(["-c", SEND, &hex(answer)]);
        let sent = || run_within(&mut python, DEADLINE, lines.concat().as_bytes());
        let output = netns::within(namespace.as_fd(), sent).unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaint}");
        let arrived = String::from_utf8(output.stdout).unwrap();
        arrived.lines().map(bytes).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

fn kind(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[12], frame[13]])
}

/// Records sources and destinations of packets from links, before and after the rules of the instance, and the sources of
/// packets that leave through a link.
fn record_packets() {
    sh("nft add table inet watch");
    for (set, of) in [
        ("sent", "ipv4_addr . ipv4_addr"),
        ("passed", "ipv4_addr . ipv4_addr"),
        ("sent6", "ipv6_addr"),
        ("passed6", "ipv6_addr"),
        ("left", "ifname . ipv4_addr"),
    ] {
        sh(&format!(
            "nft add set inet watch {set} '{{ type {of}; flags dynamic; }}'"
        ));
    }
    for (chain, hook, priority) in [
        ("before", "prerouting", -310),
        ("after", "prerouting", -290),
        ("out", "postrouting", 0),
    ] {
        sh(&format!(
            "nft add chain inet watch {chain} '{{ type filter hook {hook} priority {priority}; }}'"
        ));
    }
    for rule in [
        "before iifname 'atl-*' add @sent { ip saddr . ip daddr }",
        "before iifname 'atl-*' add @sent6 { ip6 saddr }",
        "after iifname 'atl-*' add @passed { ip saddr . ip daddr }",
        "after iifname 'atl-*' add @passed6 { ip6 saddr }",
        "out oifname 'atl-*' add @left { oifname . ip saddr }",
    ] {
        sh(&format!(
            "nft \"add rule inet watch {}\"",
            rule.replace('\'', "\\\"")
        ));
    }
}

/// Returns the elements of a set and empties it.
fn take_recorded(set: &str) -> BTreeSet<String> {
    let list = sh(&format!("nft list set inet watch {set}"));
    sh(&format!("nft flush set inet watch {set}"));
    let elements = list.split_once("elements = {").map_or("", |(_, rest)| rest);
    let elements = elements.split('}').next().unwrap_or_default().split(',');
    let elements = elements.map(|element| element.trim().replace('"', ""));
    elements.filter(|element| !element.is_empty()).collect()
}

fn pairs(sources: &[Ipv4Addr], destinations: &[Ipv4Addr]) -> BTreeSet<String> {
    let of = |from: &Ipv4Addr| {
        let from = *from;
        destinations.iter().map(move |to| format!("{from} . {to}"))
    };
    sources.iter().flat_map(of).collect()
}

#[test]
fn the_host_drops_frames_with_a_source_that_is_not_the_links() {
    Scene::with(async |_| {
        let world = world().await;
        let (sender, neighbour) = (Sender::make(&world).await, Sender::make(&world).await);
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let gateway = address(
            &sh("ip -o -4 addr show")
                .lines()
                .find_map(|line| {
                    let (_, rest) = line.split_once("-gate ")?;
                    let (_, address) = rest.split_once("inet ")?;
                    Some(address.split(['/', ' ']).next()?.to_owned())
                })
                .unwrap(),
        );
        let (host, public) = (address(HOST), address(PUBLIC[0]));
        let foreign = [
            neighbour.address,
            gateway,
            host,
            address(PUBLIC[1]),
            address(PRIVATE[0]),
            address(PRIVATE[3]),
            Ipv4Addr::LOCALHOST,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::BROADCAST,
            Ipv4Addr::new(224, 0, 0, 1),
        ];
        let destinations = [public, host, gateway, neighbour.address];
        let pretended: [Ipv6Addr; 2] = ["fd00:1::66", "2001:db8::66"].map(|it| it.parse().unwrap());
        let host_six: Ipv6Addr = "fd00:1::2".parse().unwrap();
        // With the hardware address of the sender, and with that of the neighbour.
        let (own, others) = (hardware(sender.address), hardware(neighbour.address));
        let mut frames = Vec::new();
        for from in [own, others] {
            for source in foreign {
                for to in destinations {
                    frames.push(frame(own, from, IPV4, &ipv4(source, to)));
                }
            }
            for source in pretended {
                frames.push(frame(own, from, IPV6, &ipv6(source, host_six)));
            }
        }
        frames.push(sender.own());
        let own_pair = pairs(&[sender.address], &[public]);
        let sent = &pairs(&foreign, &destinations) | &own_pair;
        let sent_six: BTreeSet<String> = pretended.iter().map(ToString::to_string).collect();
        record_packets();
        let arrived = sender.send(&world, &frames, ANSWER);
        assert_eq!(
            (take_recorded("sent"), take_recorded("sent6")),
            (sent.clone(), sent_six.clone())
        );
        assert_eq!(
            (take_recorded("passed"), take_recorded("passed6")),
            (own_pair, BTreeSet::new())
        );
        // The neighbour received nothing, and the sender received only the response to its own packet.
        let answer = format!("{} . {public}", sender.link);
        assert_eq!(take_recorded("left"), BTreeSet::from([answer]));
        let answers = arrived.iter().filter(|frame| kind(frame) == IPV4);
        assert_eq!(answers.count(), 1, "{arrived:?}");
        assert_eq!(reached(&world, &sender.id).await, [true, true]);

        // The same frames without the rule.
        sh(&format!(
            "nft flush chain inet atoll_{} leaving",
            world.runtime.tag()
        ));
        take_recorded("passed");
        sender.send(&world, &frames, ANSWER);
        assert_eq!(
            (take_recorded("passed"), take_recorded("passed6")),
            (sent, sent_six)
        );
        world.close().await;
    });
}

/// A link has two ends and no bridge: the host learns nothing from a hardware address.
#[test]
fn a_foreign_hardware_address_gains_nothing() {
    Scene::with(async |_| {
        let world = world().await;
        let (sender, neighbour) = (Sender::make(&world).await, Sender::make(&world).await);
        let (own, others) = (hardware(sender.address), hardware(neighbour.address));
        let public: Ipv4Addr = PUBLIC[0].parse().unwrap();
        let payload = ipv4(sender.address, public);
        record_packets();
        // To the neighbour's hardware address: the host drops the frame, and the link has no other peer.
        let another = ipv4(sender.address, PUBLIC[1].parse().unwrap());
        let frames = [frame(others, own, IPV4, &another), sender.own()];
        sender.send(&world, &frames, ANSWER);
        assert_eq!(take_recorded("sent"), pairs(&[sender.address], &[public]));
        // From the neighbour's hardware address: only the IP address decides, so the sender gets the response.
        let frames = [frame(own, others, IPV4, &payload)];
        let arrived = sender.send(&world, &frames, ANSWER);
        assert!(arrived.iter().all(|frame| frame[..6] == own), "{arrived:?}");
        let answer = format!("{} . {public}", sender.link);
        assert_eq!(take_recorded("left"), BTreeSet::from([answer]));
        world.close().await;
    });
}

#[test]
fn arp_is_neither_answered_nor_learned() {
    Scene::with(async |_| {
        let world = world().await;
        let (sender, neighbour) = (Sender::make(&world).await, Sender::make(&world).await);
        let own = hardware(sender.address);
        let host: Ipv4Addr = HOST.parse().unwrap();
        let request = |from, about| frame([0xff; 6], own, ARP, &arp(1, own, from, about));
        let asks = request(sender.address, host);
        let known = || sh(&format!("ip -4 neigh show dev {}", sender.link));
        let mut frames = vec![
            asks.clone(),
            request(sender.address, neighbour.address),
            request(neighbour.address, host),
            // As unsolicited replies.
            sender.frame(ARP, &arp(2, own, neighbour.address, host)),
            sender.frame(ARP, &arp(2, own, host, host)),
        ];
        frames.push(sender.own());
        let arrived = sender.send(&world, &frames, ANSWER);
        assert!(
            arrived.iter().all(|frame| kind(frame) != ARP),
            "{arrived:?}"
        );
        let learned = known();
        let learned = learned.lines().filter(|line| !line.ends_with("NOARP"));
        assert_eq!(learned.count(), 0, "{}", known());
        assert_eq!(reached(&world, &neighbour.id).await, [true, true]);

        // The same request on a link with ARP.
        sh(&format!("ip link set {} arp on", sender.link));
        let answer = [&ARP.to_be_bytes()[..], &[0, 1, 8, 0, 6, 4, 0, 2]].concat();
        let arrived = sender.send(&world, &[asks], &answer);
        assert!(
            arrived.iter().any(|frame| kind(frame) == ARP),
            "{arrived:?}"
        );
        assert!(known().contains(&sender.address.to_string()), "{}", known());
        world.close().await;
    });
}
