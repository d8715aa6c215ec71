//! B06: random calls of every system call number that the filter allows, for one minute as root and
//! one minute as `user`.
//!
//! Each test prints its seed. `ATOLL_FUZZ_SEED` sets the seed, `ATOLL_FUZZ_SECONDS` the duration.

mod kernel_log;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use atoll_jail::seccomp::{SyscallPolicy, syscall_name};
use atoll_model::runtime::ExecResult;
use atoll_model::{Bytes, Cpus, SandboxId};
use atoll_testkit::{Attempt, attempts};

use super::attack;
use crate::harness::{Kind, World, data, probe_spec, stdout_text};
use crate::lifecycle::traces;
use kernel_log::KernelLog;

const PIDS: u32 = 64;
const MEMORY: u64 = 128 << 20;
/// The kernel charges memory in batches per CPU, so usage may briefly exceed the limit.
const CHARGED_AHEAD: u64 = 4 << 20;
/// Minimum number of calls. An idle machine makes them in a second.
const CALLS: u64 = 20_000;
/// Maximum duration of a probe run. If a call ends or stops the probe itself, another run follows.
const RUN: Duration = Duration::from_secs(10);
/// Upper bound of the neighbour's p99 latency, or 20 times the latency without the fuzzer if that
/// is longer.
const STARVED: Duration = Duration::from_secs(1);

/// System call numbers that the filter allows for at least some arguments.
fn allowed() -> BTreeSet<u32> {
    let lines = SyscallPolicy::standard().lines();
    let names = lines.iter().filter_map(|line| {
        let (name, rule) = line.split_once(' ')?;
        rule.contains("allow").then_some(name)
    });
    let names: BTreeSet<&str> = names.collect();
    let numbers =
        (0..1000).filter(|number| syscall_name(*number).is_some_and(|it| names.contains(it)));
    numbers.collect()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

/// Durations of `count` commands.
async fn latencies(world: &World, id: &SandboxId, count: usize) -> Vec<Duration> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(latency(world, id).await);
    }
    all
}

async fn latency(world: &World, id: &SandboxId) -> Duration {
    let begin = Instant::now();
    stdout_text(&world.probe(id, "user", &["true"]).await);
    begin.elapsed()
}

fn p99(latencies: &mut [Duration]) -> Duration {
    latencies.sort();
    latencies[(latencies.len() - 1) * 99 / 100]
}

/// Totals of all runs.
#[derive(Default)]
struct Found {
    calls: u64,
    covered: BTreeSet<u32>,
    runs: usize,
}

impl Found {
    fn add(&mut self, finished: &ExecResult) {
        self.runs += 1;
        let reports = attempts(&String::from_utf8_lossy(&finished.stdout));
        let Some(last) = reports.iter().rfind(|report| report.what == "fuzz") else {
            return;
        };
        let value = |name| last.value(name).expect("it is reported");
        self.calls += value("calls").parse::<u64>().expect("a number");
        let covered = value("covered").split(',');
        self.covered
            .extend(covered.filter_map(|number| number.parse::<u32>().ok()));
    }
}

