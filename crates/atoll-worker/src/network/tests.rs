//! What sandboxes can and cannot reach, tested with packets.

pub(super) mod dns;
mod exceptions;
mod world;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_jail::netns;
use atoll_model::PolicyAction::{Allow, Deny};
use atoll_model::{NetworkPolicy, PolicyAction};
use atoll_testkit::wait_for;
use tokio::io::AsyncReadExt;

use self::world::{
    HOST, PRIVATE, PUBLIC, TestSandbox, WEB_PORT, World, copy, echo, is_delivered, serve, sh,
};
use super::{Config, Network, Resolvers, dial, inventory, ports, remove_leftovers};

#[test]
fn public_addresses_are_reached_and_all_others_are_rejected() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let (sandbox, neighbour) = (
            TestSandbox::attach(&network).await,
            TestSandbox::attach(&network).await,
        );
        let other = Network::new("bbbb", world.config(), None).expect("a network");
        let foreign_sandbox = TestSandbox::attach(&other).await;
        let gateway = sandbox.link.network.gateway().to_string();
        let near = [&neighbour, &foreign_sandbox].map(|sandbox| sandbox.link.address().to_string());
        let refused: Vec<&str> = PRIVATE
            .into_iter()
            .chain([HOST, &gateway, &near[0], &near[1]])
            .collect();
        for address in PUBLIC {
            sandbox.reach(address).expect(address);
        }
        for address in &refused {
            let error = sandbox.reach(address).expect_err(address);
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::ConnectionRefused,
                "{address}"
            );
        }
        // UDP is blocked, too.
        let servers = [
            netns::within(world.internet.as_fd(), world::udp_socket).expect("internet"),
            world::udp_socket(),
            neighbour.inside(world::udp_socket),
            foreign_sandbox.inside(world::udp_socket),
        ];
        let client = sandbox.inside(world::udp_socket);
        for address in &refused {
            let _ = client.send_to(address.as_bytes(), (*address, world::ECHO_PORT));
        }
        let heard = |server: &UdpSocket| {
            let mut buffer = [0; 32];
            let length = server.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        assert_eq!(servers.each_ref().map(heard), [const { None }; 4]);
        // Not even with a policy that allows it.
        sandbox.set_policy(&["0.0.0.0/0"], &[], Deny).await;
        for address in &refused {
            sandbox.reach(address).expect_err(address);
        }
        // Control: without the rules, but with masquerade, all servers answer.
        for tag in ["aaaa", "bbbb"] {
            sh(&format!("nft flush table inet atoll_{tag}"));
        }
        sh("nft add table ip nat");
        sh("nft add chain ip nat out '{ type nat hook postrouting priority 100; }'");
        sh("nft add rule ip nat out oifname up0 masquerade");
        for address in refused {
            sandbox.reach(address).expect(address);
            client
                .send_to(address.as_bytes(), (address, world::ECHO_PORT))
                .expect("send");
            let response = servers.iter().find_map(heard);
            assert_eq!(response.expect("a word"), address);
        }
    });
}

#[test]
fn policy_applies_by_address_and_port() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let (sandbox, free) = (
            TestSandbox::attach(&network).await,
            TestSandbox::attach(&network).await,
        );
        type Case<'a> = (&'a [&'a str], &'a [&'a str], PolicyAction, [bool; 2]);
        let cases: [Case<'_>; 9] = [
            (&[], &[], Allow, [true, true]),
            (&[], &[], Deny, [false, false]),
            (&["1.1.1.1"], &[], Deny, [true, false]),
            (&["1.1.1.1:80", "9.9.9.9:81"], &[], Deny, [true, false]),
            (&["0.0.0.0/0:80"], &["9.0.0.0/8"], Deny, [true, true]),
            (&[], &["9.9.9.9"], Allow, [true, false]),
            (&[], &["9.9.9.9:81", "1.1.1.0/24:80"], Allow, [false, true]),
            (
                &["1.1.1.1"],
                &["1.0.0.0/8", "1.1.0.0/16"],
                Allow,
                [true, true],
            ),
            (&["8.8.8.8"], &["0.0.0.0/0"], Allow, [false, false]),
        ];
        for (allow, deny, default, expected) in cases {
            sandbox.set_policy(allow, deny, default).await;
            let reached = PUBLIC.map(|address| sandbox.reach(address).is_ok());
            assert_eq!(reached, expected, "{allow:?} {deny:?} {default:?}");
            assert!(
                PUBLIC.iter().all(|address| free.reach(address).is_ok()),
                "other sandboxes are not affected"
            );
        }
    });
}

