//! What a server without running sandboxes leaves when it ends: files, and no kernel objects.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use atoll_model::{SandboxId, SandboxState};
use atoll_testkit::wait_for;
use atoll_worker::{LocalRuntime, Storage};

use super::{EMBRYOS, Place, WARM, children, config, keeper, prepared, spec};
use crate::api::Server;
use crate::harness::{DEADLINE, probe_spec};

/// Mounts and control groups of an instance, and its keeper.
fn left(data: &Path, tag: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = |line: &&str| line.contains(data.to_str().unwrap());
    let mut left: Vec<String> = mounts.lines().filter(ours).map(String::from).collect();
    let facts = atoll_jail::facts::Facts::read();
    let groups = atoll_jail::cgroup::InstanceCgroup::tags(&facts);
    left.extend(groups.into_iter().filter(|group| group == tag));
    left.extend(keeper(tag).map(|pid| format!("keeper {pid}")));
    left
}

async fn echo(runtime: &LocalRuntime, id: &SandboxId) {
    let exec = runtime.exec(id, probe_spec(&["echo", "on"])).await.unwrap();
    assert_eq!(exec.finish(b"", 100).await.unwrap().stdout, b"on\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_without_sandboxes_leaves_no_kernel_objects() {
    tokio::task::spawn_blocking(crate::harness::templates)
        .await
        .unwrap();
    let place = Place::new();
    // Immediately, and with a full pool; with its own keeper, and with that of the previous server.
    for full in [false, true, false] {
        let runtime = LocalRuntime::open(prepared(&place.data())).await.unwrap();
        while full && runtime.pool_sizes() != (WARM, EMBRYOS) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let tag = runtime.tag().to_owned();
        let made = runtime.create(atoll_model::SandboxSpec::default()).await;
        let id = made.unwrap().id;
        runtime.delete(&id).await.unwrap();
        runtime.close().await.unwrap();
        assert_eq!(left(&place.data(), &tag), [""; 0]);
    }
    let runtime = place.open().await;
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_sandbox_needs_no_keeper_and_paused_one_does() {
    let place = Place::new();
    let image = || atoll_worker::Config {
        storage: Storage::Image,
        ..config(&place.data())
    };
    let open = async || LocalRuntime::open(image()).await.unwrap();
    let runtime = open().await;
    let tag = runtime.tag().to_owned();
    let id = runtime.create(spec()).await.unwrap().id;
    let write = probe_spec(&["write", "/file", "kept"]).user("root");
    let exec = runtime.exec(&id, write).await.unwrap();
    assert!(exec.finish(b"", 100).await.unwrap().status.success());
    runtime.pause(&id).await.unwrap();
    runtime.close().await.unwrap();
    let all = left(&place.data(), &tag);
    assert_eq!(all.len(), 3, "mount, control groups, keeper: {all:?}");

    let runtime = open().await;
    assert_eq!(runtime.get(&id).unwrap().state, SandboxState::Paused);
    runtime.resume(&id).await.unwrap();
    echo(&runtime, &id).await;
    runtime.stop(&id).await.unwrap();
    runtime.close().await.unwrap();
    // No object remains, without a wait.
    assert_eq!(left(&place.data(), &tag), [""; 0]);

    let runtime = open().await;
    assert_eq!(runtime.tag(), tag);
    assert_eq!(runtime.get(&id).unwrap().state, SandboxState::Stopped);
    runtime.start(&id).await.unwrap();
    echo(&runtime, &id).await;
    let read = probe_spec(&["read", "/file"]).user("root");
    let exec = runtime.exec(&id, read).await.unwrap();
    let stdout = exec.finish(b"", 100).await.unwrap().stdout;
    assert!(String::from_utf8_lossy(&stdout).contains("kept"));
    wait_for("the keeper", DEADLINE, || keeper(&tag).is_some());
    place.close(runtime).await;
}

/// A process and all below it.
fn family(root: i32) -> BTreeSet<i32> {
    let mut all = BTreeSet::from([root]);
    let mut next = vec![root];
    while let Some(parent) = next.pop() {
        next.extend(children(parent).into_iter().filter(|pid| all.insert(*pid)));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_ends_the_pool_and_the_keeper_with_the_server() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&serde_json::json!({})).await;
    let deleted = client.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(deleted.status, 204);
    let usual = atoll_worker::Config::serving(server.data());
    let deadline = tokio::time::Instant::now() + 2 * DEADLINE;
    loop {
        let pool = client.get("/readyz").await.json()["pool"].clone();
        let count = |name: &str| pool[name].as_u64().unwrap() as usize;
        if count("warm") >= usual.warm_count && count("embryos") >= usual.embryo_count {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{pool}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let tag = std::fs::read_to_string(server.data().join("tag")).unwrap();
    let all = family(keeper(&tag).unwrap());
    assert!(all.len() > usual.warm_count + usual.embryo_count, "{all:?}");
    server.end();
    // A killed process that is not yet reaped counts as gone.
    let lives = |pid: &&i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    let stay: Vec<&i32> = all.iter().filter(lives).collect();
    assert!(stay.is_empty(), "{stay:?} of {}", all.len());
    assert_eq!(left(&server.data(), &tag), [""; 0]);
    // The next server starts with a new keeper.
    server.kill_and_start();
    let client = server.client();
    let id = client.sandbox(&serde_json::json!({})).await;
    let path = format!("/sandboxes/{id}/commands");
    let ran = client
        .post(&path, &serde_json::json!({ "cmd": "echo on" }))
        .await;
    assert_eq!(ran.json()["stdout"], "on\n", "{ran:?}");
    server.close().await;
}
