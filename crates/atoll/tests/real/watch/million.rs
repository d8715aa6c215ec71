//! A watch on a tree of a million entries (D09).
//!
//! To create a million files one by one takes minutes. A btrfs snapshot copies ten thousand in a millisecond, so
//! the tree consists of a hundred snapshots, and the sandbox sees it as a mounted directory of the host.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use atoll_model::{Code, HostMount, RunAs, SandboxId, WatchEvent, WatchOptions};
use atoll_testkit::{Scratch, run, wait_for};
use atoll_worker::Watch;

use super::{descriptors, drained};
use crate::harness::{DEADLINE, Kind, World};

const COPIES: usize = 100;
/// Of each copy, besides its top: ten, and a hundred below them.
const DIRECTORIES: usize = 110;
const FILES: usize = 99;
/// A million and some.
const ENTRIES: usize = COPIES * (1 + DIRECTORIES + 100 * FILES);
/// Number of watched directories: the root, the copies and those in them.
const WATCHES: usize = 1 + COPIES * (1 + DIRECTORIES);
/// Kernel limit of watches in the sandbox: one and a half trees.
const MOST: usize = WATCHES * 3 / 2;

/// The mounted tree.
struct Tree {
    at: PathBuf,
}

fn sound(command: &mut Command) {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {output:?}");
}

impl Tree {
    fn new(scratch: &Scratch) -> Self {
        let (image, at) = (scratch.join("tree.image"), scratch.join("tree"));
        let file = File::create_new(&image).unwrap();
        file.set_len(2 << 30).unwrap();
        std::fs::create_dir(&at).unwrap();
        sound(Command::new("mkfs.btrfs").arg("-q").arg(&image));
        let options = ["-o", "loop,noatime"];
        sound(Command::new("mount").args(options).arg(&image).arg(&at));
        let tree = Self { at };
        let first = tree.copy(0);
        sound(
            Command::new("btrfs")
                .args(["-q", "subvolume", "create"])
                .arg(&first),
        );
        for number in 0..100 {
            let directory = first.join(format!("{}/{number}", number % 10));
            std::fs::create_dir_all(&directory).unwrap();
            for file in 0..FILES {
                File::create_new(directory.join(format!("f{file}"))).unwrap();
            }
        }
        for number in 1..COPIES {
            let copy = ["-q", "subvolume", "snapshot"];
            sound(
                Command::new("btrfs")
                    .args(copy)
                    .arg(&first)
                    .arg(tree.copy(number)),
            );
        }
        let count = [
            "-c",
            &format!("find {} | wc -l", tree.copy(COPIES - 1).display()),
        ];
        let counted = run(Command::new("sh").args(count)).stdout;
        let counted = String::from_utf8(counted).unwrap();
        assert_eq!(counted.trim(), (ENTRIES / COPIES).to_string());
        tree
    }

