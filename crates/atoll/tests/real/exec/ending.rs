//! How a command ends: by itself, by a signal, at its deadline, with or without its children.

use std::time::{Duration, Instant};

use atoll_model::{ExecSpec, ExecStatus, SandboxId};
use atoll_testkit::wait_for;
use atoll_worker::StartedExec;

use crate::harness::{DEADLINE, Kind, World, in_both, probe_spec, stdout_text};

/// Waits until only the sandbox's own PID 1 is left.
fn wait_until_alone(world: &World, id: &SandboxId) {
    wait_for("the sandbox to be empty", DEADLINE, || {
        world.runtime.usage(id).unwrap().pids == 1
    });
}

/// Reads its output until it contains `word`.
async fn wait_until_said(exec: &mut StartedExec, word: &str) {
    let mut heard = String::new();
    while !heard.contains(word) {
        let mut buffer = [0; 4096];
        let read = exec.stdout.read(&mut buffer).await.unwrap();
        assert!(read > 0, "it ended after {heard:?}");
        heard.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_exit_code_is_reported() {
    in_both(async |world, id| {
        for code in 0..=255 {
            let done = world.probe(id, "user", &["exit", &code.to_string()]).await;
            let expected = ExecStatus {
                code: Some(code),
                ..ExecStatus::default()
            };
            assert_eq!(done.status, expected);
            assert_eq!(done.status.exit_code(), code);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fatal_signal_is_reported_as_a_signal() {
    in_both(async |world, id| {
        for signal in [1, 2, 3, 4, 6, 8, 9, 10, 11, 13, 14, 15, 24, 31, 34, 64] {
            let done = world
                .probe(id, "user", &["signal", &signal.to_string()])
                .await;
            let expected = ExecStatus {
                signal: Some(signal),
                ..ExecStatus::default()
            };
            assert_eq!(done.status, expected);
            assert_eq!(done.status.exit_code(), 128 + signal);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_ends_the_whole_process_tree() {
    in_both(async |world, id| {
        for command in [
            &["tree-of-processes", "9", "300"][..],
            &["ignore-term", "300"],
            &["spin", "300", "3"],
        ] {
            let begin = Instant::now();
            let spec = probe_spec(command).deadline(Duration::from_millis(300));
            let done = world.exec(id, spec).await;
            assert!(done.status.timed_out, "{:?}", done.status);
            assert_eq!(done.status.exit_code(), 124);
            assert_eq!(done.status.signal, Some(9));
            assert!(!done.status.oom_killed);
            assert!(begin.elapsed() >= Duration::from_millis(300));
            wait_until_alone(world, id);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_daemons_too() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "/probe daemon 300; setsid /probe ignore-term 300 & exec /probe sleep 300";
    // On a slow machine the daemons may not have started before the deadline; the test retries with a longer one.
    let mut started = false;
    for seconds in [2, 8, 30] {
        let spec = ExecSpec::shell(line).deadline(Duration::from_secs(seconds));
        let done = world.exec(&id, spec).await;
        assert!(done.status.timed_out, "{done:?}");
        wait_until_alone(&world, &id);
        started = done.stdout.starts_with(b"pid ");
        if started {
            break;
        }
    }
    assert!(started, "the daemon never started");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_that_is_not_reached_has_no_effect() {
    in_both(async |world, id| {
        let spec = probe_spec(&["exit", "3"]).deadline(DEADLINE);
        let done = world.exec(id, spec).await;
        assert_eq!(done.status.code, Some(3));
        assert!(!done.status.timed_out);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn surviving_children_do_not_delay_the_end_of_the_command() {
    let world = World::open().await;
    for kind in crate::harness::KINDS {
        let id = world.sandbox(kind).await;
        let done = world.probe(&id, "user", &["daemon", "300", "hold"]).await;
        let pid = stdout_text(&done)
            .trim()
            .strip_prefix("pid ")
            .unwrap()
            .to_owned();
        let there = ["stat", &format!("/proc/{pid}")];
        stdout_text(&world.probe(&id, "user", &there).await);
        wait_for("the daemon alone", DEADLINE, || {
            world.runtime.usage(&id).unwrap().pids == 2
        });
        stdout_text(&world.probe(&id, "user", &there).await);
        // The orphaned process ends with the sandbox.
        world.runtime.delete(&id).await.unwrap();
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writing_children_do_not_delay_the_end_of_the_command() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "echo first; yes & yes >&2 & sleep 0.1; exit 5";
    let exec = world
        .runtime
        .exec(&id, ExecSpec::shell(line))
        .await
        .unwrap();
    let finish = exec.finish(b"", 1 << 20);
    let done = tokio::time::timeout(DEADLINE, finish)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(done.status.code, Some(5));
    assert!(done.stdout.starts_with(b"first\n") && done.stderr.starts_with(b"y\n"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_reaches_the_whole_process_group() {
    in_both(async |world, id| {
        let spec = probe_spec(&["tree-of-processes", "7", "300"]).deadline(DEADLINE);
        let mut exec = world.runtime.exec(id, spec).await.unwrap();
        wait_until_said(&mut exec, "ready 7").await;
        exec.signal(15).await.unwrap();
        assert_eq!(exec.wait().await.signal, Some(15));
        wait_until_alone(world, id);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_reaches_every_process_of_the_command() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "/probe daemon 300; setsid /probe ignore-term 300 & exec /probe ignore-term 300";
    let spec = ExecSpec::shell(line).deadline(DEADLINE);
    let mut exec = world.runtime.exec(&id, spec).await.unwrap();
    wait_until_said(&mut exec, "ignoring").await;
    exec.kill().unwrap();
    let status = exec.wait().await;
    assert_eq!((status.signal, status.timed_out), (Some(9), false));
    wait_until_alone(&world, &id);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_spares_other_commands() {
    in_both(async |world, id| {
        let sleep = || probe_spec(&["tree-of-processes", "3", "300"]).deadline(DEADLINE);
        let mut first = world.runtime.exec(id, sleep()).await.unwrap();
        let mut second = world.runtime.exec(id, sleep()).await.unwrap();
        wait_until_said(&mut first, "ready").await;
        wait_until_said(&mut second, "ready").await;
        first.kill().unwrap();
        assert_eq!(first.wait().await.signal, Some(9));
        wait_for("the second alone", DEADLINE, || {
            world.runtime.usage(id).unwrap().pids == 4
        });
        second.signal(2).await.unwrap();
        assert_eq!(second.wait().await.signal, Some(2));
        // Both calls have no effect on an ended command.
        second.signal(9).await.unwrap();
        let _ = second.kill();
        stdout_text(&world.probe(id, "user", &["true"]).await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_exec_handle_kills_no_command() {
    in_both(async |world, id| {
        let spec = probe_spec(&["tree-of-processes", "2", "300"]);
        let mut exec = world.runtime.exec(id, spec).await.unwrap();
        wait_until_said(&mut exec, "ready").await;
        drop(exec);
        stdout_text(&world.probe(id, "user", &["true"]).await);
        wait_for("the two that stay", DEADLINE, || {
            world.runtime.usage(id).unwrap().pids == 3
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_commands_do_not_accumulate_control_groups() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    for _ in 0..20 {
        stdout_text(&world.probe(&id, "user", &["true"]).await);
        let missing = world.runtime.exec(&id, ExecSpec::argv(["/missing"])).await;
        assert!(missing.is_err());
        // The cgroup of a killed command is not reused: the kernel would kill the next command too.
        let killed = world.runtime.exec(&id, probe_spec(&["sleep", "100"])).await;
        let killed = killed.unwrap();
        killed.kill().unwrap();
        assert_eq!(killed.wait().await.signal, Some(9));
        killed.kill().unwrap();
    }
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    let facts = world.runtime.facts();
    let group = facts.cgroups.v2.clone().unwrap();
    let group = group
        .join(format!("atoll-{}", world.runtime.tag()))
        .join(id.as_str());
    let leaves = || {
        let entries = std::fs::read_dir(&group).unwrap().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    // A few cgroups are kept for reuse; the next command removes those that were still busy.
    wait_for("few directories of execs", DEADLINE, || leaves() <= 4);
    world.close().await;
}

/// Before exec, root inside can already kill or stop a command's process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_starts_after_all_processes_were_killed_or_stopped() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    for signal in ["KILL", "STOP", "TERM", "KILL"] {
        for _ in 0..5 {
            // It fails if there was no process to kill yet.
            let line = format!("kill -{signal} -1");
            world.exec(&id, ExecSpec::shell(line).user("root")).await;
            assert_eq!(
                stdout_text(&world.probe(&id, "user", &["echo", "on"]).await),
                "on\n"
            );
        }
    }
    world.close().await;
}
