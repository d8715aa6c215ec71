//! C02: memory of every kind. The allocating processes stop at 256 MiB by themselves, so that a
//! missing limit does no harm.

use std::time::Duration;

use atoll_model::runtime::ExecResult;
use atoll_model::{Bytes, SandboxId};
use atoll_testkit::{Attempt, attempts};

use crate::attacks::USERS;
use crate::harness::{Kind, World, probe_spec, stdout_text};

const LIMIT: u64 = 64 << 20;
const MOST: &str = "268435456";
/// Reclaimable memory is slow to allocate: twice the limit is enough.
const MOST_CACHE: &str = "134217728";

/// Expected end of an allocating process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The kernel kills the process.
    Killed,
    /// A limit below the memory limit rejects the allocation.
    Refused,
    /// The kernel reclaims unneeded memory.
    Unharmed,
}

const KINDS: &[(&str, &str, End)] = &[
    ("anon", "", End::Killed),
    ("memfd", "", End::Killed),
    ("shm", "", End::Killed),
    ("sockets", "", End::Killed),
    ("pipes", "", End::Killed),
    ("tmpfs", "/dev/shm/hog", End::Refused),
    ("pagecache", "/hog", End::Unharmed),
    ("dentries", "/names", End::Unharmed),
];

async fn small(world: &World) -> SandboxId {
    world
        .sandbox_spec(Kind::Static, |spec| spec.limits.memory = Bytes(LIMIT))
        .await
}

async fn hog(world: &World, id: &SandboxId, user: &str, kind: &str, path: &str) -> ExecResult {
    let most = if ["dentries", "pagecache"].contains(&kind) {
        MOST_CACHE
    } else {
        MOST
    };
    let spec = probe_spec(&["c02-memory", kind, most, path])
        .user(user)
        .deadline(Duration::from_mins(1));
    world.exec(id, spec).await
}

/// Returns the attempt that the process printed for `kind`, if any.
fn last(finished: &ExecResult, kind: &str) -> Option<Attempt> {
    attempts(&String::from_utf8_lossy(&finished.stdout))
        .into_iter()
        .find(|it| it.what == kind)
}

async fn hogs_end_as_they_should(kinds: &[(&str, &str, End)]) {
    let world = World::open().await;
    let (id, neighbour) = (small(&world).await, small(&world).await);
    let init = world.runtime.host_pid(&id).expect("it runs");
    // A file that `user` can write too, and a directory.
    stdout_text(&world.probe(&id, "root", &["touch", "/hog"]).await);
    stdout_text(&world.probe(&id, "root", &["chmod", "/hog", "666"]).await);
    stdout_text(&world.probe(&id, "root", &["mkdir", "/names"]).await);
    let sleeper = world
        .runtime
        .exec(&neighbour, probe_spec(&["sleep", "600"]))
        .await
        .expect("it starts");
    for (kind, path, end) in kinds {
        for user in USERS {
            let finished = hog(&world, &id, user, kind, path).await;
            let last_attempt = last(&finished, kind);
            let seen = (
                finished.status.oom_killed,
                last_attempt.as_ref().map(|it| it.result.as_str()),
            );
            match end {
                End::Killed => {
                    assert_eq!(seen, (true, None), "{kind} as {user}: {finished:?}");
                    assert_eq!(finished.status.exit_code(), 137, "{kind} as {user}");
                }
                End::Refused => assert_eq!(
                    seen,
                    (false, Some("ENOSPC")),
                    "{kind} as {user}: {finished:?}"
                ),
                End::Unharmed => {
                    assert_eq!(seen, (false, Some("ok")), "{kind} as {user}: {finished:?}");
                }
            }
            let used = world.runtime.usage(&id).expect("it runs").memory;
            assert!(used <= Bytes(LIMIT), "{kind} as {user} uses {used}");
            if *kind == "tmpfs" {
                stdout_text(&world.probe(&id, "root", &["remove", path]).await);
            }
            assert_eq!(world.runtime.host_pid(&id).expect("PID 1 survives"), init);
            stdout_text(&world.probe(&id, user, &["true"]).await);
        }
    }
    sleeper
        .kill()
        .expect("the neighbour's program lived until now");
    assert_eq!(sleeper.wait().await.signal, Some(9));
    assert!(!sleeper.wait().await.oom_killed);
    stdout_text(&world.probe(&neighbour, "user", &["true"]).await);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_runs_out_only_for_the_hog() {
    hogs_end_as_they_should(&KINDS[..3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buffers_of_the_kernel_count_as_memory() {
    hogs_end_as_they_should(&KINDS[3..5]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caches_are_reclaimed_and_tmpfs_is_bounded() {
    hogs_end_as_they_should(&KINDS[5..]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hogs_get_all_memory_without_the_limit() {
    let world = World::open_with(|plan| {
        plan.limits
            .v1
            .retain(|(controller, _)| controller != "memory");
        plan.limits
            .v2
            .retain(|(file, _)| !file.starts_with("memory."));
    });
    let world = world.await;
    let id = small(&world).await;
    for (kind, path, _) in KINDS.iter().filter(|(_, _, end)| *end == End::Killed) {
        for user in USERS {
            let finished = hog(&world, &id, user, kind, path).await;
            let last_attempt = last(&finished, kind);
            assert!(
                last_attempt.as_ref().is_some_and(Attempt::worked),
                "{kind} as {user}: {finished:?}"
            );
        }
    }
    world.close().await;
}