    fn copy(&self, number: usize) -> PathBuf {
        self.at.join(format!("c{number}"))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Lazy: the mount ends with its last user.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// Number of inotify watches of a sandbox's processes.
fn watched(world: &World, id: &SandboxId) -> usize {
    let pid = world.runtime.host_pid(id).unwrap();
    let below = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let lines = |child: &str| -> usize {
        let all = std::fs::read_dir(format!("/proc/{child}/fdinfo"));
        let all = all.into_iter().flatten().flatten();
        let texts = all.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        texts.map(|text| text.matches("inotify wd:").count()).sum()
    };
    below.split_whitespace().map(lines).sum()
}

/// Lowers the kernel's limit of inotify watches in a sandbox, as the default is too high for a short test.
fn limit(world: &World, id: &SandboxId, watches: usize) {
    let pid = world.runtime.host_pid(id).unwrap();
    let line = format!("echo {watches} > /proc/sys/user/max_inotify_watches");
    sound(
        Command::new("nsenter")
            .args(["-U", "-t", &pid.to_string(), "sh", "-c", &line])
            .current_dir("/"),
    );
}

async fn watch(world: &World, id: &SandboxId, directories: u32) -> Watch {
    let options = WatchOptions {
        recursive: true,
        directories,
    };
    let root = RunAs::root();
    let watch = world.runtime.watch(id, &root, b"/tree", options);
    watch.await.unwrap()
}

fn touch(path: &Path) {
    File::create_new(path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_tree_of_a_million_entries_is_watched_within_limits() {
    let scratch = Scratch::new();
    let tree = Tree::new(&scratch);
    let world = World::open().await;
    let shown = async || {
        let mount = HostMount {
            source: tree.at.clone(),
            target: "/tree".into(),
        };
        world
            .sandbox_spec(Kind::Static, |spec| spec.mounts.push(mount))
            .await
    };
    let (id, neighbour) = (shown().await, shown().await);
    let pids = || world.runtime.usage(&id).unwrap().pids;
    let (before, open, root) = (pids(), descriptors(), RunAs::root());
    // The first watch covers everything; a second one of the same sandbox gets the remaining kernel watches, and
    // reports that it is incomplete.
    limit(&world, &id, MOST);
    let mut whole = watch(&world, &id, u32::MAX).await;
    assert_eq!(drained(&mut whole).await, [""; 0]);
    assert_eq!(watched(&world, &id), WATCHES);
    let mut second = watch(&world, &id, u32::MAX).await;
    assert_eq!(drained(&mut second).await, ["limit"]);
    assert_eq!(watched(&world, &id), MOST);
    // Further watches of any kind fail with a remedy.
    let refused = world
        .runtime
        .watch(&id, &root, b"/", WatchOptions::default());
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded, "{refused:?}");
    assert!(refused.remedy.unwrap().contains("max_user_watches"));
    // The other sandbox has its own watches.
    let mut other = watch(&world, &neighbour, u32::MAX).await;
    assert_eq!(drained(&mut other).await, [""; 0]);
    assert_eq!(watched(&world, &neighbour), WATCHES);
    let mut few = watch(&world, &neighbour, 20).await;
    assert_eq!(drained(&mut few).await, ["limit"]);
    assert_eq!(watched(&world, &neighbour), WATCHES + 20);

    // Each watch reports changes anywhere in the tree.
    for number in [0, COPIES / 2, COPIES - 1] {
        touch(&tree.copy(number).join("7/17/new"));
        let path = format!("c{number}/7/17/new");
        for events in [&mut whole, &mut other] {
            let seen = drained(events).await;
            assert!(seen.contains(&format!("create {path}")), "{seen:?}");
        }
    }
    drop((second, other, few));

    // An overflow of the kernel's event queue: it is reported, and all directories are watched again.
    world.runtime.pause(&id).await.unwrap();
    let queue = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let busy = tree.copy(3).join("5/15");
    for number in 0..queue.trim().parse::<u32>().unwrap() + 100 {
        let mode = Permissions::from_mode(0o600 | number & 0o77);
        std::fs::set_permissions(busy.join(format!("f{}", number % 2)), mode).unwrap();
    }
    world.runtime.resume(&id).await.unwrap();
    let events = whole.drain().await.unwrap();
    assert!(
        events.contains(&WatchEvent::Overflow),
        "{} events",
        events.len()
    );
    assert_eq!(watched(&world, &id), WATCHES);
    touch(&tree.copy(COPIES - 1).join("9/99/last"));
    assert!(
        drained(&mut whole)
            .await
            .contains(&"create c99/9/99/last".into())
    );

    // No kernel watch remains.
    drop(whole);
    wait_for("the helpers to end", DEADLINE, || pids() == before);
    assert_eq!(watched(&world, &id) + watched(&world, &neighbour), 0);
    assert!(descriptors() <= open, "{} {open}", descriptors());
    world.close().await;
}
