//! What is left when a server ends that has no sandbox with processes: files, and nothing in the kernel.

use std::path::Path;
use std::time::Duration;

use atoll_model::{SandboxId, SandboxState};
use atoll_testkit::wait_for;
use atoll_worker::{LocalRuntime, Storage};

use super::{EMBRYOS, Place, WARM, config, keeper, prepared, spec};
use crate::world::{DEADLINE, probe_spec};

/// Mounts and control groups of an instance, and its keeper.
fn left(data: &Path, tag: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = |line: &&str| line.contains(data.to_str().unwrap());
    let mut left: Vec<String> = mounts.lines().filter(ours).map(String::from).collect();
    let facts = atoll_jail::facts::Facts::read();
    let groups = atoll_jail::cgroup::Tree::tags(&facts);
    left.extend(groups.into_iter().filter(|group| group == tag));
    left.extend(keeper(tag).map(|pid| format!("keeper {pid}")));
    left
}

async fn echo(runtime: &LocalRuntime, id: &SandboxId) {
    let exec = runtime.exec(id, probe_spec(&["echo", "on"])).await.unwrap();
    assert_eq!(exec.finish(b"", 100).await.unwrap().stdout, b"on\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_without_sandboxes_leaves_nothing_in_the_kernel() {
    tokio::task::spawn_blocking(crate::world::templates)
        .await
        .unwrap();
    let place = Place::new();
    // At once, and with a full pool; a keeper of its own, and one of the server before.
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
async fn a_stopped_sandbox_needs_nothing_and_a_paused_one_its_keeper() {
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
    // Nothing has to be waited for.
    assert_eq!(left(&place.data(), &tag), [""; 0]);

    let runtime = open().await;
    assert_eq!(runtime.tag(), tag);
    assert_eq!(runtime.get(&id).unwrap().state, SandboxState::Stopped);
    runtime.start(&id).await.unwrap();
    echo(&runtime, &id).await;
    let read = probe_spec(&["read", "/file"]).user("root");
    let exec = runtime.exec(&id, read).await.unwrap();
    let said = exec.finish(b"", 100).await.unwrap().stdout;
    assert!(String::from_utf8_lossy(&said).contains("kept"));
    wait_for("the keeper", DEADLINE, || keeper(&tag).is_some());
    place.close(runtime).await;
}