#[test]
fn policy_change_cuts_established_connections() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let sandbox = TestSandbox::attach(&network).await;
        let [cut, kept] = PUBLIC.map(|address| sandbox.reach(address).expect(address));
        let server = netns::within(world.internet.as_fd(), || UdpSocket::bind("1.1.1.1:7"));
        let server = server.expect("internet").expect("bind");
        let client = sandbox
            .inside(|| UdpSocket::bind("0.0.0.0:7"))
            .expect("bind");
        assert!(is_delivered(&client, &server, "1.1.1.1:7"));
        // A server that keeps sending: nothing of it may come in.
        let back = format!("{HOST}:7");
        assert!(is_delivered(&server, &client, &back));
        sandbox.set_policy(&[], &["1.1.1.1"], Allow).await;
        assert!(!is_delivered(&server, &client, &back));
        assert!(!is_delivered(&client, &server, "1.1.1.1:7"));
        assert!(echo(&cut).is_err());
        echo(&kept).expect("the other connection continues");
        sandbox.set_policy(&[], &[], Allow).await;
        assert!(
            is_delivered(&server, &client, &back),
            "control: the same probe without the rule"
        );
    });
}

#[test]
fn spoofed_sources_and_ipv6_are_dropped() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let (sandbox, neighbour) = (
            TestSandbox::attach(&network).await,
            TestSandbox::attach(&network).await,
        );
        let server = netns::within(world.internet.as_fd(), || UdpSocket::bind("1.1.1.1:7"));
        let server = server.expect("internet").expect("bind");
        let here = UdpSocket::bind("[::]:7").expect("bind");
        let link = sandbox.link.name.clone();
        let inside = sandbox.inside(|| sh("ip addr show eth0"));
        assert!(!inside.contains("inet6"), "{inside}");
        let nowhere = sandbox.inside(|| {
            let socket = UdpSocket::bind("[::]:0").expect("bind");
            socket.connect("[2001:db8::1]:7")
        });
        assert!(nowhere.is_err());
        assert!(!sh(&format!("ip addr show {link}")).contains("inet6"));
        sh(&format!("ip addr add fd99::1/64 dev {link} nodad"));
        let [own, of_neighbour, of_internet, six] = sandbox.inside(|| {
            // As if it had all capabilities in its namespace.
            sh("ip addr add fd99::2/64 dev eth0 nodad");
            sh(&format!("ip addr add {} dev lo", neighbour.link.address()));
            sh("ip addr add 9.9.9.9 dev lo");
            [
                format!("{}:7", sandbox.link.address()),
                format!("{}:7", neighbour.link.address()),
                "9.9.9.9:7".to_owned(),
                "[fd99::2]:7".to_owned(),
            ]
            .map(|address| UdpSocket::bind(&address).expect(&address))
        });
        assert!(is_delivered(&own, &server, "1.1.1.1:7"));
        assert!(!is_delivered(&of_neighbour, &server, "1.1.1.1:7"));
        assert!(!is_delivered(&of_internet, &server, "1.1.1.1:7"));
        assert!(!is_delivered(&six, &here, "[fd99::1]:7"));
        // Control: without the rule.
        sh("nft flush chain inet atoll_aaaa leaving");
        assert!(is_delivered(&of_neighbour, &server, "1.1.1.1:7"));
        assert!(is_delivered(&of_internet, &server, "1.1.1.1:7"));
        assert!(
            !is_delivered(&six, &here, "[fd99::1]:7"),
            "a second rule drops it"
        );
        sh("nft flush chain inet atoll_aaaa to_host");
        assert!(is_delivered(&six, &here, "[fd99::1]:7"));
    });
}

#[test]
fn no_packet_is_lost_right_after_a_link_is_created() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let server = netns::within(world.internet.as_fd(), || UdpSocket::bind("1.1.1.1:7"));
        let server = server.expect("internet").expect("bind");
        for round in 0..20 {
            let namespace = netns::create().expect("a network namespace");
            let link = network
                .attach(copy(&namespace), NetworkPolicy::default())
                .await;
            let _link = link.expect("a link");
            let client = netns::within(namespace.as_fd(), || UdpSocket::bind("0.0.0.0:0"));
            let client = client.expect("inside").expect("bind");
            client.send_to(b"hello", "1.1.1.1:7").expect("send");
            let timeout = Some(Duration::from_secs(30));
            server.set_read_timeout(timeout).expect("a timeout");
            let (_, from) = server.recv_from(&mut [0; 16]).expect("the first word");
            server.send_to(b"hello", from).expect("send");
            client.set_read_timeout(timeout).expect("a timeout");
            let heard = client.recv(&mut [0; 16]);
            assert!(heard.is_ok(), "the first answer of round {round} was lost");
        }
    });
}

