//! A17: attacks on PID 1 from inside a sandbox, and the death of PID 1.

use std::path::PathBuf;

use atoll_model::{Code, ExecSpec, SandboxId};
use atoll_testkit::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use super::{Case, check, line};
use crate::harness::{DEADLINE, Kind, World, probe_spec, stdout_text};

/// There is no control: see [`super::IMPOSSIBLE`]. `only_processes_of_the_sandbox_can_be_traced`
/// shows that the same calls work on another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pid_1_survives_every_attack_from_inside() {
    check(&Case {
        probe: &["a17-pid1"],
        place: "/",
        gains: |_, found| {
            let mut gained = Vec::new();
            for it in found {
                let (what, _) = it.what.split_once(':').unwrap_or((&it.what, ""));
                let lost = match what {
                    "before" | "after-signals" | "after-all" => !it
                        .value("state")
                        .is_some_and(|state| ["R", "S"].contains(&state)),
                    // The kernel drops signals to PID 1; the other calls change nothing.
                    "kill" | "pidfd_open" | "pidfd_send_signal" | "prlimit-get" => false,
                    _ => it.worked(),
                };
                if lost {
                    gained.push(line(it));
                }
            }
            gained
        },
        controls: &[],
    })
    .await;
}

/// The password for `clone3` is in PID 1's memory and, during the start of a program, in PID 1's
/// registers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_program_inside_reads_memory_or_registers_of_pid_1() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let read = "for of in 1 self; do for file in syscall mem maps auxv; do \
        head -c 0 /proc/$of/$file 2>/dev/null && echo $of $file; done; done";
    for user in ["root", "user"] {
        let finished = world.exec(&id, ExecSpec::shell(read).user(user)).await;
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert_eq!(
            text, "self syscall\nself mem\nself maps\nself auxv\n",
            "{user}"
        );
    }
    world.close().await;
}

/// Returns the control groups of a sandbox. The cgroup2 group is the last one.
pub(super) fn groups(world: &World, id: &SandboxId) -> Vec<PathBuf> {
    let cgroups = &world.runtime.facts().cgroups;
    let roots = cgroups.v1.values().chain(&cgroups.v2);
    roots
        .map(|root| {
            root.join(format!("atoll-{}", world.runtime.tag()))
                .join(id.as_str())
        })
        .collect()
}

/// Returns the host pids of a sandbox's processes.
pub(super) fn processes(world: &World, id: &SandboxId) -> Vec<u32> {
    fn below(directory: &std::path::Path, found: &mut Vec<u32>) {
        let list = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        found.extend(list.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                below(&entry.path(), found);
            }
        }
    }
    let mut found = Vec::new();
    below(
        groups(world, id).last().expect("there is a cgroup2"),
        &mut found,
    );
    found
}

fn signal(world: &World, id: &SandboxId, signal: Signal) {
    let pid = world.runtime.host_pid(id).expect("it runs");
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it can be signalled");
}

fn left(world: &World, id: &SandboxId) -> Vec<PathBuf> {
    groups(world, id)
        .into_iter()
        .filter(|path| path.exists())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_pid_1_is_stopped_and_leaves_nothing() {
    let world = World::open().await;
    let neighbour = world.sandbox(Kind::Static).await;
    let id = world.sandbox(Kind::Static).await;
    stdout_text(&world.probe(&id, "user", &["daemon", "600"]).await);
    let sleeper = world
        .runtime
        .exec(&id, probe_spec(&["sleep", "600"]))
        .await
        .expect("it starts");
    assert!(
        processes(&world, &id).len() >= 3,
        "PID 1, a daemon and an exec"
    );
    assert_eq!(
        left(&world, &id).len(),
        groups(&world, &id).len(),
        "the groups are where they are looked for"
    );
    signal(&world, &id, Signal::KILL);
    let status = tokio::time::timeout(DEADLINE, sleeper.wait())
        .await
        .expect("the end of the command is reported");
    assert_eq!(status.signal, Some(9));
    wait_for("the sandbox to be reported as ended", DEADLINE, || {
        world
            .runtime
            .host_pid(&id)
            .is_err_and(|error| error.code == Code::SandboxStopped)
    });
    let refused = world
        .runtime
        .exec(&id, probe_spec(&["true"]))
        .await
        .expect_err("it has ended");
    assert_eq!(refused.code, Code::SandboxStopped, "{refused}");
    assert_eq!(processes(&world, &id), [0_u32; 0]);
    drop(sleeper);
    world.runtime.delete(&id).await.expect("it can be deleted");
    assert_eq!(left(&world, &id), Vec::<PathBuf>::new());
    stdout_text(&world.probe(&neighbour, "user", &["true"]).await);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_whose_pid_1_is_stopped_can_be_deleted() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    stdout_text(&world.probe(&id, "user", &["daemon", "600"]).await);
    signal(&world, &id, Signal::STOP);
    let delete = tokio::time::timeout(DEADLINE, world.runtime.delete(&id));
    delete
        .await
        .expect("it does not hang")
        .expect("it can be deleted");
    assert_eq!(left(&world, &id), Vec::<PathBuf>::new());
    world.close().await;
}
