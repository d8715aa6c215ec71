//! Sandboxes outlive the server process that created them. The server is a separate process here, so that it can be
//! killed at any point.

mod churn;
mod follow;
mod layers;
mod pauses;
mod pool;
pub mod reboot;
mod rest;
mod unadoptable;
pub mod versions;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atoll_model::{Code, OutputChunk, SandboxId, SandboxSpec, SandboxState, StopReason, Stream};
use atoll_testkit::{STOPS, Scratch, static_layer, wait_for};
use atoll_worker::instance::{Scope, collect};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};
use atoll_worker::{Config, LocalRuntime};

use crate::harness::{DEADLINE, binary, private, probe_spec};
use crate::terminal::Watched;

const TEMPLATE: &str = "one";
const WARM: usize = 3;
const EMBRYOS: usize = 2;

/// A data directory with a template of one static binary.
#[derive(Debug)]
pub struct Place {
    scratch: Scratch,
}

impl Place {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        let place = Self { scratch };
        private(&place.data());
        let store = TemplateStore::open(place.data().join("templates")).unwrap();
        let layer = place.scratch.join("layer");
        static_layer(&layer);
        let layer = Source::Directory(layer);
        store
            .add(TEMPLATE, &layer, &TemplateOptions::default(), &mut |_| {})
            .unwrap();
        place
    }

    pub fn data(&self) -> PathBuf {
        self.scratch.join("data")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    async fn open(&self) -> LocalRuntime {
        open(&self.data()).await
    }

    /// Ends everything that lasts.
    pub async fn close(self, runtime: LocalRuntime) {
        for info in runtime.list() {
            runtime.delete(&info.id).await.unwrap();
        }
        let tag = runtime.tag().to_owned();
        runtime.close().await.unwrap();
        let facts = atoll_jail::facts::Facts::read();
        let scope = Scope::Below(&self.data());
        // The keeper is still exiting.
        wait_for("the instance to be dead", DEADLINE, || {
            collect(scope, &facts).unwrap().instances.contains(&tag)
        });
    }
}

fn config(data: &Path) -> Config {
    Config {
        binary: binary(),
        persistent: true,
        ..Config::new(data)
    }
}

/// With some warm sandboxes of `base`, which all tests share, and some embryos.
fn prepared(data: &Path) -> Config {
    Config {
        templates: crate::harness::data().join("templates"),
        warm_count: WARM,
        embryo_count: EMBRYOS,
        ..config(data)
    }
}

async fn open(data: &Path) -> LocalRuntime {
    LocalRuntime::open(config(data)).await.unwrap()
}

pub fn spec() -> SandboxSpec {
    SandboxSpec {
        template: TEMPLATE.into(),
        ..SandboxSpec::default()
    }
}

/// Every process of the host.
fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes whose parent is this one.
fn children(parent: i32) -> BTreeSet<i32> {
    let of = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let after = stat.rsplit_once(") ")?.1;
        let mut words = after.split(' ');
        // A zombie is reaped by the keeper.
        let lives = words.next()? != "Z";
        let found: i32 = words.next()?.parse().ok()?;
        (lives && found == parent).then_some(pid)
    };
    pids().filter_map(of).collect()
}

/// The keeper of an instance, by the name it was started with.
pub fn keeper(tag: &str) -> Option<i32> {
    pids().find_map(|pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        let ours = words.next()? == b"atoll-keeper"
            && std::str::from_utf8(words.next()?).ok()?.trim_end() == tag;
        ours.then_some(pid)
    })
}

/// This very test program as a server, doing one of the jobs below.
fn serve(job: &str, place: &Place, words: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "restart::server_process", "--nocapture"])
        .env("ATOLL_TEST_SERVER", job)
        .env("ATOLL_TEST_DATA", place.data())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .envs(words.iter().copied());
    command.spawn().unwrap()
}

fn word(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Random numbers, the same for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Not a test: the server process that [`serve`] starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_process() {
    let Ok(job) = std::env::var("ATOLL_TEST_SERVER") else {
        return;
    };
    let data = PathBuf::from(word("ATOLL_TEST_DATA"));
    match job.as_str() {
        "churn" => return churn::serve(&data).await,
        "reboot" => return reboot::serve(&data).await,
        "pool" => return pool::serve(&data).await,
        _ => {}
    }
    let runtime = open(&data).await;
    match job.as_str() {
        "follow" => follow::serve(&runtime).await,
        "pauses" => pauses::serve(&runtime).await,
        "make" => make(&runtime).await,
        "watched" => watched(&runtime).await,
        _ => panic!("{job}"),
    }
}

/// Creates sandboxes with a running command each, reports them, and waits to be killed.
async fn make(runtime: &LocalRuntime) {
    let count: usize = word("COUNT").parse().unwrap();
    for _ in 0..count {
        let id = runtime.create(spec()).await.unwrap().id;
        let exec = probe_spec(&["sleep", "600"]).tag("long");
        runtime.exec(&id, exec).await.unwrap();
    }
    std::fs::write(word("FILE"), "made").unwrap();
    std::future::pending::<()>().await;
}

/// Runs a full-screen program up to its middle, reports that, and waits to be killed.
async fn watched(runtime: &LocalRuntime) {
    let id = runtime.create(spec()).await.unwrap().id;
    let mut watched = Watched::new(Watched::start(runtime, &id).await);
    for stop in 0..STOPS / 2 {
        watched.stop(stop).await;
    }
    std::fs::write(word("FILE"), "made").unwrap();
    std::future::pending::<()>().await;
}

/// Its screen is rebuilt from the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_client_after_a_kill_sees_the_previous_screen() {
    let place = Place::new();
    let file = place.file("made");
    let words = [("FILE", &*file.to_string_lossy())];
    let mut server = serve("watched", &place, &words);
    wait_for("half the way", DEADLINE, || file.exists());
    kill(&mut server);
    let runtime = place.open().await;
    let id = runtime.list()[0].id.clone();
    let control = runtime.find_exec_by_tag(&id, "terminal").unwrap();
    let mut watched = Watched::new(control);
    for stop in STOPS / 2..STOPS {
        watched.stop(stop).await;
    }
    watched.end().await;
    place.close(runtime).await;
}