#[test]
fn deleted_rules_are_restored_with_the_policies() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let sandbox = TestSandbox::attach(&network).await;
        sandbox.set_policy(&[], &["9.9.9.9"], Allow).await;
        for _ in 0..2 {
            // As a firewall reload does.
            sh("nft flush ruleset");
            wait_for("the rules", Duration::from_mins(1), || {
                let listed = sh("nft list ruleset; ip link show up");
                listed.contains(": jump out_") && listed.contains(&sandbox.link.name)
            });
            sandbox.reach("1.1.1.1").expect("public");
            for address in ["9.9.9.9", HOST, "10.0.0.1"] {
                sandbox.reach(address).expect_err(address);
            }
        }
        network.tear_down().await.expect("tear down");
        assert_eq!(sh("nft list tables"), "");
        let late = netns::create().expect("a network namespace");
        let late = network.attach(late, NetworkPolicy::default()).await;
        assert!(late.is_err(), "the network is closed");
    });
}

#[test]
fn host_addresses_do_not_change_with_a_sandbox() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let first = TestSandbox::attach(&network).await;
        let gateway = first.link.network.gateway().to_string();
        let addresses = || sh("ip -o address");
        let before = addresses();
        assert!(before.contains(&gateway), "{before}");
        let second = TestSandbox::attach(&network).await;
        second.reach("1.1.1.1").expect("public");
        assert_eq!(addresses(), before);
        let name = second.link.name.clone();
        drop(second);
        let gone = || !sh("ip -o link").contains(&format!(" {name}@"));
        wait_for("the link's end", Duration::from_mins(1), gone);
        assert_eq!(addresses(), before);
        first.reach("1.1.1.1").expect("public");
    });
}

#[test]
fn gateway_answers_dns_for_sandboxes_only() {
    World::with(async |world| {
        let upstream = netns::within(world.internet.as_fd(), || UdpSocket::bind("9.9.9.9:53"));
        let upstream = upstream.expect("internet").expect("bind");
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = upstream.recv_from(&mut buffer) {
                let metadata = buffer[12..].starts_with(b"\x08metadata");
                let address = if metadata {
                    [169, 254, 169, 254]
                } else {
                    [1, 1, 1, 1]
                };
                let response = dns::answer(&buffer[..length], &[(1, &address)]);
                upstream.send_to(&response, from).expect("send");
            }
        });
        let config = Config {
            resolvers: Resolvers::Fixed(vec!["9.9.9.9:53".parse().expect("address")]),
            ..world.config()
        };
        let network = Network::new("aaaa", config, None).expect("a network");
        let sandbox = TestSandbox::attach(&network).await;
        // DNS works even if nothing else is allowed.
        sandbox.set_policy(&[], &[], Deny).await;
        let server = sandbox.link.resolv_conf();
        let server = server
            .trim()
            .strip_prefix("nameserver ")
            .expect("a name server");
        let ask = |socket: &UdpSocket, name: &str| {
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .expect("timeout");
            socket
                .send_to(&dns::query(name, 1), (server, 53))
                .expect("send");
            let mut buffer = [0; 512];
            socket
                .recv(&mut buffer)
                .map(|length| buffer[..length].to_vec())
        };
        let inside = sandbox
            .inside(|| UdpSocket::bind("0.0.0.0:0"))
            .expect("bind");
        let response = ask(&inside, "example.com").expect("an answer");
        assert!(response.ends_with(&[1, 1, 1, 1]));
        let response = ask(&inside, "metadata.example.com").expect("an answer");
        assert_eq!((response[3] & 0xf, response[7]), (0, 0));
        // A neighbour of the host that has a route.
        let outside = netns::within(world.internet.as_fd(), || {
            sh(&format!("ip route add {server} via {HOST}"));
            UdpSocket::bind("203.0.113.1:0")
        });
        let outside = outside.expect("internet").expect("bind");
        assert!(ask(&outside, "example.com").is_err());
        sh("nft flush chain inet atoll_aaaa prerouting");
        assert!(
            ask(&outside, "example.com").is_ok(),
            "control: the same without the rule"
        );
    });
}

