//! Sandboxes that do not respond (C11): every process is stopped, is stopped repeatedly, or is frozen with the
//! sandbox. Every kind of call returns in time, with its result or with an error that names the reason.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::time::Duration;

use atoll_model::{
    Authority, Code, Error, ExecSpec, RunAs, SandboxId, SandboxState, TerminalSize, WatchOptions,
    WriteOptions,
};
use atoll_testkit::wait_for;
use atoll_worker::{ExecHandle, LocalRuntime, Watch};

use crate::harness::{DEADLINE, Kind, World, probe_spec, stdout_text};

/// Timeout of the server for a sandbox in these tests.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Time after which a call counts as hanging: each waits for a few timeouts at most.
const HANGS: Duration = DEADLINE;

type Done = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Objects that are open in a sandbox before it stops responding.
struct Open {
    watch: Watch,
    terminal: ExecHandle,
    long: ExecHandle,
}

impl Open {
    async fn new(runtime: &LocalRuntime, id: &SandboxId, user: &str) -> Self {
        let size = TerminalSize {
            rows: 24,
            columns: 80,
        };
        let start = async |spec: ExecSpec| {
            let exec = runtime.exec(id, spec.user(user)).await;
            exec.unwrap().handle
        };
        let caller = caller(user);
        let watch = runtime.watch(id, &caller, b"/tmp", WatchOptions::recursive());
        Self {
            watch: watch.await.unwrap(),
            terminal: start(probe_spec(&["sleep", "600"]).terminal(size)).await,
            long: start(probe_spec(&["sleep", "600"]).piped_stdin()).await,
        }
    }
}

fn caller(user: &str) -> RunAs {
    RunAs {
        user: Some(user.into()),
        authority: Authority::User,
    }
}

