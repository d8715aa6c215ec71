//! Creation and deletion of sandboxes, sequentially and concurrently: no resource is left, whatever happens
//! meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_jail::facts::Facts;
use atoll_jail::plan::Layers;
use atoll_model::{Code, RunAs, SandboxSpec, SandboxState, WriteOptions};
use atoll_testkit::{Scratch, wait_for};
use atoll_worker::instance::{Scope, collect};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};
use tokio::task::JoinSet;

use crate::harness::{
    DEADLINE, Kind, World, binary, data, in_both, private, probe_spec, stdout_text, template,
};

/// Everything of an instance that can be seen on the host.
pub fn traces(tag: &str, data: &Path) -> Vec<PathBuf> {
    let facts = Facts::read();
    let groups = facts.cgroups.v1.values().chain(&facts.cgroups.v2);
    let mut places: Vec<PathBuf> = groups
        .map(|mount| mount.join(format!("atoll-{tag}")))
        .collect();
    places.push(data.join("runs").join(tag));
    places.push(Path::new("/run/atoll/instances").join(tag));
    places.retain(|place| place.symlink_metadata().is_ok());
    places
}

/// The host's pids of an instance's keeper.
fn keeper(tag: &str) -> Option<i32> {
    let group = Facts::read()
        .cgroups
        .v2?
        .join(format!("atoll-{tag}/keeper/cgroup.procs"));
    std::fs::read_to_string(group)
        .ok()?
        .lines()
        .next()?
        .parse()
        .ok()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A process that is stopped until this is dropped.
struct Stopped(rustix::process::Pid);

impl Stopped {
    fn new(pid: i32) -> Self {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// Returns when a process was killed and not yet reaped.
async fn becomes_zombie(pid: i32) {
    let begin = std::time::Instant::now();
    let is_zombie = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('Z')
    };
    while !is_zombie() {
        assert!(begin.elapsed() < DEADLINE, "{pid} was not killed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn static_spec() -> SandboxSpec {
    SandboxSpec {
        template: template(Kind::Static),
        ..SandboxSpec::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_are_made_listed_and_deleted() {
    let world = World::open().await;
    assert!(world.runtime.list().is_empty());
    let first = world.runtime.create(static_spec()).await.unwrap();
    let second = world.runtime.create(SandboxSpec::default()).await.unwrap();
    assert_eq!(
        (first.state, second.state),
        (SandboxState::Running, SandboxState::Running)
    );
    assert_eq!(second.template, "base");
    assert!(first.timings.total() > Duration::ZERO);
    assert_eq!(world.runtime.list(), [second.clone(), first.clone()]);
    world.runtime.delete(&first.id).await.unwrap();
    assert_eq!(world.runtime.list(), std::slice::from_ref(&second));
    let again = world.runtime.delete(&first.id).await.unwrap_err();
    assert_eq!(again.code, Code::SandboxNotFound);
    assert_eq!(
        world.runtime.usage(&first.id).unwrap_err().code,
        Code::SandboxNotFound
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_concurrent_deletes_succeeds() {
    let world = World::open().await;
    for _ in 0..10 {
        let id = world.sandbox(Kind::Static).await;
        let (one, two) = tokio::join!(world.runtime.delete(&id), world.runtime.delete(&id));
        let lost = [one, two]
            .into_iter()
            .filter_map(Result::err)
            .collect::<Vec<_>>();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].code, Code::SandboxNotFound);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_ends_commands_and_file_calls() {
    in_both(async |world, _| {
        let id = world.sandbox(Kind::Static).await;
        let mut execs = Vec::new();
        for command in [
            &["tree-of-processes", "20", "300"][..],
            &["ignore-term", "300"],
            &["spin", "300"],
        ] {
            execs.push(
                world
                    .runtime
                    .exec(&id, probe_spec(command).user("root"))
                    .await
                    .unwrap(),
            );
        }
        let root = RunAs::root();
        let options = WriteOptions::default();
        let mut writer = world
            .runtime
            .write_file(&id, &root, b"/file", options)
            .await
            .unwrap();
        writer.write(&vec![0; 100_000]).await.unwrap();
        let mut reader = world
            .runtime
            .read_file(&id, &root, b"/probe")
            .await
            .unwrap();
        world.runtime.delete(&id).await.unwrap();
        for exec in execs {
            let status = tokio::time::timeout(DEADLINE, exec.wait()).await.unwrap();
            assert_eq!(status.signal, Some(9));
            assert!(!status.oom_killed);
        }
        assert!(writer.commit().await.is_err());
        let mut buffer = vec![0; 1 << 16];
        while reader.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_sandboxes_are_created_and_deleted_concurrently() {
    let world = World::open().await;
    let mut work = JoinSet::new();
    for number in 0..20_u32 {
        let runtime = world.runtime.clone();
        work.spawn(async move {
            let spec = if number % 4 == 0 {
                SandboxSpec::default()
            } else {
                static_spec()
            };
            let info = runtime.create(spec).await.unwrap();
            if info.template != "base" {
                let exec = runtime
                    .exec(&info.id, probe_spec(&["hostname"]))
                    .await
                    .unwrap();
                let done = exec.finish(b"", 1 << 20).await.unwrap();
                assert_eq!(stdout_text(&done), format!("{}\n", info.id));
            }
            if number % 2 == 0 {
                runtime.delete(&info.id).await.unwrap();
            }
            info.id
        });
    }
    let mut ids = work.join_all().await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 20);
    assert_eq!(world.runtime.list().len(), 10);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_leaves_no_residue() {
    let world = World::open().await;
    let tag = world.runtime.tag().to_owned();
    let mut pids = Vec::new();
    for kind in crate::harness::KINDS {
        let id = world.sandbox(kind).await;
        stdout_text(&world.probe(&id, "user", &["daemon", "300"]).await);
        pids.push(world.runtime.host_pid(&id).unwrap());
    }
    wait_for("the keeper to settle", DEADLINE, || keeper(&tag).is_some());
    pids.extend(keeper(&tag));
    assert!(traces(&tag, &data()).len() >= 3);
    world.close().await;
    assert_eq!(traces(&tag, &data()), Vec::<PathBuf>::new());
    for pid in pids {
        assert!(!Path::new("/proc").join(pid.to_string()).exists(), "{pid}");
    }
}

/// Older kernels ask for it, newer ones take it: so it is tested on both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn briefly_attached_layers_are_invisible_to_other_sandboxes() {
    let table = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let world = World::open_with(|plan| plan.layers = Layers::Attached).await;
    let own = data().to_string_lossy().into_owned();
    let made = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&made);
    let watch = tokio::task::spawn_blocking(move || {
        while !done.load(Ordering::Relaxed) {
            let seen: Vec<String> = table().lines().map(String::from).collect();
            assert!(
                !seen.iter().any(|line| line.contains(&own)),
                "{own} in {seen:#?}"
            );
        }
    });
    for _ in 0..5 {
        let id = world.sandbox(Kind::Static).await;
        let written = world.probe(&id, "root", &["write", "/file", "text"]);
        stdout_text(&written.await);
        world.runtime.delete(&id).await.unwrap();
    }
    made.store(true, Ordering::Relaxed);
    watch.await.unwrap();
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_create_leaves_no_partial_sandbox() {
    let world = World::open().await;
    let tag = world.runtime.tag().to_owned();
    let mut begun = 0;
    for wait in 0..12 {
        let create = world.runtime.create(static_spec());
        // The create is abandoned at different stages.
        let _ = tokio::time::timeout(Duration::from_micros(wait * 900), create).await;
        begun += 1;
    }
    wait_for("those begun to be finished", DEADLINE, || {
        world.runtime.list().len() == begun
    });
    for info in world.runtime.list() {
        stdout_text(&world.probe(&info.id, "user", &["true"]).await);
    }
    world.close().await;
    assert_eq!(traces(&tag, &data()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_delete_call_still_completes() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let pid = world.runtime.host_pid(&id).unwrap();
    let tag = world.runtime.tag().to_owned();
    wait_for("the keeper to settle", DEADLINE, || keeper(&tag).is_some());
    // A stopped keeper does not reap PID 1, so the delete waits at a known point: after the kill.
    let stopped = Stopped::new(keeper(&tag).unwrap());
    let delete = world.runtime.delete(&id);
    tokio::select! {
        done = delete => panic!("PID 1 was not reaped, and the delete returned {done:?}"),
        () = becomes_zombie(pid) => {}
    }
    drop(stopped);
    wait_for("the delete to be finished", DEADLINE, || {
        !Path::new("/proc").join(pid.to_string()).exists()
            && !data()
                .join("runs")
                .join(world.runtime.tag())
                .join("sandboxes")
                .join(id.as_str())
                .exists()
    });
    assert_eq!(
        world.runtime.delete(&id).await.unwrap_err().code,
        Code::SandboxNotFound
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_keeper_is_reported_as_the_end_of_its_sandboxes() {
    let world = World::open().await;
    let tag = world.runtime.tag().to_owned();
    let id = world.sandbox(Kind::Static).await;
    let spec = probe_spec(&["tree-of-processes", "5", "300"]);
    let exec = world.runtime.exec(&id, spec).await.unwrap();
    let pid = world.runtime.host_pid(&id).unwrap();
    wait_for("the keeper to settle", DEADLINE, || keeper(&tag).is_some());
    kill(keeper(&tag).unwrap());
    let status = tokio::time::timeout(DEADLINE, exec.wait()).await.unwrap();
    assert_eq!(status.signal, Some(9));
    wait_for("the sandbox to be reported as ended", DEADLINE, || {
        world
            .runtime
            .usage(&id)
            .is_err_and(|error| error.code == Code::SandboxStopped)
    });
    let error = world
        .runtime
        .exec(&id, probe_spec(&["true"]))
        .await
        .unwrap_err();
    assert_eq!(error.details["state"], "stopped");
    let read = world
        .runtime
        .read_file(&id, &RunAs::root(), b"/probe")
        .await;
    assert_eq!(read.unwrap_err().code, Code::SandboxStopped);
    wait_for("its processes to be gone", DEADLINE, || {
        !Path::new("/proc").join(pid.to_string()).exists()
    });
    // No sandbox can be created, and the existing one can be deleted.
    let create = world.runtime.create(static_spec());
    assert!(
        tokio::time::timeout(DEADLINE, create)
            .await
            .unwrap()
            .is_err()
    );
    world.runtime.delete(&id).await.unwrap();
    world.close().await;
    assert_eq!(traces(&tag, &data()), Vec::<PathBuf>::new());
}

/// G09: a process that waits in the kernel and reacts to SIGKILL only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_ends_a_process_that_waits_uninterruptibly() {
    let world = World::open().await;
    for user in ["root", "user"] {
        let id = world.sandbox(Kind::Static).await;
        let wait = probe_spec(&["uninterruptible", "600"]).user(user);
        let exec = world.runtime.exec(&id, wait).await.unwrap();
        let status = format!("/proc/{}/status", exec.pid);
        let status = async || world.probe(&id, user, &["read", &status]).await.stdout;
        let waits = async || String::from_utf8_lossy(&status().await).contains("State:\tD");
        let begin = std::time::Instant::now();
        while !waits().await {
            assert!(begin.elapsed() < DEADLINE, "it never waits");
        }
        let delete = world.runtime.delete(&id);
        let deleted = tokio::time::timeout(DEADLINE, delete).await;
        deleted.expect("it comes back").unwrap();
        assert_eq!(exec.wait().await.signal, Some(9), "{user}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_pid_1_is_reported_as_the_end_of_one_sandbox() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let other = world.sandbox(Kind::Static).await;
    let exec = world
        .runtime
        .exec(&id, probe_spec(&["sleep", "300"]))
        .await
        .unwrap();
    kill(world.runtime.host_pid(&id).unwrap());
    let status = tokio::time::timeout(DEADLINE, exec.wait()).await.unwrap();
    assert_eq!(status.signal, Some(9));
    wait_for("the sandbox to be reported as ended", DEADLINE, || {
        world
            .runtime
            .usage(&id)
            .is_err_and(|error| error.code == Code::SandboxStopped)
    });
    stdout_text(&world.probe(&other, "user", &["true"]).await);
    world.runtime.delete(&id).await.unwrap();
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_kept_sandbox_remain() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    stdout_text(&world.probe(&id, "root", &["write", "/kept", "text"]).await);
    let place = data().join(format!("kept-{id}"));
    world
        .runtime
        .export_files(&id, place.clone())
        .await
        .unwrap();
    assert!(world.runtime.list().is_empty());
    assert_eq!(
        std::fs::read_to_string(place.join("upper/kept")).unwrap(),
        "text"
    );
    let record = std::fs::read_to_string(place.join("record.json")).unwrap();
    assert!(
        record.contains("\"stopped\"") && record.contains(id.as_str()),
        "{record}"
    );
    world.close().await;
    std::fs::remove_dir_all(place).unwrap();
}

/// A data directory with one small template.
fn small(scratch: &Scratch) -> PathBuf {
    let data = scratch.join("data");
    private(&data);
    let store = TemplateStore::open(data.join("templates")).unwrap();
    let source = Source::Directory(scratch.join("tree"));
    atoll_testkit::static_layer(&scratch.join("tree"));
    store
        .add("small", &source, &TemplateOptions::default(), &mut |_| {})
        .unwrap();
    data
}

/// The tags of all instances of a data directory.
fn tags(data: &Path) -> Vec<String> {
    let runs = std::fs::read_dir(data.join("runs"))
        .into_iter()
        .flatten()
        .flatten();
    runs.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn residue_of_a_killed_run_is_collected() {
    let scratch = Scratch::new();
    let data = small(&scratch);
    let mut run = Command::new(binary())
        .args([
            "run",
            "--template",
            "small",
            "--",
            "/probe",
            "tree-of-processes",
            "5",
            "1000",
        ])
        .env("ATOLL_DATA_DIR", &data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = String::new();
    let mut lines = std::io::BufReader::new(run.stdout.take().unwrap());
    while !heard.contains("ready") {
        let read = std::io::BufRead::read_line(&mut lines, &mut heard).unwrap();
        assert!(read > 0, "it ended: {heard}");
    }
    let tag = tags(&data).pop().unwrap();
    let keeper = keeper(&tag).unwrap();
    // A living instance is not collected.
    let facts = Facts::read();
    let collected = collect(Scope::Below(&data), &facts).unwrap();
    assert!(
        collected.instances.is_empty() && collected.problems.is_empty(),
        "{collected:?}"
    );
    run.kill().unwrap();
    run.wait().unwrap();
    // The keeper ends with its server, and only then is the instance dead.
    wait_for("the keeper to end", DEADLINE, || {
        !Path::new("/proc").join(keeper.to_string()).exists()
    });
    assert!(!traces(&tag, &data).is_empty());
    let collected = collect(Scope::Below(&data), &facts).unwrap();
    assert_eq!(collected.problems, Vec::<String>::new());
    assert_eq!(collected.instances, std::slice::from_ref(&tag));
    assert_eq!(traces(&tag, &data), Vec::<PathBuf>::new());
    assert!(tags(&data).is_empty());
    assert_eq!(
        collect(Scope::Below(&data), &facts).unwrap().instances,
        Vec::<String>::new()
    );
}
