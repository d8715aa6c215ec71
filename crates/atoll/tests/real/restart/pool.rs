//! Warm sandboxes survive a kill of the server: the same ones, no additional ones, and none half claimed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use atoll_model::{ExecSpec, SandboxId, SandboxSpec};
use atoll_testkit::wait_for;
use atoll_worker::{Config, LocalRuntime};

use super::{EMBRYOS, Place, WARM, children, keeper, kill, prepared, serve as start, word};
use crate::harness::{DEADLINE, Kind, template, templates};

/// Creates a sandbox, waits until the pools are full, then until the process is killed.
pub(super) async fn serve(data: &Path) {
    let runtime = LocalRuntime::open(prepared(data)).await.unwrap();
    runtime.create(SandboxSpec::default()).await.unwrap();
    while runtime.pool_sizes() != (WARM, EMBRYOS) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (file, new) = (word("FILE"), word("FILE") + ".new");
    std::fs::write(&new, runtime.tag()).unwrap();
    std::fs::rename(new, file).unwrap();
    std::future::pending::<()>().await;
}

/// The warm sandboxes, by their records.
fn pooled(data: &Path) -> BTreeSet<SandboxId> {
    let entries = std::fs::read_dir(data.join("sandboxes")).unwrap().flatten();
    let one = |entry: std::fs::DirEntry| {
        let text = std::fs::read(entry.path().join("record.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let id = entry.file_name().to_str()?.parse().unwrap();
        (record["pooled"] == true).then_some(id)
    };
    entries.filter_map(one).collect()
}

/// Maps each sandbox to its process, by cgroup.
fn homes(all: &BTreeSet<i32>) -> BTreeMap<SandboxId, i32> {
    let one = |pid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let id = text.split(['/', '\n']).find_map(|part| part.parse().ok())?;
        Some((id, *pid))
    };
    all.iter().filter_map(one).collect()
}

/// A server with a sandbox, warm ones and embryos, and its keeper.
async fn filled(place: &Place) -> (Child, i32) {
    tokio::task::spawn_blocking(templates).await.unwrap();
    let file = place.file("made");
    let words = [("FILE", &*file.to_string_lossy())];
    let server = start("pool", place, &words);
    wait_for("warm ones", DEADLINE, || file.exists());
    let keeper = keeper(&std::fs::read_to_string(&file).unwrap()).unwrap();
    (server, keeper)
}

/// Effective user id of a process; `None` if it has ended.
fn acts_as(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphaned_embryos_end_before_their_ids_are_reused() {
    let place = Place::new();
    let (mut server, keeper) = filled(&place).await;
    let warm = pooled(&place.data());
    // Read before the kill, because the next server may end them at once.
    let homes = homes(&children(keeper));
    let users: BTreeMap<i32, Option<u32>> =
        homes.values().map(|pid| (*pid, acts_as(*pid))).collect();
    kill(&mut server);
    let config = Config {
        warm_count: 0,
        embryo_count: 0,
        ..prepared(&place.data())
    };
    let runtime = LocalRuntime::open(config).await.unwrap();
    let made: BTreeSet<_> = runtime.list().into_iter().map(|info| info.id).collect();
    let homes = homes.into_iter();
    let embryos = homes.filter(|(id, _)| !warm.contains(id) && !made.contains(id));
    let embryos: BTreeSet<i32> = embryos.map(|(_, pid)| pid).collect();
    assert_eq!(embryos.len(), EMBRYOS);
    let cold = SandboxSpec {
        template: template(Kind::Static),
        ..SandboxSpec::default()
    };
    // More creates than the last server had embryos, so that their numbers would be reused.
    for _ in 0..=EMBRYOS {
        let id = runtime.create(cold.clone()).await.unwrap().id;
        let ours = acts_as(runtime.host_pid(&id).unwrap());
        for pid in &embryos {
            let lives = acts_as(*pid).is_some();
            assert!(!lives || ours != users[pid], "{id} has the ids of {pid}");
        }
    }
    wait_for("the embryos to end", DEADLINE, || {
        children(keeper).is_disjoint(&embryos)
    });
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_sandboxes_are_taken_over_and_no_more_are_made() {
    let place = Place::new();
    let (mut server, keeper) = filled(&place).await;
    let before = pooled(&place.data());
    assert_eq!(before.len(), WARM);
    let pids = homes(&children(keeper));
    kill(&mut server);
    let runtime = LocalRuntime::open(prepared(&place.data())).await.unwrap();
    assert_eq!(runtime.pool_sizes().0, WARM, "they are there at once");
    // New embryos are created; those of the previous server are removed.
    wait_for("all to be as it was", DEADLINE, || {
        runtime.pool_sizes() == (WARM, EMBRYOS) && children(keeper).len() == 1 + WARM + EMBRYOS
    });
    assert_eq!(pooled(&place.data()), before);
    let mut claimed = BTreeSet::new();
    for _ in 0..WARM {
        let made = runtime.create(SandboxSpec::default()).await.unwrap();
        assert!(made.timings.root.is_zero(), "{made:?} was not warm");
        assert_eq!(runtime.host_pid(&made.id).unwrap(), pids[&made.id]);
        let exec = runtime.exec(&made.id, ExecSpec::argv(["echo", "on"])).await;
        let done = exec.unwrap().finish(b"", 10).await.unwrap();
        assert_eq!(done.stdout, b"on\n");
        claimed.insert(made.id);
    }
    // No sandbox is claimed twice, and none is new.
    assert_eq!(claimed, before);
    place.close(runtime).await;
}
