//! Limits of the retained output of commands.

use atoll_model::{Bytes, OutputChunk};
use atoll_worker::ExecHandle;

use crate::harness::{DEADLINE, Kind, World, probe_spec};

const MIB: u64 = 1 << 20;

/// Length of the retained output, and the offset where it begins.
async fn kept(exec: &ExecHandle) -> (u64, u64) {
    let (mut first, mut bytes) = (None, 0);
    let mut reader = exec.output(0);
    while let Some(chunk) = reader.next().await.unwrap() {
        if let OutputChunk::Data {
            position,
            bytes: some,
            ..
        } = chunk
        {
            first.get_or_insert(position);
            bytes += some.len() as u64;
        }
    }
    (first.unwrap_or(0), bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oldest_ended_commands_are_dropped_above_the_limit() {
    let world = World::open_as(|config| config.output_window = Bytes(MIB)).await;
    let id = world.sandbox(Kind::Base).await;
    let mut all = Vec::new();
    for _ in 0..24 {
        let write = atoll_model::ExecSpec::shell("head -c 1000000 /dev/zero").deadline(DEADLINE);
        let exec = world.runtime.exec(&id, write).await.unwrap();
        assert!(exec.wait().await.success());
        all.push(exec.handle);
    }
    let mut sums = Vec::new();
    for exec in &all {
        sums.push(kept(exec).await.1);
    }
    let sum: u64 = sums.iter().sum();
    assert!(sum <= 18 * MIB && sum > 8 * MIB, "{sums:?}");
    assert!(sums[0] <= 4096 && sums[1] <= 4096, "{sums:?}");
    assert_eq!(sums.last(), Some(&1_000_000), "{sums:?}");
    // The limit of a single command is the configured one.
    let long = atoll_model::ExecSpec::shell("head -c 9000000 /dev/zero").deadline(DEADLINE);
    let exec = world.runtime.exec(&id, long).await.unwrap();
    exec.wait().await;
    let (first, bytes) = kept(&exec.handle).await;
    assert_eq!(first + bytes, 9_000_000);
    assert!((MIB..3 * MIB).contains(&bytes), "{bytes}");
    let done = world.exec(&id, probe_spec(&["true"])).await;
    assert!(done.status.success());
    world.close().await;
}