#[test]
fn only_replies_come_in() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let sandbox = TestSandbox::attach(&network).await;
        let address = sandbox.link.address();
        let connect_in = || {
            netns::within(world.internet.as_fd(), || {
                world::connect(&format!("{address}:{WEB_PORT}"))
            })
            .expect("internet")
        };
        netns::within(world.internet.as_fd(), || {
            sh(&format!("ip route add {address} via {HOST}"));
        })
        .expect("internet");
        assert!(connect_in().is_err());
        for chain in ["arriving", "leaving", "beyond", "postrouting"] {
            sh(&format!("nft flush chain inet atoll_aaaa {chain}"));
        }
        connect_in().expect("control: the same without the rules");
    });
}

#[test]
fn connections_of_a_sandbox_are_limited() {
    World::with(async |world| {
        let config = Config {
            connections: 5,
            ..world.config()
        };
        let network = Network::new("aaaa", config, None).expect("a network");
        let (greedy, other) = (
            TestSandbox::attach(&network).await,
            TestSandbox::attach(&network).await,
        );
        let held: Vec<_> = (0..5)
            .map(|_| greedy.reach("1.1.1.1").expect("within the limit"))
            .collect();
        assert!(greedy.reach("1.1.1.1").is_err());
        assert!(other.reach("1.1.1.1").is_ok());
        assert!(echo(&held[0]).is_ok());
    });
}

/// Interface names of sandboxes' links.
fn links() -> String {
    sh("ip -o link | grep -o 'atl-[a-z0-9]*-[0-9]*' | grep '[0-9]$' || true")
}

#[test]
fn removed_link_takes_its_elements_and_flows_along() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let sandbox = TestSandbox::attach(&network).await;
        sandbox.set_policy(&["1.1.1.1"], &["9.9.9.9:1"], Deny).await;
        let _open = sandbox.reach("1.1.1.1").expect("public");
        let address = sandbox.link.address().to_string();
        let remembered = || {
            let flows = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
            flows.expect("flows").contains(&format!("src={address} "))
        };
        assert!(remembered());
        assert!(sh("nft list table inet atoll_aaaa").contains(&format!("{address} : jump")));
        let TestSandbox { link, namespace } = sandbox;
        drop(link);
        wait_for("the link to go", Duration::from_mins(1), || {
            links().is_empty()
        });
        wait_for("its flows to go", Duration::from_mins(1), || !remembered());
        assert!(!sh("nft list table inet atoll_aaaa").contains(&format!("{address} : jump")));
        // The namespace can be attached again, with another address.
        let again = network
            .attach(namespace, NetworkPolicy::default())
            .await
            .expect("a link");
        assert_ne!(again.address().to_string(), address);
    });
}

#[test]
fn removal_affects_only_links_and_rules_of_the_instance() {
    World::with(async |world| {
        sh("nft add table inet theirs");
        let before = sh("ip -o link | wc -l; nft list tables");
        let [one, other] =
            ["aaaa", "bbbb"].map(|tag| Network::new(tag, world.config(), None).expect("a network"));
        let unused = Network::new("cccc", world.config(), None).expect("a network");
        let sandboxes = [
            TestSandbox::attach(&one).await,
            TestSandbox::attach(&one).await,
        ];
        let foreign_sandbox = TestSandbox::attach(&other).await;
        one.tear_down().await.expect("tear down");
        unused.tear_down().await.expect("nothing to do");
        let left = links();
        assert_eq!(left.trim(), foreign_sandbox.link.name);
        foreign_sandbox.reach("1.1.1.1").expect("it goes on");
        drop(sandboxes);
        // As if its process had been killed.
        foreign_sandbox.link.network.mark_closed();
        std::mem::forget(foreign_sandbox);
        remove_leftovers("bbbb").expect("remove leftovers");
        remove_leftovers("bbbb").expect("nothing left to do");
        assert_eq!(sh("ip -o link | wc -l; nft list tables"), before);
    });
}

/// Whether the forwarder answers a sandbox's query, if only with an error.
fn answers_names(sandbox: &TestSandbox) -> bool {
    let gateway = sandbox.link.gateway();
    sandbox.inside(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        let timeout = Some(Duration::from_secs(5));
        socket.set_read_timeout(timeout).expect("a timeout");
        let sent = socket.send_to(&dns::query("public.test", 1), (gateway, 53));
        sent.is_ok() && socket.recv(&mut [0; 512]).is_ok()
    })
}

