//! What the operator's exceptions open, and that they open nothing else.

use std::io;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use atoll_jail::netns;
use atoll_model::EgressException;
use atoll_model::Policy;
use atoll_model::Verdict::{Allow, Deny};
use atoll_testkit::wait_for;

use super::world::{
    self, Guest, HOST, PRIVATE, PUBLIC, TALK, WEB, World, arrives, connect, echo, serve, sh,
};
use crate::network::{Config, Network};

/// A port that answers on every address, besides [`WEB`].
const OTHER: u16 = 81;

fn exceptions(words: &[&str]) -> Vec<EgressException> {
    let parse = |word: &&str| word.parse().expect(word);
    words.iter().map(parse).collect()
}

/// A network of a world whose internet also answers at [`OTHER`].
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

fn reach(guest: &Guest, address: &str, port: u16) -> io::Result<TcpStream> {
    guest.inside(|| connect(&format!("{address}:{port}")))
}

#[test]
fn an_exception_opens_its_addresses_and_ports_and_nothing_beside_them() {
    World::with(async |world| {
        serve_more(&world);
        // The last one covers an address of the host, too.
        let open = [
            "10.0.0.1:80",
            "192.168.0.0/16",
            "172.16.0.1:81",
            "203.0.113.0/24",
        ];
        let network = network(&world, &open);
        let (guest, neighbour) = (Guest::join(&network).await, Guest::join(&network).await);
        let gateway = guest.link.gateway().to_string();
        let near = neighbour.link.address().to_string();
        let opened = [
            ("10.0.0.1", WEB),
            ("192.168.0.1", WEB),
            ("192.168.0.1", OTHER),
            ("172.16.0.1", OTHER),
            ("203.0.113.1", WEB),
            ("203.0.113.1", OTHER),
        ];
        let all = PRIVATE.into_iter().chain([HOST, &gateway, &near]);
        for address in all {
            for port in [WEB, OTHER] {
                let reached = reach(&guest, address, port).is_ok();
                let expected = opened.contains(&(address, port));
                assert_eq!(reached, expected, "{address}:{port}");
            }
        }
        for address in PUBLIC {
            reach(&guest, address, WEB).expect(address);
        }
        // Datagrams: with a port of an exception, to the broadcast address of a network inside one, and to the host.
        let server = netns::within(world.internet.as_fd(), world::datagrams).expect("internet");
        let host = world::datagrams();
        let client = guest.inside(world::datagrams);
        client.set_broadcast(true).expect("an option");
        assert!(arrives(&client, &server, &format!("192.168.0.1:{TALK}")));
        for address in ["10.0.0.1", "203.0.113.255"] {
            assert!(!arrives(&client, &server, &format!("{address}:{TALK}")));
        }
        assert!(!arrives(&client, &host, &format!("{HOST}:{TALK}")));
    });
}

#[test]
fn an_exception_is_not_reached_in_the_name_of_another_nor_by_rewriting() {
    World::with(async |world| {
        let network = network(&world, &["10.0.0.1:80", "192.168.0.1"]);
        let (guest, neighbour) = (Guest::join(&network).await, Guest::join(&network).await);
        let server = netns::within(world.internet.as_fd(), || UdpSocket::bind("192.168.0.1:7"));
        let server = server.expect("internet").expect("bind");
        let near = neighbour.link.address();
        let [own, of_neighbour, of_internet] = guest.inside(|| {
            sh(&format!("ip addr add {near} dev lo"));
            sh("ip addr add 9.9.9.9 dev lo");
            [
                format!("{}:7", guest.link.address()),
                format!("{near}:7"),
                "9.9.9.9:7".into(),
            ]
            .map(|address: String| UdpSocket::bind(&address).expect(&address))
        });
        assert!(arrives(&own, &server, "192.168.0.1:7"));
        assert!(!arrives(&of_neighbour, &server, "192.168.0.1:7"));
        assert!(!arrives(&of_internet, &server, "192.168.0.1:7"));
        // Rules of the host that rewrite a public destination to a refused one, on an open port and on a closed one.
        sh("nft add table ip theirs");
        sh("nft add chain ip theirs pre '{ type nat hook prerouting priority dstnat; }'");
        sh("nft add rule ip theirs pre ip daddr 1.1.1.1 tcp dport 80 dnat to 172.16.0.1:80");
        sh("nft add rule ip theirs pre ip daddr 1.1.1.1 tcp dport 81 dnat to 10.0.0.1:80");
        reach(&guest, "1.1.1.1", WEB).expect_err("no exception has it");
        reach(&guest, "1.1.1.1", OTHER).expect("an exception has it");
    });
}

#[test]
fn a_policy_still_decides_about_what_an_exception_opens() {
    World::with(async |world| {
        let network = network(&world, &["10.0.0.1:80"]);
        let guest = Guest::join(&network).await;
        for (allow, deny, default, expected) in [
            (&[][..], &[][..], Allow, true),
            (&[], &[], Deny, false),
            (&["1.1.1.1"], &[], Deny, false),
            (&["10.0.0.1"], &[], Deny, true),
            (&["10.0.0.1:81"], &[], Deny, false),
            (&["10.0.0.0/8"], &[], Deny, true),
            (&[], &["10.0.0.0/8"], Allow, false),
        ] {
            guest.obey(allow, deny, default).await;
            let reached = guest.reach("10.0.0.1").is_ok();
            assert_eq!(reached, expected, "{allow:?} {deny:?} {default:?}");
            // Whatever a policy names, no other refused address is opened by it.
            guest.reach("172.16.0.1").expect_err("no exception has it");
        }
        let names = |rule: &str| {
            let policy = Policy::parse(&[rule], &[""; 0], Deny).expect(rule);
            network.check(&policy)
        };
        names("10.0.0.1:80").expect("it can be reached");
        names("10.0.0.2").expect_err("it can never be reached");
    });
}

#[test]
fn exceptions_come_back_with_the_rules_and_end_with_the_server_that_had_them() {
    World::with(async |world| {
        let before = network(&world, &["10.0.0.1:80"]);
        let guest = Guest::join(&before).await;
        let stream = guest.reach("10.0.0.1").expect("an exception");
        sh("nft flush ruleset");
        wait_for("the rules", Duration::from_mins(1), || {
            sh("nft list ruleset; ip link show up").contains(&guest.link.name)
        });
        guest.reach("10.0.0.1").expect("an exception");
        guest.reach("10.0.0.2").expect_err("private");
        // The next server goes on with the link, and was given no exception.
        guest.link.keep_on_drop();
        let (address, gateway) = (guest.link.address(), guest.link.gateway());
        let held = before.claims().try_clone_to_owned().expect("a copy");
        before.detach().await.expect("leave");
        let next = Network::new("aaaa", world.config(), Some(held)).expect("a network");
        let links = next.resume(gateway, &[(address, Policy::default())]);
        assert!(links.expect("links")[0].is_some());
        guest.reach("10.0.0.1").expect_err("private again");
        assert!(echo(&stream).is_err(), "what was established is cut");
        guest.reach("1.1.1.1").expect("public");
        next.tear_down().await.expect("dismantle");
    });
}
