//! Watches on trees that grow, move, or exceed the watch limits (D09).

use super::{Mirror, drained, follow, line, mkdir, python, real, watch};
use crate::harness::{Kind, World};
use atoll_model::{WatchEvent, WatchOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_tree_is_reported_completely() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    mkdir(&world, &id, "/w").await;
    let mut events = watch(&world, &id, "/w", WatchOptions::recursive()).await;
    let grow = "
import os
for a in range(100):
    for b in range(10):
        for c in range(10):
            os.makedirs(f'/w/{a}/{b}/{c}')
    open(f'/w/{a}/9/9/leaf', 'w').write('x')
";
    let mirror = follow(&world, &id, grow, &mut events).await;
    assert!(!mirror.overflow);
    let real = real(&world, &id, "/w").await;
    assert_eq!(real.len(), 100 * 111 + 100);
    assert_eq!(mirror.differs(&real), [""; 0]);
    // The whole tree is watched.
    python(
        &world,
        &id,
        "for a in range(100): open(f'/w/{a}/5/5/new', 'w')",
    )
    .await;
    let seen = drained(&mut events).await;
    assert_eq!(seen.len(), 100, "{seen:?}");
    // A tree that existed before the watch is watched too.
    drop(events);
    let mut events = watch(&world, &id, "/w", WatchOptions::recursive()).await;
    python(
        &world,
        &id,
        "for a in range(100): open(f'/w/{a}/6/6/new', 'w')",
    )
    .await;
    assert_eq!(drained(&mut events).await.len(), 100);
    world.close().await;
}

/// Makes, moves and removes at random, several at once.
const STORM: &str = "
import os, random, sys, threading
def storm(seed):
    r = random.Random(seed)
    names = 'abcd'
    def path():
        return '/w/' + '/'.join(r.choice(names) for _ in range(r.randint(1, 4)))
    for _ in range(3000):
        what = r.random()
        try:
            if what < .35: os.mkdir(path())
            elif what < .5: open(path() + '.f', 'w').close()
            elif what < .85: os.rename(path(), path())
            elif what < .9: os.unlink(path() + '.f')
            elif what < .95: os.rename(path() + '.f', path() + '.f')
            else: os.rmdir(path())
        except OSError: pass
threads = [threading.Thread(target=storm, args=(SEED * 10 + n,)) for n in range(2)]
for t in threads: t.start()
for t in threads: t.join()
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rename_storms_are_reported_or_overflow() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    for seed in 0..8 {
        python(
            &world,
            &id,
            "import os, shutil; shutil.rmtree('/w', True); os.mkdir('/w')",
        )
        .await;
        let mut events = watch(&world, &id, "/w", WatchOptions::recursive()).await;
        let storm = STORM.replace("SEED", &seed.to_string());
        let mirror = follow(&world, &id, &storm, &mut events).await;
        let real_now = real(&world, &id, "/w").await;
        if !mirror.overflow {
            assert_eq!(mirror.differs(&real_now), [""; 0], "seed {seed}");
        }
        // Whatever was reported, the whole tree is watched now.
        let mut mirror = Mirror {
            paths: real_now,
            overflow: false,
        };
        let touch = "
import os
for at, _, _ in os.walk('/w'): open(at + '/after', 'w')
";
        python(&world, &id, touch).await;
        mirror.apply(events.drain().await.unwrap());
        assert!(!mirror.overflow);
        let real_now = real(&world, &id, "/w").await;
        assert_eq!(mirror.differs(&real_now), [""; 0], "seed {seed}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_file_and_slow_directory_moves_are_complete() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    mkdir(&world, &id, "/w").await;
    let mut events = watch(&world, &id, "/w", WatchOptions::recursive()).await;
    let files = "
import os, random, time
r = random.Random(7)
for d in 'abcd': os.makedirs(f'/w/{d}/deep')
for n in range(4000):
    at = f'/w/{r.choice(\"abcd\")}/deep/{r.randrange(9)}'
    try:
        if n % 3: os.rename(at, f'/w/{r.choice(\"abcd\")}/{r.randrange(9)}')
        else: open(at, 'w').close()
    except OSError: pass
";
    let mut mirror = follow(&world, &id, files, &mut events).await;
    assert!(!mirror.overflow);
    assert_eq!(mirror.differs(&real(&world, &id, "/w").await), [""; 0]);
    // The events are drained after each step, so that the queue never overflows.
    for n in 0..30 {
        let directories = format!(
            "
import os
os.rename('/w/a', '/w/b/moved')
open('/w/b/moved/deep/{n}', 'w').close()
"
        );
        python(&world, &id, &directories).await;
        mirror.apply(events.drain().await.unwrap());
        let back = format!(
            "import os; os.rename('/w/b/moved', '/w/a'); os.rename('/w/c', '/w/d/m{n}'); os.mkdir('/w/c')"
        );
        python(&world, &id, &back).await;
        mirror.apply(events.drain().await.unwrap());
    }
    assert!(!mirror.overflow);
    assert_eq!(mirror.differs(&real(&world, &id, "/w").await), [""; 0]);
    drop(events);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_event_queue_overflows_and_the_watch_continues() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    mkdir(&world, &id, "/w").await;
    let mut events = watch(&world, &id, "/w", WatchOptions::recursive()).await;
    // No client reads meanwhile.
    let much = "
import os
for n in range(60000): os.close(os.open(f'/w/{n}', os.O_CREAT)); os.rename(f'/w/{n}', '/w/same')
os.mkdir('/w/unseen')
";
    python(&world, &id, much).await;
    let seen = events.drain().await.unwrap();
    assert!(seen.contains(&WatchEvent::Overflow), "{}", seen.len());
    python(&world, &id, "open('/w/unseen/after', 'w')").await;
    assert_eq!(drained(&mut events).await, ["create unseen/after"]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_directories_are_reported_once() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    python(
        &world,
        &id,
        "import os\nfor n in range(50): os.makedirs(f'/w/{n}')",
    )
    .await;
    let options = WatchOptions {
        recursive: true,
        directories: 20,
    };
    let mut events = watch(&world, &id, "/w", options).await;
    assert_eq!(drained(&mut events).await, ["limit"]);
    python(
        &world,
        &id,
        "import os\nos.mkdir('/w/more')\nfor n in range(50): open(f'/w/{n}/x', 'w')",
    )
    .await;
    let seen = drained(&mut events).await;
    assert_eq!(seen[0], "create more/");
    assert_eq!(seen.len(), 1 + 19, "{seen:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchanged_directories_are_not_reported_as_lost() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    mkdir(&world, &id, "/w/a/in-a").await;
    mkdir(&world, &id, "/w/b/in-b").await;
    let mut events = watch(&world, &id, "/w", WatchOptions::recursive()).await;
    let swap = "
import ctypes
assert ctypes.CDLL(None).renameat2(-100, b'/w/a', -100, b'/w/b', 2) == 0
open('/w/a/in-b/x', 'w'); open('/w/b/in-a/y', 'w')
";
    python(&world, &id, swap).await;
    let seen: Vec<String> = events.drain().await.unwrap().iter().map(line).collect();
    assert!(seen.contains(&"overflow".into()), "{seen:?}");
    python(&world, &id, "open('/w/a/in-b/z', 'w')").await;
    assert_eq!(drained(&mut events).await, ["create a/in-b/z"]);
    world.close().await;
}
