//! Network links outlive the server that created them, as sandboxes do, and links of deleted sandboxes are removed.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use atoll_model::{
    ExecSpec, Network, NetworkPolicy, PolicyAction, SandboxId, SandboxSpec, SandboxState,
};
use atoll_testkit::{attempts, wait_for};
use atoll_worker::{Config, LocalRuntime};

use super::scene::{Scene, accept, echo, links, sh, traces};
use crate::harness::{DEADLINE, binary, probe_spec, stdout_text};
use crate::restart::{Place, keeper, spec};

async fn open(data: &Path, lasting: bool) -> LocalRuntime {
    let config = Config {
        binary: binary(),
        persistent: lasting,
        network: Scene::network(),
        ..Config::new(data)
    };
    LocalRuntime::open(config).await.unwrap()
}

fn with_internet() -> SandboxSpec {
    SandboxSpec {
        network: Network::Internet,
        ..spec()
    }
}

/// This very test program as a server, on the host of this thread.
fn serve(place: &Place, lasting: bool) -> Child {
    let made = place.file("made");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "network::restart::server_process", "--nocapture"])
        .env(
            "ATOLL_TEST_NETWORK",
            if lasting { "lasting" } else { "small" },
        )
        .env("ATOLL_TEST_DATA", place.data())
        .env("FILE", &made)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for("the sandboxes", DEADLINE, || {
        assert!(child.try_wait().unwrap().is_none(), "the server ended");
        made.exists()
    });
    child
}

fn kill(mut server: Child) {
    server.kill().unwrap();
    server.wait().unwrap();
}

/// No test of its own: makes two sandboxes, one under a policy and with connections, and waits to be
/// killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_process() {
    let Ok(kind) = std::env::var("ATOLL_TEST_NETWORK") else {
        return;
    };
    let data = std::env::var("ATOLL_TEST_DATA").unwrap();
    let runtime = open(Path::new(&data), kind == "lasting").await;
    let strict = SandboxSpec {
        policy: NetworkPolicy::parse(&["1.1.1.1"], &[""; 0], PolicyAction::Deny).unwrap(),
        ..with_internet()
    };
    for spec in [strict, with_internet()] {
        let id = runtime.create(spec).await.unwrap().id;
        if kind == "lasting" {
            let talk = probe_spec(&["repeat", "1.1.1.1:90"]);
            runtime.exec(&id, talk).await.unwrap();
        }
    }
    std::fs::write(std::env::var("FILE").unwrap(), "made").unwrap();
    std::future::pending::<()>().await;
}

async fn probe(runtime: &LocalRuntime, id: &SandboxId, words: &[&str]) -> Vec<String> {
    let spec: ExecSpec = probe_spec(words).user("root");
    let exec = runtime.exec(id, spec).await.unwrap();
    let done = exec.finish(b"", 1 << 20).await.unwrap();
    let all = attempts(stdout_text(&done));
    all.into_iter()
        .map(|attempt| {
            format!("{} {}", attempt.result, attempt.detail)
                .trim()
                .to_owned()
        })
        .collect()
}

const ASK: [&str; 3] = ["connect", "1.1.1.1:80", "9.9.9.9:80"];

#[test]
fn links_connections_and_policies_survive_a_killed_server() {
    Scene::with(async |scene| {
        let place = Place::new();
        let arrivals = scene.listen("1.1.1.1:90");
        let server = serve(&place, true);
        let streams = [accept(&arrivals), accept(&arrivals)];
        let before = links();
        assert_eq!(before.len(), 2);
        kill(server);
        for stream in &streams {
            echo(stream).unwrap();
        }
        // Objects that remain after an interrupted delete.
        let tag = before[0].split('-').nth(1).unwrap().to_owned();
        sh(&format!("ip link add atl-{tag}-99999 type veth"));

        let runtime = open(&place.data(), true).await;
        assert_eq!(links(), before, "the same links, and no other");
        for stream in &streams {
            echo(stream).unwrap();
        }
        let [free, strict] = &runtime.list()[..] else {
            panic!("{:?}", runtime.list());
        };
        let (free, strict) = (&free.id, &strict.id);
        assert_eq!(probe(&runtime, free, &ASK).await, ["ok", "ok"]);
        assert_eq!(probe(&runtime, strict, &ASK).await, ["ok", "ECONNREFUSED"]);
        for id in [free, strict] {
            assert_eq!(
                probe(&runtime, id, &["connect", "10.0.0.1:80"]).await,
                ["ECONNREFUSED"]
            );
            let names = ["resolve", "public.test", "metadata.test"];
            assert_eq!(
                probe(&runtime, id, &names).await,
                ["ok code=0 1.1.1.1", "ok code=0"]
            );
        }
        // A new sandbox gets its own address, and a change of rules takes effect.
        let new = runtime.create(with_internet()).await.unwrap().id;
        assert_eq!(links().len(), 3);
        assert_eq!(probe(&runtime, &new, &ASK).await, ["ok", "ok"]);
        let deny = NetworkPolicy::parse(&[""; 0], &["1.1.1.1"], PolicyAction::Allow).unwrap();
        runtime.set_network_policy(strict, deny).await.unwrap();
        assert_eq!(probe(&runtime, strict, &ASK).await, ["ECONNREFUSED", "ok"]);
        assert!(echo(&streams[0]).is_err() != echo(&streams[1]).is_err());

        // A server that shuts down leaves the network objects to the next server.
        runtime.close().await.unwrap();
        assert_eq!(links().len(), 3);
        let runtime = open(&place.data(), true).await;
        assert_eq!(links().len(), 3);
        assert_eq!(probe(&runtime, strict, &ASK).await, ["ECONNREFUSED", "ok"]);
        assert!(echo(&streams[0]).is_ok() || echo(&streams[1]).is_ok());
        runtime.stop(strict).await.unwrap();
        runtime.start(strict).await.unwrap();
        assert_eq!(probe(&runtime, strict, &ASK).await, ["ECONNREFUSED", "ok"]);
        for info in runtime.list() {
            assert_eq!(info.state, SandboxState::Running);
        }
        place.close(runtime).await;
        wait_for("the links to go", DEADLINE, || links().is_empty());
        assert_eq!(sh("nft list tables"), "", "gc takes the rules");
    });
}

