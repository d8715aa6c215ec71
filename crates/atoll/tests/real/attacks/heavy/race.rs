//! D02: a path that alternates between a directory and a link to the host.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_model::{Authority, RunAs, SandboxId, WriteOptions};
use atoll_worker::ExecHandle;

use crate::attacks::USERS;
use crate::attacks::canary::{Canary, HOST, read, upper, write};
use crate::harness::{DEADLINE, Kind, World, probe_spec};

/// Number of swaps for each caller and operation: 120,000 in all.
const SWAPS: u64 = 20_000;
/// Minimum number of calls during the swaps.
const TRIES: u32 = 150;

/// Operation that a caller repeats.
#[derive(Debug, Clone, Copy)]
enum Work {
    Read,
    Write,
    Remove,
}

/// The program that swaps the directory and the link, and its number of swaps.
struct Swapper {
    control: ExecHandle,
    swaps: Arc<AtomicU64>,
}

impl Swapper {
    async fn start(world: &World, id: &SandboxId, user: &str, words: &[&str]) -> Self {
        let exec = probe_spec(words).user(user).piped_stdin();
        let mut exec = world.runtime.exec(id, exec).await.expect("it starts");
        let control = world.runtime.find_exec(id, exec.handle.id());
        let swaps = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&swaps);
        tokio::spawn(async move {
            let (mut text, mut buffer) = (String::new(), [0; 4096]);
            while let Ok(count @ 1..) = exec.stdout.read(&mut buffer).await {
                text += &String::from_utf8_lossy(&buffer[..count]);
                let whole = text.rfind('\n').map_or(0, |end| end + 1);
                let last = text[..whole].lines().last();
                let last = last.and_then(|line| line.strip_prefix("swaps ok ")?.parse().ok());
                if let Some(count) = last {
                    counter.store(count, Ordering::SeqCst);
                }
                text.drain(..whole);
            }
        });
        Self {
            control: control.expect("it runs"),
            swaps,
        }
    }

    fn count(&self) -> u64 {
        self.swaps.load(Ordering::SeqCst)
    }
}

/// Races with the swapping program. Returns the number of tries and of successes.
async fn run(
    world: &World,
    id: &SandboxId,
    (caller, name): (&RunAs, &str),
    work: Work,
    swapper: &Swapper,
) -> (u32, u32) {
    let (begin, until) = (Instant::now(), swapper.count() + SWAPS);
    let (mut tried, mut worked) = (0, 0);
    while tried < TRIES || swapper.count() < until {
        assert!(
            begin.elapsed() < DEADLINE,
            "{work:?} {tried} {}",
            swapper.count()
        );
        let file = format!("{name}/f");
        let ok = match work {
            Work::Read => match read(world, id, caller, &file).await {
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
                write(world, id, caller, &file, options).await.is_ok()
            }
            Work::Remove => {
                let remove = world.runtime.remove(id, caller, name.as_bytes(), true);
                remove.await.is_ok()
            }
        };
        tried += 1;
        worked += u32::from(ok);
    }
    (tried, worked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn race_between_directory_and_link_never_escapes() {
    let canary = Canary::new();
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let target = canary.directory();
    for user in USERS {
        let caller = match *user {
            "root" => RunAs::root(),
            _ => RunAs::default(),
        };
        // The directory belongs to the user of the swapping process.
        let directory = format!("/race-{user}");
        let owner = RunAs {
            authority: Authority::Root,
            ..caller.clone()
        };
        let made = world
            .runtime
            .make_directory(&id, &owner, directory.as_bytes(), 0o755, true);
        made.await.expect("it can be made");
        let words = ["d02-race", &directory, &target];
        let swapper = Swapper::start(&world, &id, user, &words).await;
        let name = format!("{directory}/x");
        // The control: path joining on the host reaches the canary.
        naive_wins(&upper(&world, &id).join(format!("race-{user}/x/f")));
        for work in [Work::Read, Work::Write, Work::Remove] {
            let who = (&caller, name.as_str());
            let (first, second) = tokio::join!(
                run(&world, &id, who, work, &swapper),
                run(&world, &id, who, work, &swapper)
            );
            let (tried, worked) = (first.0 + second.0, first.1 + second.1);
            assert!(worked > 0, "{user} {work:?}: {worked} of {tried}");
            canary.assert_untouched(&format!("{user} {work:?}"));
        }
        swapper.control.close_stdin().expect("it hears");
        let status = swapper.control.wait().await;
        assert!(status.success(), "{user} {status:?}");
        assert!(swapper.count() >= 3 * SWAPS, "{user} {}", swapper.count());
    }
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
