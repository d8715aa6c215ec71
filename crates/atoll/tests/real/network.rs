//! Sandboxes with the network `internet`, and published ports of all sandboxes: on a real host in front of a
//! simulated internet.

mod attach;
mod exceptions;
mod exhaustion;
mod restart;
mod scene;
mod spoof;

use atoll_model::{Code, Network, NetworkPolicy, PolicyAction, PortEvent, SandboxId, SandboxSpec};
use atoll_testkit::{attempts, wait_for};
use tokio::io::AsyncReadExt;

use crate::harness::{DEADLINE, KINDS, Kind, World, probe_spec, stdout_text};
pub use scene::Scene;
use scene::{
    HOST, PRIVATE, PRIVATE_SIX, PUBLIC, PUBLIC_SIX, WEB, accept, address_of, echo, links, reach,
    sh, traces,
};

/// Requests the network `internet`.
fn internet(spec: &mut SandboxSpec) {
    spec.network = Network::Internet;
}

/// A runtime that uses the name server of the scene.
async fn world() -> World {
    World::open_as(|config| config.network = Scene::network()).await
}

/// Result of the probe for each address or name.
async fn tried(world: &World, id: &SandboxId, words: &[&str]) -> Vec<String> {
    tried_as(world, id, "user", words).await
}

async fn tried_as(world: &World, id: &SandboxId, user: &str, words: &[&str]) -> Vec<String> {
    let done = world.exec(id, probe_spec(words).user(user)).await;
    let all = attempts(stdout_text(&done));
    assert_eq!(all.len(), words.len() - 1, "{words:?}");
    all.into_iter().map(|attempt| attempt.result).collect()
}

/// Whether each public address is reached.
async fn reached(world: &World, id: &SandboxId) -> [bool; 2] {
    let all = tried(world, id, &["connect", "1.1.1.1:80", "9.9.9.9:80"]).await;
    [all[0] == "ok", all[1] == "ok"]
}

fn policy(allow: &[&str], deny: &[&str], default: PolicyAction) -> NetworkPolicy {
    NetworkPolicy::parse(allow, deny, default).unwrap()
}

#[test]
fn e01_only_public_addresses_are_reached() {
    Scene::with(async |_| {
        let world = world().await;
        let neighbour = world.sandbox_spec(Kind::Static, internet).await;
        let near = address_of(&links()[0]);
        let serve = probe_spec(&["greet", "0.0.0.0:80"]).user("root");
        let serving = world.runtime.exec(&neighbour, serve).await.unwrap();
        let table = format!("inet atoll_{}", world.runtime.tag());
        let mut ids = Vec::new();
        for kind in KINDS {
            ids.push(world.sandbox_spec(kind, internet).await);
        }
        let gateway = {
            let root = atoll_model::RunAs::root();
            let file = world.runtime.read_file(&ids[0], &root, b"/etc/resolv.conf");
            let text = file.await.unwrap().read_to_end(1000).await.unwrap();
            let text = String::from_utf8(text).unwrap();
            text.trim().strip_prefix("nameserver ").unwrap().to_owned()
        };
        let refused = PRIVATE.iter().map(|address| format!("{address}:{WEB}"));
        let refused: Vec<String> = refused
            .chain([
                format!("{HOST}:{WEB}"),
                format!("{gateway}:{WEB}"),
                format!("{near}:{WEB}"),
                format!("[::ffff:169.254.169.254]:{WEB}"),
                format!("[::ffff:{HOST}]:{WEB}"),
            ])
            .collect();
        // Unreachable from inside: IPv6 addresses, and the unspecified addresses.
        let nowhere = PRIVATE_SIX.iter().chain(&PUBLIC_SIX);
        let nowhere = nowhere.map(|address| format!("[{address}]:{WEB}"));
        let nowhere: Vec<String> = nowhere
            .chain([format!("0.0.0.0:{WEB}"), format!("[::]:{WEB}")])
            .collect();
        // Each address answers permitted clients.
        for address in refused
            .iter()
            .chain(&nowhere)
            .filter(|address| !address.contains(&near.to_string()))
        {
            reach(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        }
        let words = |command| {
            let refused = refused.iter().map(String::as_str);
            [command].into_iter().chain(refused).collect::<Vec<_>>()
        };
        let datagrams: Vec<&str> = words("send")
            .into_iter()
            // No UDP server listens at these addresses.
            .filter(|word| {
                let silent = [&near.to_string(), &gateway, "["];
                !silent.iter().any(|start| word.starts_with(*start))
            })
            .collect();
        let public = PUBLIC.map(|address| format!("{address}:{WEB}"));
        for (id, user) in ids
            .iter()
            .flat_map(|id| ["root", "user"].map(|user| (id, user)))
        {
            let tried = async |words: &[&str]| tried_as(&world, id, user, words).await;
            for command in ["connect", "send"] {
                let all = tried(&[command, &public[0], &public[1]]).await;
                assert_eq!(all, ["ok", "ok"], "{command} {user}");
            }
            for result in tried(&words("connect")).await {
                assert_eq!(result, "ECONNREFUSED", "{user} {refused:?}");
            }
            assert!(!tried(&datagrams).await.contains(&"ok".into()), "{user}");
            let nowhere = nowhere.iter().map(String::as_str);
            let nowhere: Vec<&str> = ["connect"].into_iter().chain(nowhere).collect();
            let found = tried(&nowhere).await;
            assert!(!found.contains(&"ok".into()), "{user} {found:?}");
        }
        // Other notations of the same addresses.
        let shell = |number: &str| {
            let script = format!("exec 3<>/dev/tcp/{number}/80 && head -c5 <&3");
            atoll_model::ExecSpec::argv(["bash", "-c", &script])
        };
        for number in ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376"] {
            let done = world.exec(&ids[0], shell(number)).await;
            assert!(!done.status.success(), "{number}");
        }
        let one = world.exec(&ids[0], shell("16843009")).await;
        assert_eq!(stdout_text(&one), "hello", "1.1.1.1 can be written so");
        // Without the rules every address answers.
        sh(&format!("nft flush table {table}"));
        sh("nft add table ip nat");
        sh("nft add chain ip nat out '{ type nat hook postrouting priority 100; }'");
        sh("nft add rule ip nat out oifname up0 masquerade");
        for (id, user) in ids
            .iter()
            .flat_map(|id| ["root", "user"].map(|user| (id, user)))
        {
            for command in [words("connect"), datagrams.clone()] {
                let all = tried_as(&world, id, user, &command).await;
                let all = all.iter().all(|result| result == "ok");
                assert!(all, "{user} {command:?}");
            }
        }
        drop(serving);
        world.close().await;
    });
}

