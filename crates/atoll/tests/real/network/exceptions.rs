//! Addresses that the operator opened, and sandboxes that request further ones (E01).

use atoll_model::{Code, Network, NetworkPolicy, PolicyAction, SandboxSpec};

use super::{
    HOST, PRIVATE, PUBLIC, Scene, WEB, address_of, internet, links, policy, reach, tried, tried_as,
};
use crate::harness::{KINDS, Kind, World};

/// A single port of one address, a network, and a network that contains an address of the host.
const OPEN: [&str; 3] = ["10.0.0.1:80", "192.168.0.0/16", "203.0.113.0/24"];

/// A runtime with [`OPEN`] as the operator's open addresses.
async fn world() -> World {
    World::open_as(|config| {
        config.network = Scene::network();
        let all = OPEN.map(|text| text.parse().unwrap());
        config.network.exceptions = all.into();
    })
    .await
}

#[test]
fn e01_exception_opens_only_its_own_addresses() {
    Scene::with(async |scene| {
        let world = world().await;
        let _second = scene.listen("10.0.0.1:81");
        let neighbour = world.sandbox_spec(Kind::Static, internet).await;
        let near = address_of(&links()[0]);
        let serve = crate::harness::probe_spec(&["greet", "0.0.0.0:80"]).user("root");
        let _serving = world.runtime.exec(&neighbour, serve).await.unwrap();
        let open = ["10.0.0.1:80", "192.168.0.1:80", "203.0.113.1:80"];
        let closed = PRIVATE.iter().map(|address| format!("{address}:{WEB}"));
        let closed = closed.filter(|address| !open.contains(&address.as_str()));
        let closed: Vec<String> = closed
            .chain([
                "10.0.0.1:81".into(),
                format!("{HOST}:{WEB}"),
                format!("{near}:{WEB}"),
                format!("[::ffff:{HOST}]:{WEB}"),
                "[::ffff:10.0.0.1]:81".to_owned(),
                "127.0.0.1:80".into(),
            ])
            .collect();
        for address in closed.iter().filter(|address| !address.contains("198.18")) {
            if !address.ends_with(":81") {
                reach(address).unwrap_or_else(|error| panic!("{address}: {error}"));
            }
        }
        let public = PUBLIC.map(|address| format!("{address}:{WEB}"));
        for kind in KINDS {
            let id = world.sandbox_spec(kind, internet).await;
            for user in ["root", "user"] {
                let words = [&["connect"][..], &open, &[&public[0]]].concat();
                let all = tried_as(&world, &id, user, &words).await;
                assert_eq!(all, ["ok"; 4], "{user}");
                let closed = closed.iter().map(String::as_str);
                let words: Vec<&str> = ["connect"].into_iter().chain(closed).collect();
                let all = tried_as(&world, &id, user, &words).await;
                assert_eq!(all, vec!["ECONNREFUSED"; all.len()], "{user} {words:?}");
                let send = tried_as(&world, &id, user, &["send", "10.0.0.1:80", "100.64.0.1:80"]);
                let send = send.await;
                assert_eq!((send[0].as_str(), send[1] == "ok"), ("ok", false), "{user}");
            }
        }
        world.close().await;
    });
}

#[test]
fn exception_overrides_neither_policy_nor_missing_network() {
    Scene::with(async |_| {
        let world = world().await;
        let all = ["connect", "10.0.0.1:80", "1.1.1.1:80"];
        let none = world.sandbox(Kind::Static).await;
        assert_ne!(tried(&world, &none, &all).await, ["ok", "ok"]);
        assert!(!tried(&world, &none, &all).await.contains(&"ok".into()));
        let id = world.sandbox_spec(Kind::Static, internet).await;
        for (allow, deny, default, expected) in [
            (&[][..], &[][..], PolicyAction::Deny, [false, false]),
            (&["1.1.1.1"], &[], PolicyAction::Deny, [false, true]),
            (&["10.0.0.1:80"], &[], PolicyAction::Deny, [true, false]),
            (&[], &["10.0.0.0/8"], PolicyAction::Allow, [false, true]),
            (&[], &[], PolicyAction::Allow, [true, true]),
        ] {
            let rules = policy(allow, deny, default);
            world.runtime.set_network_policy(&id, rules).await.unwrap();
            let found = tried(&world, &id, &all).await;
            let found = [found[0] == "ok", found[1] == "ok"];
            assert_eq!(found, expected, "{allow:?} {deny:?} {default:?}");
        }
        // A rule that can never open anything is still an error, at each place that takes one.
        let never: NetworkPolicy = policy(&["10.0.0.1:443"], &[], PolicyAction::Deny);
        let spec = SandboxSpec {
            network: Network::Internet,
            policy: never.clone(),
            ..SandboxSpec::default()
        };
        let runtime = &world.runtime;
        for refused in [
            runtime.create(spec).await,
            runtime.set_network_policy(&id, never.clone()).await,
            runtime.set_network(&none, Network::Internet, never).await,
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.code, Code::InvalidRequest, "{error:?}");
            assert!(error.message.contains("10.0.0.0/8"), "{error:?}");
        }
        world.close().await;
    });
}

#[test]
fn names_resolve_to_exceptions_and_no_other_refused_address() {
    Scene::with(async |_| {
        let world = world().await;
        let id = world.sandbox_spec(Kind::Base, internet).await;
        let found = async |name: &str| {
            let line = format!("getent ahostsv4 {name} | head -n1 | cut -d' ' -f1");
            let done = world
                .exec(&id, atoll_model::ExecSpec::shell(&line))
                .await
                .stdout;
            String::from_utf8(done).unwrap()
        };
        assert_eq!(found("inside").await, "10.0.0.1\n");
        assert_eq!(found("public").await, "1.1.1.1\n");
        assert_eq!(found("metadata").await, "");
        world.close().await;
    });
}
