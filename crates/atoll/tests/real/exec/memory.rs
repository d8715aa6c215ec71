//! Out-of-memory kills: the killed command is reported, and the others in the sandbox are not.

use atoll_model::ExecSpec;

use crate::harness::{DEADLINE, Kind, World, probe_spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_command_over_the_limit_reports_out_of_memory() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Base, |spec| spec.limits.memory.0 = 64 << 20)
        .await;
    let sleeper = async || {
        let sleep = probe_spec(&["sleep", "300"]).deadline(DEADLINE);
        world.runtime.exec(&id, sleep).await.unwrap()
    };
    let (killed, signalled, inside) = (sleeper().await, sleeper().await, sleeper().await);
    let eat = probe_spec(&["c02-memory", "anon", "536870912"]).variable("HOLD", "1");
    let eaten = world.exec(&id, eat).await;
    assert!(eaten.status.oom_killed, "{eaten:?}");
    killed.kill().unwrap();
    signalled.signal(9).await.unwrap();
    // A process in the sandbox kills the third command.
    let line = format!("kill -9 {}", inside.handle.info().pid);
    let kill = ExecSpec::shell(line).user("root").deadline(DEADLINE);
    assert!(world.exec(&id, kill).await.status.success());
    for exec in [killed, signalled, inside] {
        let status = exec.wait().await;
        assert_eq!((status.signal, status.oom_killed), (Some(9), false));
    }
    // The next OOM kill is reported too.
    let eat = probe_spec(&["c02-memory", "anon", "536870912"]).variable("HOLD", "1");
    assert!(world.exec(&id, eat).await.status.oom_killed);
    world.close().await;
}
