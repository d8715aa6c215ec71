//! The operator's egress exceptions open their addresses and nothing else.

use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use atoll_jail::netns;
use atoll_model::EgressException;
use atoll_model::NetworkPolicy;
use atoll_model::PolicyAction::{Allow, Deny};
use atoll_testkit::wait_for;

use super::world::{
    self, ECHO_PORT, HOST, PRIVATE, PUBLIC, TestSandbox, WEB_PORT, World, connect, echo,
    is_delivered, serve, sh,
};
use crate::network::{Config, Network};

/// A second port that answers on every address, besides [`WEB_PORT`].
const OTHER: u16 = 81;

fn exceptions(words: &[&str]) -> Vec<EgressException> {
    let parse = |word: &&str| word.parse().expect(word);
    words.iter().map(parse).collect()
}

/// A network with these exceptions.
fn network(world: &World, words: &[&str]) -> Network {
    let config = Config {
        exceptions: exceptions(words).into(),
        ..world.config()
    };
    Network::new("aaaa", config, None).expect("a network")
}

fn serve_more(world: &World) {
    let more = || serve(&format!("0.0.0.0:{OTHER}"));
    netns::within(world.internet.as_fd(), more).expect("internet");
    more();
}

fn reach(sandbox: &TestSandbox, address: &str, port: u16) -> io::Result<TcpStream> {
    sandbox.inside(|| connect(&format!("{address}:{port}")))
}

#[test]
fn exception_opens_only_its_addresses_and_ports() {
    World::with(async |world| {
        serve_more(&world);
        // The last one includes an address of the host.
        let open = [
            "10.0.0.1:80",
            "192.168.0.0/16",
            "172.16.0.1:81",
            "203.0.113.0/24",
        ];
        let network = network(&world, &open);
        let (sandbox, neighbour) = (
            TestSandbox::attach(&network).await,
            TestSandbox::attach(&network).await,
        );
        let gateway = sandbox.link.gateway().to_string();
        let near = neighbour.link.address().to_string();
        let opened = [
            ("10.0.0.1", WEB_PORT),
            ("192.168.0.1", WEB_PORT),
            ("192.168.0.1", OTHER),
            ("172.16.0.1", OTHER),
            ("203.0.113.1", WEB_PORT),
            ("203.0.113.1", OTHER),
        ];
        let all = PRIVATE.into_iter().chain([HOST, &gateway, &near]);
        for address in all {
            for port in [WEB_PORT, OTHER] {
                let reached = reach(&sandbox, address, port).is_ok();
                let expected = opened.contains(&(address, port));
                assert_eq!(reached, expected, "{address}:{port}");
            }
        }
        for address in PUBLIC {
            reach(&sandbox, address, WEB_PORT).expect(address);
        }
        // UDP: on a port outside the exception, to a broadcast address inside one, and to the host.
        let server = netns::within(world.internet.as_fd(), world::udp_socket).expect("internet");
        let host = world::udp_socket();
        let client = sandbox.inside(world::udp_socket);
        client.set_broadcast(true).expect("an option");
        assert!(is_delivered(
            &client,
            &server,
            &format!("192.168.0.1:{ECHO_PORT}")
        ));
        for address in ["10.0.0.1", "203.0.113.255"] {
            assert!(!is_delivered(
                &client,
                &server,
                &format!("{address}:{ECHO_PORT}")
            ));
        }
        assert!(!is_delivered(
            &client,
            &host,
            &format!("{HOST}:{ECHO_PORT}")
        ));
    });
}

