//! A sandbox with a process in uninterruptible disk sleep cannot be frozen. Others can.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_model::{ExecSpec, SandboxId, SandboxState};
use atoll_testkit::{Scratch, run, wait_for};
use atoll_worker::Storage;

use super::{data, open};
use crate::harness::{DEADLINE, World};

/// A file system to which nothing can be written, until this is dropped.
struct Halted(PathBuf);

impl Halted {
    fn new(path: PathBuf) -> Self {
        fsfreeze("-f", &path);
        Self(path)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        fsfreeze("-u", &self.0);
    }
}

fn fsfreeze(what: &str, path: &Path) {
    let done = run(Command::new("fsfreeze").arg(what).arg(path));
    assert!(done.status.success(), "{done:?}");
}

/// Path of a sandbox's cgroup v2.
fn group(world: &World, id: &SandboxId) -> PathBuf {
    let root = world.runtime.facts().cgroups.v2.clone().unwrap();
    root.join(format!("atoll-{}", world.runtime.tag()))
        .join(id.as_str())
}

/// A command of the sandbox waits for a disk.
fn waits(group: &Path) -> bool {
    let below = fs::read_dir(group).unwrap().flatten();
    let pids = below.filter_map(|leaf| fs::read_to_string(leaf.path().join("cgroup.procs")).ok());
    let state = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('D'))
    };
    pids.flat_map(|pids| pids.lines().map(str::to_owned).collect::<Vec<_>>())
        .any(|pid| state(&pid))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_pause_does_not_block_other_pauses() {
    let scratch = Scratch::new();
    let data = data(scratch.path());
    let world = open(&data, Storage::Image).await;
    let (slow, other) = (world.create().await, world.create().await);
    let place = data.join("runs").join(world.runtime.tag());
    let halted = Halted::new(place.join("storage"));
    let write = ExecSpec::shell("echo x > ~/file").deadline(DEADLINE);
    let writes = world.runtime.exec(&slow, write).await.unwrap();
    let group = group(&world, &slow);
    wait_for("the writer to wait", DEADLINE, || waits(&group));
    let (runtime, id) = (world.runtime.clone(), slow.clone());
    let pausing = tokio::spawn(async move { runtime.pause(&id).await });
    wait_for("the pause to begin", DEADLINE, || {
        fs::read_to_string(group.join("cgroup.freeze"))
            .unwrap()
            .trim()
            == "1"
    });
    let begin = Instant::now();
    for _ in 0..10 {
        let paused = world.runtime.pause(&other).await.unwrap();
        assert_eq!(paused.state, SandboxState::Paused);
        world.runtime.resume(&other).await.unwrap();
    }
    let took = begin.elapsed();
    assert!(!pausing.is_finished() && waits(&group), "it was to be slow");
    drop(halted);
    // The server gives up on the slow sandbox after ten seconds; others do not wait for that.
    assert!(took < Duration::from_secs(9), "{took:?}");
    assert_eq!(pausing.await.unwrap().unwrap().state, SandboxState::Paused);
    world.runtime.resume(&slow).await.unwrap();
    assert!(writes.wait().await.success());
    world.close().await;
}