/// Every kind of call, by name, as a user.
fn calls(runtime: &LocalRuntime, id: &SandboxId, user: &str, open: Open) -> Vec<(String, Done)> {
    let mut all: Vec<(String, Done)> = Vec::new();
    macro_rules! call {
        ($name:literal, |$runtime:ident, $id:ident, $caller:ident| $work:expr) => {{
            let ($runtime, $id, $caller) = (runtime.clone(), id.clone(), caller(user));
            let work = async move {
                $work;
                Ok(())
            };
            all.push((format!("{} as {user}", $name), Box::pin(work)));
        }};
    }
    let path = |name: &str| format!("/tmp/{name}-{user}").into_bytes();
    let (one, two, new) = (path("one"), path("two"), path("new"));
    let Open {
        mut watch,
        terminal,
        long,
    } = open;
    call!("exec", |runtime, id, caller| {
        let spec = probe_spec(&["echo", "on"]).user(caller.user.unwrap());
        let done = runtime.exec(&id, spec).await?;
        done.handle.kill()?;
    });
    call!("exec with input", |runtime, id, caller| {
        let spec = probe_spec(&["cat"])
            .user(caller.user.unwrap())
            .piped_stdin();
        runtime.exec(&id, spec).await?.handle.kill()?;
    });
    call!("terminal", |runtime, id, caller| {
        let (rows, columns) = (24, 80);
        let spec = probe_spec(&["cat"]).terminal(TerminalSize { rows, columns });
        let spec = spec.user(caller.user.unwrap());
        runtime.exec(&id, spec).await?.handle.kill()?;
    });
    let (path, data) = (one.clone(), vec![7; 3 << 20]);
    call!("write", |runtime, id, caller| {
        let options = WriteOptions::default();
        let mut writer = runtime.write_file(&id, &caller, &path, options).await?;
        writer.write(&data).await?;
        writer.commit().await?;
    });
    call!("send", |runtime, id, caller| {
        let options = WriteOptions::default();
        let mut writer = runtime.write_file(&id, &caller, &two, options).await?;
        let program = std::fs::File::open(atoll_testkit::probe()).unwrap();
        writer.splice_from(program).await?;
        writer.commit().await?;
    });
    call!("read", |runtime, id, caller| {
        let reader = runtime.read_file(&id, &caller, b"/probe").await?;
        reader.read_to_end(64 << 20).await?;
    });
    call!("save", |runtime, id, caller| {
        let reader = runtime.read_file(&id, &caller, b"/probe").await?;
        let file = rustix::fs::memfd_create("saved", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        reader.splice_to(OwnedFd::into(file)).await?;
    });
    call!("stat", |runtime, id, caller| runtime
        .stat(&id, &caller, b"/probe", true)
        .await?);
    call!("list", |runtime, id, caller| runtime
        .list_files(&id, &caller, b"/etc", 3, 10_000)
        .await?);
    call!("make a directory", |runtime, id, caller| runtime
        .make_directory(&id, &caller, &new, 0o755, true)
        .await?);
    let there = one;
    call!("copy", |runtime, id, caller| {
        let to = [&there[..], b".copy"].concat();
        runtime.copy(&id, &caller, b"/probe", &to, true).await?;
    });
    call!("watch", |runtime, id, caller| {
        let options = WatchOptions::recursive();
        let mut watch = runtime.watch(&id, &caller, b"/tmp", options).await?;
        watch.drain().await?;
    });
    call!("drain a watch", |_runtime, _id, _caller| watch
        .drain()
        .await?);
    call!("attach", |_runtime, _id, _caller| {
        terminal.attach()?;
        let (rows, columns) = (30, 90);
        terminal.resize(TerminalSize { rows, columns })?;
        terminal.write_stdin(b"typed").await?;
    });
    call!("input", |_runtime, _id, _caller| {
        long.write_stdin(b"some").await?;
        long.signal(rustix::process::Signal::USR1.as_raw()).await?;
    });
    call!("usage", |runtime, id, _caller| {
        runtime.usage(&id)?;
        runtime.disk_usage(&id).await?;
        runtime.execs(&id)?;
        runtime.get(&id)?;
    });
    call!("ports", |runtime, id, _caller| {
        runtime.ports(&id).await?;
        runtime.watch_ports(&id).await?;
    });
    call!("dial", |runtime, id, _caller| runtime.dial(&id, 9).await?);
    all
}

/// Makes all calls concurrently and returns their results.
async fn all(calls: Vec<(String, Done)>) -> Vec<(String, Result<(), Error>)> {
    let each = calls.into_iter().map(|(name, work)| {
        tokio::spawn(async move {
            let ended = tokio::time::timeout(HANGS, work).await;
            let ended = ended.unwrap_or_else(|_| panic!("{name}: it hangs"));
            (name, ended)
        })
    });
    let mut ended = Vec::new();
    for call in each.collect::<Vec<_>>() {
        ended.push(call.await.unwrap());
    }
    ended
}

/// Calls that failed with other codes than `codes`. The dialled port has no listener.
fn unexpected(ended: Vec<(String, Result<(), Error>)>, codes: &[Code]) -> Vec<String> {
    let wrong = ended.into_iter().filter_map(|(name, ended)| match ended {
        Err(error) if name.starts_with("dial") && error.code == Code::Conflict => None,
        Err(error) if !codes.contains(&error.code) => Some(format!("{name}: {error:?}")),
        _ => None,
    });
    wrong.collect()
}

async fn in_time<T>(what: &str, work: impl Future<Output = Result<T, Error>>) -> T {
    let ended = tokio::time::timeout(HANGS, work).await;
    let ended = ended.unwrap_or_else(|_| panic!("{what}: it hangs"));
    ended.unwrap_or_else(|error| panic!("{what}: {error:?}"))
}

async fn with_short_timeout() -> World {
    World::open_as(|config| config.response_timeout = TIMEOUT).await
}

/// Stops, starts and deletes the sandbox without a timeout.
async fn end(world: &World, id: &SandboxId) {
    let runtime = &world.runtime;
    in_time("stop", runtime.stop(id)).await;
    in_time("start", runtime.start(id)).await;
    stdout_text(&world.probe(id, "user", &["true"]).await);
    in_time("delete", runtime.delete(id)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_works_after_all_processes_were_stopped() {
    let world = with_short_timeout().await;
    for stopper in ["root", "user"] {
        let id = world.sandbox(Kind::Base).await;
        let mut pending = Vec::new();
        for user in ["root", "user"] {
            let open = Open::new(&world.runtime, &id, user).await;
            pending.extend(calls(&world.runtime, &id, user, open));
        }
        stdout_text(
            &world
                .exec(&id, ExecSpec::shell("kill -STOP -1").user(stopper))
                .await,
        );
        assert_eq!(unexpected(all(pending).await, &[]), [""; 0], "{stopper}");
        end(&world, &id).await;
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_returns_while_all_processes_are_kept_stopped() {
    let world = with_short_timeout().await;
    let neighbour = world.sandbox(Kind::Base).await;
    let id = world.sandbox(Kind::Base).await;
    let (mut pending, mut others) = (Vec::new(), Vec::new());
    for user in ["root", "user"] {
        let open = Open::new(&world.runtime, &id, user).await;
        pending.extend(calls(&world.runtime, &id, user, open));
        let open = Open::new(&world.runtime, &neighbour, user).await;
        others.extend(calls(&world.runtime, &neighbour, user, open));
    }
    let storm = ExecSpec::shell("trap '' CONT; while :; do kill -STOP -1; done").user("root");
    let storm = world.runtime.exec(&id, storm).await.unwrap();
    let ended = all(pending).await;
    let silent = ended.iter().filter(|(_, ended)| ended.is_err()).count();
    // The control: without the storm nothing fails.
    assert!(silent > 2, "{ended:?}");
    let codes = [Code::Timeout, Code::Conflict];
    assert_eq!(unexpected(ended, &codes), [""; 0]);
    assert_eq!(unexpected(all(others).await, &[]), [""; 0]);
    storm.kill().unwrap();
    storm.wait().await;
    end(&world, &id).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_returns_on_a_paused_sandbox() {
    let world = with_short_timeout().await;
    let runtime = &world.runtime;
    let id = world.sandbox(Kind::Base).await;
    let mut pending = Vec::new();
    let mut long = None;
    for user in ["root", "user"] {
        let open = Open::new(runtime, &id, user).await;
        long = Some(open.long.clone());
        pending.extend(calls(runtime, &id, user, open));
    }
    // Operations that are in progress when PID 1 stops responding.
    let root = RunAs::root();
    let fast = std::fs::File::open("/dev/zero").unwrap();
    let options = WriteOptions::default();
    let mut sending = runtime
        .write_file(&id, &root, b"/big", options)
        .await
        .unwrap();
    let sending = tokio::spawn(async move { sending.splice_from(fast).await });
    wait_for("the transfer to be under way", DEADLINE, || {
        let pid = runtime.host_pid(&id).unwrap();
        let entries = std::fs::read_dir(format!("/proc/{pid}/root")).unwrap();
        let sizes = entries.flatten().filter_map(|entry| entry.metadata().ok());
        sizes.map(|found| found.len()).sum::<u64>() > 8 << 20
    });
    in_time("pause", runtime.pause(&id)).await;
    let ended = all(pending).await;
    for (name, ended) in &ended {
        let works = ["attach", "input", "usage"]
            .iter()
            .any(|it| name.starts_with(it));
        assert_eq!(ended.is_ok(), works, "{name}: {ended:?}");
    }
    assert_eq!(unexpected(ended, &[Code::SandboxPaused]), [""; 0]);
    let sent = tokio::time::timeout(HANGS, sending)
        .await
        .expect("it hangs");
    let error = sent.unwrap().unwrap_err();
    assert!(
        [Code::SandboxPaused, Code::Timeout].contains(&error.code),
        "{error:?}"
    );
    // Signals queue for PID 1, up to the limit of the queue.
    let long = long.unwrap();
    let refused = async {
        loop {
            let sent = long.signal(rustix::process::Signal::WINCH.as_raw()).await;
            if let Err(error) = sent {
                break error;
            }
        }
    };
    let refused = tokio::time::timeout(HANGS, refused).await;
    assert_eq!(refused.expect("it hangs").code, Code::SandboxPaused);
    in_time("resume", runtime.resume(&id)).await;
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    // An incomplete upload leaves no file.
    let found = runtime.stat(&id, &root, b"/big", true).await;
    assert_eq!(found.unwrap_err().code, Code::FileNotFound);
    in_time("pause", runtime.pause(&id)).await;
    end(&world, &id).await;
    // A paused sandbox can be deleted.
    let id = world.sandbox(Kind::Static).await;
    in_time("pause", runtime.pause(&id)).await;
    in_time("delete", runtime.delete(&id)).await;
    world.close().await;
}

/// A command that is about to begin as its sandbox is paused begins, or is refused and never begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_during_a_pause_starts_or_is_refused() {
    let world = with_short_timeout().await;
    let runtime = &world.runtime;
    let id = world.sandbox(Kind::Static).await;
    let root = RunAs::root();
    let made = runtime.make_directory(&id, &root, b"/begun", 0o777, true);
    made.await.unwrap();
    let (mut begun, mut refused) = (0, 0);
    for round in 0..4 {
        let mut starts = Vec::new();
        for number in 0..8 {
            let (runtime, inside) = (runtime.clone(), id.clone());
            starts.push(tokio::spawn(async move {
                let name = format!("/begun/{round}-{number}");
                let started = runtime.exec(&inside, probe_spec(&["touch", &name])).await;
                (name, started)
            }));
            if number == round {
                tokio::task::yield_now().await;
                let paused = in_time("pause", world.runtime.pause(&id)).await;
                assert_eq!(paused.state, SandboxState::Paused);
            }
        }
        let mut expected = Vec::new();
        for start in starts {
            let (name, started) = tokio::time::timeout(HANGS, start)
                .await
                .expect("it hangs")
                .unwrap();
            expected.push((name, started));
        }
        in_time("resume", world.runtime.resume(&id)).await;
        for (name, started) in expected {
            let there = match started {
                Ok(exec) => {
                    begun += 1;
                    assert!(exec.wait().await.success());
                    true
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.code, Code::SandboxPaused, "{error:?}");
                    false
                }
            };
            let found = runtime.stat(&id, &root, name.as_bytes(), true).await;
            assert_eq!(found.is_ok(), there, "{name}: {found:?}");
        }
    }
    assert!(refused > 0, "{begun} begun");
    world.close().await;
}
