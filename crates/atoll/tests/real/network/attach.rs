//! Sandboxes that get their network after creation: warm ones at the claim, running ones on request.

use atoll_model::{Code, Network, NetworkPolicy, PolicyAction, SandboxSpec};
use atoll_testkit::{Scratch, static_layer, wait_for};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};
use atoll_worker::{Config, LocalRuntime};

use super::scene::{Scene, accept, echo, links, sh, traces};
use super::{internet, policy, reached};
use crate::harness::{
    DEADLINE, KINDS, Kind, World, binary, private, probe_spec, stdout_text, template,
};

/// A runtime with `count` warm sandboxes of the static template, and as many of `base`.
async fn warm(count: usize) -> World {
    let world = World::open_as(|config| {
        config.network = Scene::network();
        config.warm_count = 2 * count;
    });
    let world = world.await;
    let first = world.sandbox(Kind::Static).await;
    world.runtime.delete(&first).await.unwrap();
    wait_for("warm ones of it", DEADLINE, || {
        let taken = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(world.runtime.create(of_static()))
        });
        let taken = taken.unwrap();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(world.runtime.delete(&taken.id))
        })
        .unwrap();
        taken.timings.root.is_zero()
    });
    wait_for("all of them", DEADLINE, || {
        world.runtime.pool_sizes().0 == 2 * count
    });
    world
}

fn of_static() -> SandboxSpec {
    SandboxSpec {
        template: template(Kind::Static),
        ..SandboxSpec::default()
    }
}

#[test]
fn warm_sandbox_gets_its_network_and_policy_at_the_claim() {
    Scene::with(async |_| {
        let world = warm(2).await;
        assert!(traces().is_empty());
        let mut spec = of_static();
        internet(&mut spec);
        spec.policy = policy(&["1.1.1.1"], &[], PolicyAction::Deny);
        spec.limits.pids = 99;
        let info = world.runtime.create(spec).await.unwrap();
        assert!(info.timings.root.is_zero(), "{info:?} was not warm");
        assert_eq!((info.network, info.limits.pids), (Network::Internet, 99));
        assert_eq!(links().len(), 1);
        assert_eq!(reached(&world, &info.id).await, [true, false]);
        let names = probe_spec(&["resolve", "public.test"]).user("user");
        assert!(stdout_text(&world.exec(&info.id, names).await).contains("1.1.1.1"));
        let free = world
            .runtime
            .set_network_policy(&info.id, NetworkPolicy::default());
        free.await.unwrap();
        assert_eq!(reached(&world, &info.id).await, [true, true]);
        // A sandbox that does not request a network has none.
        let other = world.runtime.create(of_static()).await.unwrap();
        assert!(other.timings.root.is_zero(), "{other:?} was not warm");
        assert_eq!(reached(&world, &other.id).await, [false, false]);
        world.runtime.delete(&info.id).await.unwrap();
        wait_for("the link to go", DEADLINE, || links().is_empty());
        world.close().await;
        assert_eq!(sh("nft list tables"), "");
    });
}

#[test]
fn failed_claim_removes_the_sandbox() {
    Scene::with(async |_| {
        let place = Scratch::new();
        let data = place.join("data");
        private(&data);
        // The name servers cannot be written: `/etc/resolv.conf` is a directory.
        static_layer(&place.join("tree"));
        std::fs::create_dir_all(place.join("tree/etc/resolv.conf/full")).unwrap();
        let store = TemplateStore::open(data.join("templates")).unwrap();
        let tree = Source::Directory(place.join("tree"));
        let added = store.add("odd", &tree, &TemplateOptions::default(), &mut |_| {});
        added.unwrap();
        let config = Config {
            binary: binary(),
            warm_count: 2,
            network: Scene::network(),
            ..Config::new(&data)
        };
        let runtime = LocalRuntime::open(config).await.unwrap();
        let mut spec = SandboxSpec {
            template: "odd".into(),
            ..SandboxSpec::default()
        };
        let first = runtime.create(spec.clone()).await.unwrap();
        let ready = || runtime.pool_sizes().0 == 1;
        wait_for("a warm one", DEADLINE, ready);
        internet(&mut spec);
        spec.limits.pids = 99;
        let error = runtime.create(spec).await.unwrap_err();
        assert_eq!(error.code, Code::NotAFile, "{error:?}");
        let known: Vec<_> = runtime.list().into_iter().map(|info| info.id).collect();
        assert_eq!(known, [first.id]);
        wait_for("its link to go", DEADLINE, || links().is_empty());
        wait_for("another in its place", DEADLINE, ready);
        let files = data.join("runs").join(runtime.tag()).join("sandboxes");
        assert_eq!(std::fs::read_dir(files).unwrap().count(), 2);
        runtime.close().await.unwrap();
    });
}

#[test]
fn a_running_sandbox_is_connected_and_disconnected() {
    Scene::with(async |scene| {
        let world = super::world().await;
        for (kind, address) in KINDS.into_iter().zip(["1.1.1.1:90", "1.1.1.1:91"]) {
            let id = world.sandbox(kind).await;
            let set = async |network, rules| world.runtime.set_network(&id, network, rules).await;
            let strict = policy(&["1.1.1.1"], &[], PolicyAction::Deny);
            let pointless = set(Network::None, strict.clone()).await.unwrap_err();
            assert_eq!(pointless.code, Code::InvalidRequest);
            world.runtime.pause(&id).await.unwrap();
            let paused = set(Network::Internet, strict.clone()).await.unwrap_err();
            assert_eq!(paused.code, Code::SandboxPaused);
            world.runtime.resume(&id).await.unwrap();
            let info = set(Network::Internet, strict).await.unwrap();
            assert_eq!(info.network, Network::Internet);
            assert_eq!(reached(&world, &id).await, [true, false]);
            let names = probe_spec(&["resolve", "public.test"]).user("user");
            assert!(stdout_text(&world.exec(&id, names).await).contains("1.1.1.1"));
            set(Network::Internet, NetworkPolicy::default())
                .await
                .unwrap();
            assert_eq!(reached(&world, &id).await, [true, true]);
            let arrivals = scene.listen(address);
            let talk = world.runtime.exec(&id, probe_spec(&["repeat", address]));
            let _talking = talk.await.unwrap();
            let stream = accept(&arrivals);
            echo(&stream).unwrap();
            let info = set(Network::None, NetworkPolicy::default()).await.unwrap();
            assert_eq!(info.network, Network::None);
            assert!(echo(&stream).is_err(), "it was cut");
            assert_eq!(reached(&world, &id).await, [false, false]);
            wait_for("the link to go", DEADLINE, || links().is_empty());
            // A stopped sandbox keeps its network settings.
            world.runtime.stop(&id).await.unwrap();
            set(Network::Internet, NetworkPolicy::default())
                .await
                .unwrap();
            assert!(links().is_empty());
            world.runtime.start(&id).await.unwrap();
            assert_eq!(reached(&world, &id).await, [true, true]);
            world.runtime.delete(&id).await.unwrap();
            wait_for("the link to go", DEADLINE, || links().is_empty());
        }
        world.close().await;
    });
}