#[test]
fn block_in_rules_or_links_of_another_instance_is_skipped() {
    World::with(async |world| {
        let open = |tag| Network::new(tag, world.config(), None).expect("a network");
        let killed = open("aaaa");
        let sandbox = TestSandbox::attach(&killed).await;
        assert!(answers_names(&sandbox));
        let stale = sandbox.link.gateway();
        // As after a SIGKILL: rules and gateway exist, locks on addresses do not.
        killed.detach().await.expect("detach");
        drop((sandbox, killed));
        assert_eq!(
            inventory::tags().expect("tags"),
            BTreeSet::from(["aaaa".to_owned()])
        );
        for (tag, change) in [
            ("bbbb", "true"),
            // The rules alone are sufficient.
            ("cccc", "ip link del atl-aaaa-gate"),
        ] {
            sh(change);
            let next = open(tag);
            let sandbox = TestSandbox::attach(&next).await;
            assert_ne!(sandbox.link.gateway(), stale);
            assert!(answers_names(&sandbox), "{tag}");
            next.tear_down().await.expect("tear down");
        }
        remove_leftovers("aaaa").expect("remove leftovers");
        assert!(inventory::tags().expect("tags").is_empty());
        let last = open("dddd");
        let sandbox = TestSandbox::attach(&last).await;
        assert_eq!(sandbox.link.gateway(), stale, "the block is free again");
        last.tear_down().await.expect("tear down");
    });
}

#[test]
fn namespace_of_another_user_namespace_can_be_attached() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        // As of sandboxes: a network namespace in a user namespace.
        let mut process = Command::new("unshare")
            .args(["--user", "--map-root-user", "--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut stdin = process.stdin.take().expect("stdin");
        stdin.write_all(b"x").expect("write");
        let mut stdout = process.stdout.take().expect("stdout");
        stdout.read_exact(&mut [0]).expect("it runs");
        let namespace = netns::of(process.id() as i32).expect("its namespace");
        let link = network
            .attach(copy(&namespace), NetworkPolicy::default())
            .await;
        let sandbox = TestSandbox {
            namespace,
            link: link.expect("a link"),
        };
        sandbox.reach("1.1.1.1").expect("public");
        sandbox.reach("10.0.0.1").expect_err("private");
        drop(stdin);
        process.wait().expect("the end");
        // The kernel removed its link.
        let TestSandbox { namespace, link } = sandbox;
        drop(namespace);
        wait_for("the link to go", Duration::from_mins(1), || {
            links().is_empty()
        });
        drop(link);
        network.tear_down().await.expect("tear down");
    });
}

#[test]
fn failed_attach_leaves_nothing() {
    World::with(async |world| {
        let network = Network::new("aaaa", world.config(), None).expect("a network");
        let namespace = netns::create().expect("a network namespace");
        netns::within(namespace.as_fd(), || sh("ip link add eth0 type veth")).expect("inside");
        let failed = network
            .attach(copy(&namespace), NetworkPolicy::default())
            .await;
        assert!(
            failed
                .expect_err("the name is taken")
                .message
                .contains("link")
        );
        network.tear_down().await.expect("tear down");
        assert!(links().is_empty());
    });
}

#[test]
fn servers_are_listed_and_reached_on_every_address() {
    World::with(async |_world| {
        let namespace = netns::create().expect("a network namespace");
        netns::within(namespace.as_fd(), || {
            sh("ip link set lo up");
            for address in ["127.0.0.1:3000", "0.0.0.0:3001", "[::1]:3002", "[::]:3003"] {
                serve(address);
            }
        })
        .expect("inside");
        let listed = ports::listening(namespace.as_fd()).expect("ports");
        let shown: Vec<String> = listed.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["127.0.0.1:3000", "0.0.0.0:3001", "[::1]:3002", "[::]:3003"]
        );
        for address in [
            "127.0.0.1:3000",
            "127.0.0.1:3001",
            "[::1]:3002",
            "127.0.0.1:3003",
        ] {
            let target: SocketAddr = address.parse().expect(address);
            let mut stream = dial(copy(&namespace), target).await.expect(address);
            let mut greeting = [0; 5];
            stream.read_exact(&mut greeting).await.expect("a greeting");
            assert_eq!(&greeting, b"hello");
        }
        let refused = dial(copy(&namespace), "127.0.0.1:9".parse().expect("address")).await;
        assert!(
            refused
                .expect_err("a closed port")
                .remedy
                .expect("remedy")
                .contains("start a server")
        );
    });
}