#[test]
fn exception_is_not_reached_by_spoofing_or_rewriting() {
    World::with(async |world| {
        let network = network(&world, &["10.0.0.1:80", "192.168.0.1"]);
        let (sandbox, neighbour) = (
            TestSandbox::attach(&network).await,
            TestSandbox::attach(&network).await,
        );
        let server = netns::within(world.internet.as_fd(), || UdpSocket::bind("192.168.0.1:7"));
        let server = server.expect("internet").expect("bind");
        let near = neighbour.link.address();
        let [own, of_neighbour, of_internet] = sandbox.inside(|| {
            sh(&format!("ip addr add {near} dev lo"));
            sh("ip addr add 9.9.9.9 dev lo");
            [
                format!("{}:7", sandbox.link.address()),
                format!("{near}:7"),
                "9.9.9.9:7".into(),
            ]
            .map(|address: String| UdpSocket::bind(&address).expect(&address))
        });
        assert!(is_delivered(&own, &server, "192.168.0.1:7"));
        assert!(!is_delivered(&of_neighbour, &server, "192.168.0.1:7"));
        assert!(!is_delivered(&of_internet, &server, "192.168.0.1:7"));
        // Host rules that rewrite a public destination to a blocked one, on an open port and on a
        // closed one.
        sh("nft add table ip theirs");
        sh("nft add chain ip theirs pre '{ type nat hook prerouting priority dstnat; }'");
        sh("nft add rule ip theirs pre ip daddr 1.1.1.1 tcp dport 80 dnat to 172.16.0.1:80");
        sh("nft add rule ip theirs pre ip daddr 1.1.1.1 tcp dport 81 dnat to 10.0.0.1:80");
        reach(&sandbox, "1.1.1.1", WEB_PORT).expect_err("no exception has it");
        reach(&sandbox, "1.1.1.1", OTHER).expect("an exception has it");
    });
}

#[test]
fn policy_applies_to_addresses_of_an_exception() {
    World::with(async |world| {
        let network = network(&world, &["10.0.0.1:80"]);
        let sandbox = TestSandbox::attach(&network).await;
        for (allow, deny, default, expected) in [
            (&[][..], &[][..], Allow, true),
            (&[], &[], Deny, false),
            (&["1.1.1.1"], &[], Deny, false),
            (&["10.0.0.1"], &[], Deny, true),
            (&["10.0.0.1:81"], &[], Deny, false),
            (&["10.0.0.0/8"], &[], Deny, true),
            (&[], &["10.0.0.0/8"], Allow, false),
        ] {
            sandbox.set_policy(allow, deny, default).await;
            let reached = sandbox.reach("10.0.0.1").is_ok();
            assert_eq!(reached, expected, "{allow:?} {deny:?} {default:?}");
            // No policy opens another blocked address.
            sandbox
                .reach("172.16.0.1")
                .expect_err("no exception has it");
        }
        let names = |rule: &str| {
            let policy = NetworkPolicy::parse(&[rule], &[""; 0], Deny).expect(rule);
            network.check(&policy)
        };
        names("10.0.0.1:80").expect("it can be reached");
        names("10.0.0.2").expect_err("it can never be reached");
    });
}

#[test]
fn exceptions_are_restored_with_the_rules_of_the_same_server() {
    World::with(async |world| {
        let before = network(&world, &["10.0.0.1:80"]);
        let sandbox = TestSandbox::attach(&before).await;
        let stream = sandbox.reach("10.0.0.1").expect("an exception");
        sh("nft flush ruleset");
        wait_for("the rules", Duration::from_mins(1), || {
            sh("nft list ruleset; ip link show up").contains(&sandbox.link.name)
        });
        sandbox.reach("10.0.0.1").expect("an exception");
        sandbox.reach("10.0.0.2").expect_err("private");
        // The next server adopts the link and has no exception.
        sandbox.link.keep_on_drop();
        let (address, gateway) = (sandbox.link.address(), sandbox.link.gateway());
        let held = before.claims().try_clone_to_owned().expect("a copy");
        before.detach().await.expect("detach");
        let next = Network::new("aaaa", world.config(), Some(held)).expect("a network");
        let links = next.resume(gateway, &[(address, NetworkPolicy::default())]);
        assert!(links.expect("links")[0].is_some());
        sandbox.reach("10.0.0.1").expect_err("private again");
        assert!(echo(&stream).is_err(), "what was established is cut");
        sandbox.reach("1.1.1.1").expect("public");
        next.tear_down().await.expect("tear down");
    });
}