#[test]
fn names_of_refused_addresses_do_not_resolve() {
    Scene::with(async |_| {
        let world = world().await;
        for kind in KINDS {
            let id = world.sandbox_spec(kind, internet).await;
            let names = [
                "resolve",
                "public.test",
                "metadata.test",
                "inside.test",
                "unknown.test",
            ];
            let done = world.exec(&id, probe_spec(&names).user("user")).await;
            let all = attempts(stdout_text(&done));
            let details: Vec<&str> = all.iter().map(|attempt| attempt.detail.trim()).collect();
            assert_eq!(details, ["code=0 1.1.1.1", "code=0", "code=0", "code=3"]);
        }
        world.close().await;
    });
}

#[test]
fn sandbox_without_network_has_a_reachable_loopback() {
    Scene::with(async |_| {
        let world = world().await;
        for kind in KINDS {
            let id = world.sandbox(kind).await;
            assert_eq!(world.runtime.get(&id).unwrap().network, Network::None);
            assert_eq!(
                stdout_text(&world.probe(&id, "user", &["interfaces"]).await),
                "lo\n"
            );
            let all = tried(&world, &id, &["connect", "1.1.1.1:80", "203.0.113.2:80"]).await;
            assert_eq!(all, ["ENETUNREACH", "ENETUNREACH"]);
            assert!(world.runtime.ports(&id).await.unwrap().is_empty());
            let mut watch = world.runtime.watch_ports(&id).await.unwrap();
            for address in ["127.0.0.1:8080", "[::1]:8081"] {
                let serve = probe_spec(&["greet", address]);
                let serving = world.runtime.exec(&id, serve).await.unwrap();
                let address: std::net::SocketAddr = address.parse().unwrap();
                let event = tokio::time::timeout(DEADLINE, watch.next()).await.unwrap();
                assert_eq!(event.unwrap(), Some(PortEvent::Opened(address)));
                assert_eq!(world.runtime.ports(&id).await.unwrap(), [address]);
                let mut stream = world.runtime.dial(&id, address.port()).await.unwrap();
                let mut text = [0; 5];
                stream.read_exact(&mut text).await.unwrap();
                assert_eq!(&text, b"hello");
                serving.handle.kill().unwrap();
                let event = tokio::time::timeout(DEADLINE, watch.next()).await.unwrap();
                assert_eq!(event.unwrap(), Some(PortEvent::Closed(address)));
            }
            let no_listener = world.runtime.dial(&id, 8080).await.unwrap_err();
            assert_eq!(no_listener.code, Code::Conflict);
            let change = world
                .runtime
                .set_network_policy(&id, NetworkPolicy::default());
            assert_eq!(change.await.unwrap_err().code, Code::InvalidRequest);
            world.runtime.stop(&id).await.unwrap();
            assert_eq!(watch.next().await.unwrap(), None);
        }
        assert!(traces().is_empty());
        assert_eq!(
            sh("nft list tables"),
            "",
            "nothing is set up for sandboxes without a network"
        );
        world.close().await;
    });
}