#[test]
fn a_killed_runs_rules_are_collected() {
    Scene::with(async |_| {
        let place = Place::new();
        let server = serve(&place, false);
        let tag = links()[0].split('-').nth(1).unwrap().to_owned();
        kill(server);
        assert!(sh("nft list tables").contains(&tag));
        let facts = atoll_jail::facts::Facts::read();
        let below = place.data();
        let scope = atoll_worker::instance::Scope::Below(&below);
        // The keeper is still exiting.
        wait_for("the run to be dead", DEADLINE, || {
            let collected = atoll_worker::instance::collect(scope, &facts).unwrap();
            collected.instances == [tag.clone()]
        });
        assert!(traces().is_empty());
        assert_eq!(sh("nft list tables"), "");
    });
}

#[test]
fn links_of_sandboxes_that_died_with_the_server_are_not_reused() {
    Scene::with(async |_| {
        let place = Place::new();
        let server = serve(&place, true);
        let tag = links()[0].split('-').nth(1).unwrap().to_owned();
        kill(server);
        let keeper = keeper(&tag).unwrap();
        let keeper = rustix::process::Pid::from_raw(keeper).unwrap();
        rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
        wait_for("the keeper to end", DEADLINE, || {
            crate::restart::keeper(&tag).is_none()
        });
        let runtime = open(&place.data(), true).await;
        assert!(traces().is_empty());
        assert_eq!(sh("nft list tables"), "");
        for info in runtime.list() {
            assert_eq!(info.state, SandboxState::Stopped);
            runtime.start(&info.id).await.unwrap();
            let got = probe(&runtime, &info.id, &ASK).await;
            assert_eq!(got[0], "ok");
        }
        place.close(runtime).await;
    });
}

#[test]
fn server_without_linked_sandboxes_removes_its_rules_on_exit() {
    Scene::with(async |_| {
        let place = Place::new();
        let runtime = open(&place.data(), true).await;
        let linked = runtime.create(with_internet()).await.unwrap().id;
        // The keeper also runs this sandbox, and holds the descriptors that the server held.
        let other = runtime.create(spec()).await.unwrap().id;
        runtime.delete(&linked).await.unwrap();
        runtime.close().await.unwrap();
        assert_eq!(traces(), [""; 0]);
        assert_eq!(sh("nft list tables"), "");

        // Another data directory, and the same one.
        let elsewhere = Place::new();
        for (place, lasting) in [(&elsewhere, false), (&place, true)] {
            let runtime = open(&place.data(), lasting).await;
            let id = runtime.create(with_internet()).await.unwrap().id;
            let names = probe(&runtime, &id, &["resolve", "public.test"]).await;
            assert_eq!(names, ["ok code=0 1.1.1.1"]);
            runtime.delete(&id).await.unwrap();
            runtime.close().await.unwrap();
        }
        let runtime = open(&place.data(), true).await;
        assert_eq!(runtime.get(&other).unwrap().state, SandboxState::Running);
        place.close(runtime).await;
    });
}

/// Runs the command with a data directory, on the host of this thread.
fn atoll(data: &Path, words: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(words).env("ATOLL_DATA_DIR", data);
    let output = atoll_testkit::run(command.stdin(Stdio::null()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words:?} {output:?}");
    text
}

#[test]
fn doctor_finds_and_gc_removes_rules_of_a_killed_server() {
    Scene::with(async |_| {
        let place = Place::new();
        let server = serve(&place, true);
        let tag = links()[0].split('-').nth(1).unwrap().to_owned();
        let elsewhere = Place::new();
        let stale = || {
            let report = atoll(&elsewhere.data(), &["doctor", "--json"]);
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            let checks = report["checks"].as_array().unwrap();
            let check = checks
                .iter()
                .find(|check| check["feature"] == "stale networks");
            let found = check.map(|check| check["found"].as_str().unwrap().to_owned());
            (found, report["grade"] == "A")
        };
        assert_eq!(stale().0, None, "it lives");
        kill(server);
        let keeper_pid = rustix::process::Pid::from_raw(keeper(&tag).unwrap()).unwrap();
        rustix::process::kill_process(keeper_pid, rustix::process::Signal::KILL).unwrap();
        wait_for("the keeper to end", DEADLINE, || keeper(&tag).is_none());
        let (found, is_fine) = stale();
        assert!(found.unwrap().contains(&tag) && !is_fine);
        let text = atoll(&elsewhere.data(), &["gc"]);
        assert!(text.contains(", 1 stale network"), "{text}");
        assert!(traces().is_empty());
        assert_eq!(sh("nft list tables"), "");
        assert_eq!(stale().0, None);
        let runtime = open(&place.data(), true).await;
        place.close(runtime).await;
    });
}
