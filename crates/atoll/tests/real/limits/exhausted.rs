//! A sandbox whose PID 1 is killed by the OOM killer.

use atoll_model::{ExecSpec, SandboxState, StopReason};
use atoll_testkit::wait_for;

use super::limited;
use crate::harness::{DEADLINE, Kind, World, stdout_text};

/// Programs have a higher OOM score than PID 1. The test raises the score of PID 1 from outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oom_killed_pid_1_is_reported_as_out_of_memory() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Base, limited(1000, 64 << 20))
        .await;
    let neighbour = world.sandbox(Kind::Static).await;
    // Half of the memory is in tmpfs and belongs to no process, so that no program has a higher OOM score than PID
    // 1.
    let eat = "head -c 33554432 /dev/zero > /dev/shm/f; echo ready; read -r go; exec /probe c02-memory anon 536870912";
    let eater = ExecSpec::shell(eat).piped_stdin();
    let mut eater = world.runtime.exec(&id, eater).await.unwrap();
    // After the start of the program PID 1 does not change OOM scores.
    let mut text = [0; 6];
    assert_eq!(eater.stdout.read(&mut text).await.unwrap(), 6);
    let pid = world.runtime.host_pid(&id).unwrap();
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").unwrap();
    eater.handle.write_stdin(b"go\n").await.unwrap();
    wait_for("the sandbox to be reported as stopped", DEADLINE, || {
        world.runtime.get(&id).unwrap().state == SandboxState::Stopped
    });
    let info = world.runtime.get(&id).unwrap();
    assert_eq!(info.reason, Some(StopReason::Oom));
    drop(eater);
    stdout_text(&world.probe(&neighbour, "user", &["true"]).await);
    // The sandbox can be started, and works.
    let info = world.runtime.start(&id).await.unwrap();
    assert_eq!((info.state, info.reason), (SandboxState::Running, None));
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    world.close().await;
}