/// A runtime that took over the sandboxes of a killed one.
async fn after_a_kill(place: &Place, count: usize) -> LocalRuntime {
    let file = place.file("made");
    let mut server = serve(
        "make",
        place,
        &[
            ("COUNT", &count.to_string()),
            ("FILE", &file.to_string_lossy()),
        ],
    );
    wait_for("the sandboxes", DEADLINE, || file.exists());
    kill(&mut server);
    place.open().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_and_their_commands_continue_after_a_kill() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 3).await;
    let all = runtime.list();
    assert_eq!(all.len(), 3);
    for info in &all {
        assert_eq!(info.state, SandboxState::Running);
        let exec = runtime.find_exec_by_tag(&info.id, "long").unwrap();
        assert_eq!(exec.info().status, None);
        assert_eq!(
            runtime
                .find_exec_by_pid(&info.id, exec.info().pid)
                .unwrap()
                .id(),
            exec.id()
        );
        // Old and new commands can be reached.
        let done = runtime
            .exec(&info.id, probe_spec(&["echo", "new"]))
            .await
            .unwrap();
        assert_eq!(done.finish(b"", 100).await.unwrap().stdout, b"new\n");
        exec.signal(15).await.unwrap();
        assert_eq!(exec.wait().await.signal, Some(15));
        assert_eq!(runtime.execs(&info.id).unwrap().len(), 2);
    }
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_is_refused_by_name() {
    let place = Place::new();
    let runtime = place.open().await;
    let error = LocalRuntime::open(config(&place.data())).await.unwrap_err();
    assert_eq!(error.code, Code::Conflict);
    assert!(
        error.message.contains(&std::process::id().to_string()),
        "{error:?}"
    );
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_end_leaves_sandboxes_running() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    let pid = runtime.host_pid(&id).unwrap();
    runtime.close().await.unwrap();
    let runtime = place.open().await;
    assert_eq!(runtime.host_pid(&id).unwrap(), pid);
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_survive_stop_and_start() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    let run = async |words: &[&str]| {
        let exec = runtime
            .exec(&id, probe_spec(words).user("root"))
            .await
            .unwrap();
        exec.finish(b"", 1000).await.unwrap()
    };
    for turn in 0..3 {
        let text = format!("turn {turn}");
        assert!(run(&["write", "/file", &text]).await.status.success());
        let info = runtime.stop(&id).await.unwrap();
        assert_eq!((info.state, info.reason), (SandboxState::Stopped, None));
        let refused = runtime.exec(&id, probe_spec(&["true"])).await.unwrap_err();
        assert_eq!(refused.code, Code::SandboxStopped);
        assert!(refused.remedy.unwrap().contains("start"));
        // Output from before the kill can still be read.
        assert!(!runtime.execs(&id).unwrap().is_empty());
        assert_eq!(
            runtime.start(&id).await.unwrap().state,
            SandboxState::Running
        );
        assert_eq!(run(&["read", "/file"]).await.stdout, text.as_bytes());
    }
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_stays_paused_across_a_kill() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 1).await;
    let id = runtime.list()[0].id.clone();
    let exec = runtime.find_exec_by_tag(&id, "long").unwrap();
    assert_eq!(
        runtime.pause(&id).await.unwrap().state,
        SandboxState::Paused
    );
    assert_eq!(
        runtime.pause(&id).await.unwrap().state,
        SandboxState::Paused
    );
    let refused = runtime.exec(&id, probe_spec(&["true"])).await.unwrap_err();
    assert_eq!(refused.code, Code::SandboxPaused);
    let short = probe_spec(&["true"]);
    assert!(runtime.exec(&id, short).await.is_err());
    let name = exec.id().clone();
    runtime.close().await.unwrap();
    let runtime = place.open().await;
    assert_eq!(runtime.get(&id).unwrap().state, SandboxState::Paused);
    assert_eq!(
        runtime.resume(&id).await.unwrap().state,
        SandboxState::Running
    );
    let exec = runtime.find_exec(&id, &name).unwrap();
    assert_eq!(exec.info().status, None);
    exec.kill().unwrap();
    assert_eq!(exec.wait().await.signal, Some(9));
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_waits_while_the_sandbox_is_paused() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    // On a slow machine the deadline may pass before the pause; the test retries with a longer one.
    let mut waits = false;
    for seconds in [2, 8, 30] {
        let deadline = Duration::from_secs(seconds);
        let long = probe_spec(&["sleep", "600"]).deadline(deadline);
        let exec = runtime.exec(&id, long).await.unwrap();
        runtime.pause(&id).await.unwrap();
        let longer = deadline + Duration::from_secs(1);
        waits = tokio::time::timeout(longer, exec.wait()).await.is_err();
        runtime.resume(&id).await.unwrap();
        assert!(exec.wait().await.timed_out);
        if waits {
            break;
        }
    }
    assert!(waits, "the deadline passed while the sandbox was paused");
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_without_a_keeper_are_stopped_and_keep_files() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let tag = runtime.tag().to_owned();
    let pid = keeper(&tag).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_for("the end to be noticed", DEADLINE, || {
        runtime
            .list()
            .iter()
            .all(|info| info.state == SandboxState::Stopped)
    });
    assert!(
        runtime
            .list()
            .iter()
            .all(|info| info.reason == Some(StopReason::KeeperLost))
    );
    runtime.close().await.unwrap();
    // State after a restart of the host: files, but no processes and cgroups.
    let runtime = place.open().await;
    for info in runtime.list() {
        assert_eq!(info.state, SandboxState::Stopped);
        assert_eq!(
            runtime.start(&info.id).await.unwrap().state,
            SandboxState::Running
        );
        let done = runtime.exec(&info.id, probe_spec(&["true"])).await.unwrap();
        assert!(done.wait().await.success());
    }
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_records_are_quarantined_and_incomplete_ones_removed() {
    let place = Place::new();
    let runtime = place.open().await;
    let keep = runtime.create(spec()).await.unwrap().id;
    let broken = runtime.create(spec()).await.unwrap().id;
    let never = runtime.create(spec()).await.unwrap().id;
    runtime.close().await.unwrap();
    let sandboxes = place.data().join("sandboxes");
    std::fs::write(sandboxes.join(broken.as_str()).join("record.json"), "{").unwrap();
    std::fs::remove_file(sandboxes.join(never.as_str()).join("record.json")).unwrap();
    let runtime = place.open().await;
    let ids: Vec<SandboxId> = runtime.list().into_iter().map(|info| info.id).collect();
    assert_eq!(ids, [keep]);
    assert!(
        place
            .data()
            .join("orphaned")
            .join(broken.as_str())
            .join("upper")
            .is_dir()
    );
    assert!(!sandboxes.join(never.as_str()).exists());
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_offset_deduplicates_writes_of_all_clients() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    let cat = probe_spec(&["cat"]).piped_stdin().tag("cat");
    let exec = runtime.exec(&id, cat).await.unwrap();
    assert_eq!(exec.handle.write_stdin_at(0, b"hello ").unwrap(), 6);
    // A repeated request, as after a lost response.
    assert_eq!(exec.handle.write_stdin_at(0, b"hello wo").unwrap(), 8);
    assert!(exec.handle.write_stdin_at(9, b"x").is_err());
    drop(exec);
    runtime.close().await.unwrap();
    let runtime = place.open().await;
    let exec = runtime.find_exec_by_tag(&id, "cat").unwrap();
    assert_eq!(exec.write_stdin_at(6, b"world").unwrap(), 11);
    exec.close_stdin().unwrap();
    assert_eq!(
        exec.write_stdin_at(11, b"x").unwrap_err().code,
        Code::StdinClosed
    );
    let mut reader = exec.output(0);
    let mut heard = Vec::new();
    while let Some(chunk) = reader.next().await.unwrap() {
        match chunk {
            OutputChunk::Data { stream, bytes, .. } => {
                assert_eq!(stream, Stream::Stdout);
                heard.extend(bytes);
            }
            OutputChunk::Exit(status) => assert!(status.success()),
            OutputChunk::Gap { .. } => panic!("a gap"),
        }
    }
    assert_eq!(heard, b"hello world");
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_did_not_start_leave_nothing_in_the_keeper() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    let pid = keeper(runtime.tag()).unwrap();
    let held = || {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .count()
    };
    let run = async |words: &[&str]| runtime.exec(&id, probe_spec(words)).await.map(drop);
    run(&["true"]).await.unwrap();
    let before = held();
    for _ in 0..50 {
        let missing = atoll_model::ExecSpec::argv(["/nowhere"]).piped_stdin();
        assert_eq!(
            runtime.exec(&id, missing).await.unwrap_err().code,
            Code::ProgramNotFound
        );
    }
    // The next request carries the ids of abandoned operations.
    run(&["true"]).await.unwrap();
    run(&["true"]).await.unwrap();
    wait_for("the keeper to let go", DEADLINE, || held() < before + 20);
    place.close(runtime).await;
}
