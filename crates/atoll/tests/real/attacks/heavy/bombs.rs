//! C01: more processes than the limit allows, and processes that try to escape from cleanup.
//!
//! The bombs are bounded in number or in time, and the instance's control group has a limit of its
//! own besides the sandbox's: a missing defence fails the test but does not harm the machine.

use std::time::Duration;

use atoll_model::{ExecSpec, SandboxId};
use atoll_testkit::wait_for;

use crate::attacks::init::processes;
use crate::attacks::{USERS, attack};
use crate::harness::{DEADLINE, Kind, World, probe_spec, stdout_text};

const PIDS: u32 = 64;

async fn small(world: &World, kind: Kind) -> SandboxId {
    world
        .sandbox_spec(kind, |spec| spec.limits.pids = PIDS)
        .await
}

/// Limits the total number of processes in all sandboxes of the instance.
fn cage(world: &World) {
    let cgroups = &world.runtime.facts().cgroups;
    let root = cgroups
        .v1
        .get("pids")
        .or(cgroups.v2.as_ref())
        .expect("a pids controller");
    let file = root
        .join(format!("atoll-{}", world.runtime.tag()))
        .join("pids.max");
    std::fs::write(&file, "2000").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn wait_until_empty(world: &World, id: &SandboxId) {
    wait_for("only PID 1 to be left", DEADLINE, || {
        processes(world, id).len() == 1
    });
}

/// Forks processes, then starts threads. Returns the result of the last attempt and the number of
/// each.
async fn bomb(world: &World, id: &SandboxId, user: &str, most: &str) -> Vec<(String, u32)> {
    let found = attack(world, id, user, "/", &["c01-forkbomb", most]).await;
    let count = |what| {
        let it = found
            .iter()
            .find(|it| it.what == what)
            .expect("it was tried");
        (
            it.result.clone(),
            it.value("count")
                .and_then(|count| count.parse().ok())
                .expect("a count"),
        )
    };
    vec![count("fork"), count("thread")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_ends_at_the_limit() {
    let world = World::open().await;
    cage(&world);
    let id = small(&world, Kind::Static).await;
    for user in USERS {
        for (end, count) in bomb(&world, &id, user, "100000").await {
            assert_eq!(end, "EAGAIN", "{user}");
            assert!((PIDS / 2..PIDS).contains(&count), "{user} {count}");
        }
        assert!(world.runtime.usage(&id).expect("it runs").pids <= u64::from(PIDS));
    }
    wait_until_empty(&world, &id);
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fork_bomb_continues_without_the_limit() {
    let world = World::open_with(|plan| {
        plan.limits
            .v1
            .retain(|(controller, _)| controller != "pids");
        plan.limits.v2.retain(|(file, _)| file != "pids.max");
    });
    let world = world.await;
    cage(&world);
    let id = small(&world, Kind::Static).await;
    for user in USERS {
        for (end, count) in bomb(&world, &id, user, "300").await {
            assert_eq!((end.as_str(), count), ("ok", 300), "{user}");
        }
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_fork_bomb_without_harm_to_neighbours() {
    let world = World::open().await;
    cage(&world);
    let (id, neighbour) = (
        small(&world, Kind::Static).await,
        world.sandbox(Kind::Static).await,
    );
    for user in USERS {
        // On a slow machine the sandbox may not fill before the deadline; the test retries with a
        // longer one.
        let mut full = false;
        for seconds in [5, 15, 45] {
            let spec = probe_spec(&["c01-wild", "600"])
                .user(*user)
                .deadline(Duration::from_secs(seconds));
            let exec = world.runtime.exec(&id, spec).await.expect("it starts");
            wait_for("the bomb to fill the sandbox or to end", DEADLINE, || {
                full = processes(&world, &id).len() >= PIDS as usize - 8;
                full || exec.handle.info().status.is_some()
            });
            stdout_text(&world.probe(&neighbour, "user", &["true"]).await);
            let finished = exec.finish(b"", 1 << 20).await.expect("it can be read");
            assert!(finished.status.timed_out, "{user} {:?}", finished.status);
            wait_until_empty(&world, &id);
            stdout_text(&world.probe(&id, user, &["true"]).await);
            if full {
                break;
            }
        }
        assert!(full, "{user}: the bomb never filled the sandbox");
    }
    world.close().await;
}

/// The daemons are double-forked, have their own sessions and ignore every signal: only the control
/// group finds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_kills_daemons() {
    let world = World::open().await;
    let id = small(&world, Kind::Base).await;
    for user in USERS {
        // On a busy machine the processes may not exist in time; the test retries with a longer
        // deadline.
        let mut found = false;
        for seconds in [2, 8, 30] {
            found = met(&world, &id, user, Duration::from_secs(seconds)).await;
            if found {
                break;
            }
        }
        assert!(found, "{user}: there were never twenty");
    }
    world.close().await;
}

/// Returns true if all daemons ran before the deadline. Asserts that the deadline kills them.
async fn met(world: &World, id: &SandboxId, user: &str, deadline: Duration) -> bool {
    let line = "/probe c01-daemons 20 && exec /probe sleep 600";
    let spec = ExecSpec::shell(line).user(user).deadline(deadline);
    let exec = world.runtime.exec(id, spec).await.expect("it starts");
    let mut most = 0;
    while exec.handle.info().status.is_none() {
        most = most.max(processes(world, id).len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let finished = exec.finish(b"", 1 << 20).await.expect("it can be read");
    assert!(finished.status.timed_out, "{user} {:?}", finished.status);
    wait_until_empty(world, id);
    most >= 22
}

/// The control: a command that exits by itself leaves its daemons running; a signal to its process
/// group or session would not reach them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn daemons_without_a_deadline_live_until_the_sandbox_is_deleted() {
    let world = World::open().await;
    let id = small(&world, Kind::Static).await;
    stdout_text(&world.probe(&id, "user", &["c01-daemons", "20"]).await);
    let all = processes(&world, &id);
    assert_eq!(all.len(), 21, "PID 1 and the daemons");
    world.runtime.delete(&id).await.expect("it can be deleted");
    let alive = all
        .iter()
        .filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(alive.count(), 0);
    world.close().await;
}