/// Runs the probe to its end. Returns its result and the latencies of the neighbour's commands.
async fn run(
    world: &World,
    (id, neighbour): (&SandboxId, &SandboxId),
    user: &str,
    words: &[&str],
    log: &KernelLog,
) -> (ExecResult, Vec<Duration>) {
    // A stopped probe is killed at its deadline.
    let spec = probe_spec(words).user(user).deadline(3 * RUN);
    let exec = world.runtime.exec(id, spec).await.expect("it starts");
    let run = tokio::spawn(async move { exec.finish(b"", 64 << 20).await });
    let mut latencies = Vec::new();
    while !run.is_finished() {
        latencies.push(latency(world, neighbour).await);
        let usage = world.runtime.usage(id).expect("it runs");
        assert!(usage.pids <= u64::from(PIDS), "{} processes", usage.pids);
        let most = Bytes(MEMORY + CHARGED_AHEAD);
        assert!(usage.memory <= most, "{} of memory", usage.memory);
        log.check();
        // Limits the CPU time of the neighbour's commands.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let finished = run
        .await
        .expect("it is not cancelled")
        .expect("it can be read");
    (finished, latencies)
}

/// Checks that the sandbox works and that its limits hold.
async fn assert_governed(world: &World, id: &SandboxId) {
    // Random calls of root may have removed permissions of other users.
    stdout_text(&world.probe(id, "root", &["chmod", "/", "755"]).await);
    for user in super::USERS {
        stdout_text(&world.probe(id, user, &["true"]).await);
    }
    let bomb = attack(world, id, "root", "/", &["c01-forkbomb", "500"]).await;
    let end = |what: &str| {
        let found: Option<&Attempt> = bomb.iter().find(|it| it.what == what);
        found.expect("it was tried").result.clone()
    };
    assert_eq!(
        (end("fork"), end("thread")),
        ("EAGAIN".into(), "EAGAIN".into())
    );
    let hog = ["c02-memory", "anon", "268435456"];
    let hog = world.probe(id, "user", &hog).await;
    assert!(hog.status.oom_killed, "{hog:?}");
}

#[allow(clippy::print_stdout, reason = "the seed repeats a finding")]
async fn check_random_calls(user: &str) {
    let seed = number("ATOLL_FUZZ_SEED").unwrap_or_else(random_seed);
    println!("as {user}: ATOLL_FUZZ_SEED={seed} repeats it");
    let length = Duration::from_secs(number("ATOLL_FUZZ_SECONDS").unwrap_or(60));
    let log = KernelLog::open();
    let world = World::open().await;
    let tag = world.runtime.tag().to_owned();
    let neighbour = world.sandbox(Kind::Static).await;
    let id = world.sandbox_spec(Kind::Static, |spec| {
        spec.limits.pids = PIDS;
        spec.limits.memory = Bytes(MEMORY);
        spec.limits.cpus = Cpus(1000);
    });
    let id = id.await;
    let init = world.runtime.host_pid(&id).expect("it runs");
    let sleeper = world
        .runtime
        .exec(&neighbour, probe_spec(&["sleep", "600"]))
        .await;
    let sleeper = sleeper.expect("it starts");
    let mut quiet = latencies(&world, &neighbour, 200).await;

    let numbers: Vec<String> = allowed().iter().map(u32::to_string).collect();
    let numbers = numbers.join(",");
    // Uses up the pids that random calls can target, so that none of them is the probe's.
    stdout_text(
        &world
            .probe(&id, "root", &["b06-fuzz", "0", "1", &numbers])
            .await,
    );
    let (mut found, mut busy) = (Found::default(), Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < length {
        let seconds = RUN
            .min(length.saturating_sub(begin.elapsed()))
            .as_secs()
            .max(1);
        let (seconds, seed) = (
            seconds.to_string(),
            seed.wrapping_add(found.runs as u64).to_string(),
        );
        let words = ["b06-fuzz", &seconds, &seed, &numbers];
        let (finished, latencies) = run(&world, (&id, &neighbour), user, &words, &log).await;
        found.add(&finished);
        busy.extend(latencies);
    }
    println!("{} calls in {} runs", found.calls, found.runs);
    assert!(
        found.calls >= CALLS,
        "only {} calls in {} runs",
        found.calls,
        found.runs
    );
    let missing: Vec<_> = allowed().difference(&found.covered).copied().collect();
    assert!(
        missing.is_empty(),
        "{:?} were never called",
        missing
            .iter()
            .map(|it| syscall_name(*it))
            .collect::<Vec<_>>()
    );

    quiet.extend(latencies(&world, &neighbour, 200).await);
    let (quiet, busy) = (p99(&mut quiet), p99(&mut busy));
    assert!(
        busy <= STARVED.max(20 * quiet),
        "the neighbour waits {busy:?}, and {quiet:?} without the fuzzer"
    );
    assert_eq!(
        sleeper.handle.info().status,
        None,
        "the neighbour's command ended"
    );
    assert_eq!(world.runtime.host_pid(&id).expect("it runs"), init);
    assert_governed(&world, &id).await;
    let new = world.sandbox(Kind::Static).await;
    stdout_text(&world.probe(&new, "user", &["true"]).await);
    let groups = super::init::groups(&world, &id);
    world.runtime.delete(&id).await.expect("it can be deleted");
    assert!(!std::path::Path::new(&format!("/proc/{init}")).exists());
    assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
    world.close().await;
    assert!(traces(&tag, &data()).is_empty());
    log.check();
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_syscalls_of_root_leave_host_and_neighbour_intact() {
    check_random_calls("root").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_syscalls_of_a_user_leave_host_and_neighbour_intact() {
    check_random_calls("user").await;
}
