//! D02: a name that is a directory at one moment and a link to the host at the next.

use std::path::Path;
use std::time::{Duration, Instant};

use atoll_model::{Caller, SandboxId, WriteOptions};

use crate::attacks::canary::{Canary, HOST, read, upper, write};
use crate::world::{Kind, World, probe_spec, said};

/// How long each race lasts.
const TIME: Duration = Duration::from_secs(3);

/// What one caller does again and again.
#[derive(Debug, Clone, Copy)]
enum Work {
    Read,
    Write,
    Remove,
}

/// Races with the swapping program; how often it tried, and how often that worked.
async fn run(world: &World, id: &SandboxId, work: Work) -> (u32, u32) {
    let (begin, root) = (Instant::now(), Caller::root());
    let (mut tried, mut worked) = (0, 0);
    while begin.elapsed() < TIME {
        let ok = match work {
            Work::Read => match read(world, id, &root, "/race/x/f").await {
                Ok(bytes) => {
                    assert!(bytes != HOST, "the host was read");
                    true
                }
                Err(_) => false,
            },
            Work::Write => {
                let options = WriteOptions {
                    in_place: tried % 2 == 0,
                    ..WriteOptions::default()
                };
                write(world, id, &root, "/race/x/f", options).await.is_ok()
            }
            Work::Remove => world
                .runtime
                .remove(id, &root, b"/race/x", true)
                .await
                .is_ok(),
        };
        tried += 1;
        worked += u32::from(ok);
    }
    (tried, worked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_between_directory_and_link_is_never_won() {
    let canary = Canary::new();
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let target = canary.directory();
    let swap = || {
        probe_spec(&["d02-race", "/race", "11", &target])
            .user("root")
            .deadline(Duration::from_secs(30))
    };
    let swapper = world.runtime.exec(&id, swap()).await.expect("it starts");
    // The control: a host that joins paths wins at once.
    naive_wins(&upper(&world, &id).join("race/x/f"));
    for work in [Work::Read, Work::Write, Work::Remove] {
        let (first, second) = tokio::join!(run(&world, &id, work), run(&world, &id, work));
        let (tried, worked) = (first.0 + second.0, first.1 + second.1);
        assert!(tried > 500 && worked > 0, "{work:?}: {worked} of {tried}");
        canary.assert_untouched(&format!("{work:?}"));
    }
    let finished = swapper.finish(b"", 1 << 20).await.expect("it can be read");
    let swaps: u64 = said(&finished)
        .lines()
        .find_map(|line| line.strip_prefix("swaps ok ")?.parse().ok())
        .expect("it says how often it swapped");
    assert!(swaps > 10_000, "{swaps}");
    canary.assert_untouched("everything");
    world.close().await;
}

fn naive_wins(path: &Path) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        if std::fs::read(path).is_ok_and(|bytes| bytes == HOST) {
            return;
        }
    }
    panic!(
        "{} never led to the host: this is no attack",
        path.display()
    );
}