#[test]
fn e12_policy_holds_from_the_start_and_changes_cut_connections() {
    Scene::with(async |scene| {
        let world = world().await;
        let strict = policy(&["1.1.1.1"], &[], PolicyAction::Deny);
        let id = world
            .sandbox_spec(Kind::Static, |spec| {
                internet(spec);
                spec.policy = strict.clone();
            })
            .await;
        let free = world.sandbox_spec(Kind::Static, internet).await;
        assert_eq!(reached(&world, &id).await, [true, false]);
        assert_eq!(reached(&world, &free).await, [true, true]);
        world
            .runtime
            .set_network_policy(&id, NetworkPolicy::default())
            .await
            .unwrap();
        let mut streams = Vec::new();
        for address in ["1.1.1.1:90", "9.9.9.9:90"] {
            let arrivals = scene.listen(address);
            let talk = probe_spec(&["repeat", address]);
            let exec = world.runtime.exec(&id, talk).await.unwrap();
            streams.push((accept(&arrivals), exec));
        }
        for (stream, _) in &streams {
            echo(stream).unwrap();
        }
        world.runtime.set_network_policy(&id, strict).await.unwrap();
        echo(&streams[0].0).unwrap();
        assert!(echo(&streams[1].0).is_err(), "it was cut");
        assert_eq!(reached(&world, &id).await, [true, false]);
        // The policy survives a restart of the sandbox, and can be changed while it is stopped.
        world.runtime.stop(&id).await.unwrap();
        world.runtime.start(&id).await.unwrap();
        assert_eq!(reached(&world, &id).await, [true, false]);
        world.runtime.stop(&id).await.unwrap();
        let other = policy(&[], &["1.1.1.0/24"], PolicyAction::Allow);
        world.runtime.set_network_policy(&id, other).await.unwrap();
        world.runtime.start(&id).await.unwrap();
        assert_eq!(reached(&world, &id).await, [false, true]);
        let inside = policy(&["0.0.0.0/0"], &["1.1.1.1"], PolicyAction::Deny);
        world.runtime.set_network_policy(&id, inside).await.unwrap();
        let all = tried(&world, &id, &["connect", "10.0.0.1:80", "1.1.1.1:80"]).await;
        assert_eq!(
            all,
            ["ECONNREFUSED", "ok"],
            "no policy opens what is refused to all"
        );
        world.close().await;
    });
}

#[test]
fn stopped_sandbox_has_no_link_and_gets_a_new_one_on_start() {
    Scene::with(async |_| {
        let world = world().await;
        for kind in KINDS {
            let id = world.sandbox_spec(kind, internet).await;
            assert_eq!(links().len(), 1);
            world.runtime.stop(&id).await.unwrap();
            wait_for("the link to go", DEADLINE, || links().is_empty());
            world.runtime.start(&id).await.unwrap();
            assert_eq!(links().len(), 1);
            assert_eq!(reached(&world, &id).await, [true, true]);
            let names = probe_spec(&["resolve", "public.test"]).user("user");
            assert!(stdout_text(&world.exec(&id, names).await).contains("1.1.1.1"));
            world.runtime.delete(&id).await.unwrap();
            wait_for("the link to go", DEADLINE, || links().is_empty());
        }
        // A policy that is set while the sandbox is paused applies after the resume.
        let id = world.sandbox_spec(Kind::Static, internet).await;
        world.runtime.pause(&id).await.unwrap();
        let deny = policy(&[], &["9.9.9.9"], PolicyAction::Allow);
        world.runtime.set_network_policy(&id, deny).await.unwrap();
        world.runtime.resume(&id).await.unwrap();
        assert_eq!(reached(&world, &id).await, [true, false]);
        world.close().await;
        assert!(traces().is_empty(), "{:?}", traces());
        assert_eq!(sh("nft list tables"), "");
    });
}

#[test]
fn invalid_network_specs_are_refused_without_residue() {
    Scene::with(async |_| {
        let world = world().await;
        let create = async |change: &dyn Fn(&mut SandboxSpec)| {
            let mut spec = SandboxSpec {
                template: crate::harness::template(Kind::Static),
                ..SandboxSpec::default()
            };
            change(&mut spec);
            world.runtime.create(spec).await.map(|_| ()).unwrap_err()
        };
        let rules = policy(&["1.1.1.1"], &[], PolicyAction::Deny);
        let pointless = create(&|spec| spec.policy = rules.clone()).await;
        assert_eq!(pointless.code, Code::InvalidRequest);
        let inside = create(&|spec| {
            internet(spec);
            spec.policy.allow = vec!["10.0.0.1".parse().unwrap()];
        });
        assert_eq!(inside.await.code, Code::InvalidRequest);
        assert!(world.runtime.list().is_empty() && links().is_empty());
        world.close().await;
    });
}

#[test]
fn host_that_drops_forwarded_packets_is_detected() {
    Scene::with(async |_| {
        let prove = async || {
            let world = world().await;
            let id = world.sandbox_spec(Kind::Static, internet).await;
            let proof = world.runtime.check_egress(&id).await;
            world.close().await;
            assert!(!sh("ip -o link show").contains("atd-"));
            proof
        };
        prove().await.unwrap();
        // Tables as Docker creates them.
        sh("nft add table ip other");
        let chain = "type filter hook forward priority 0; policy drop;";
        sh(&format!("nft add chain ip other forward '{{ {chain} }}'"));
        let error = prove().await.unwrap_err();
        assert_eq!(error.code, Code::UnsupportedByHost);
        assert!(error.remedy.unwrap().contains("atl-"));
    });
}
