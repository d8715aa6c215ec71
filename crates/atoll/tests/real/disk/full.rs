//! The data directory's own disk is full: new work is refused with a specific error, running sandboxes are paused,
//! and everything continues when space is free again.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{Code, ExecSpec, SandboxSpec};
use atoll_testkit::{Cage, Scratch, wait_for};
use atoll_worker::Storage;
use atoll_worker::storage::DiskSpace;

use super::{MIB, data, no_room, open, shell, write};
use crate::harness::{DEADLINE, stdout_text};

/// Takes the last byte of a disk.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = File::create(&path).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
    path
}

/// Allocates all space but a given amount.
fn leave(disk: &Path, bytes: u64) -> PathBuf {
    let path = disk.join("filler");
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&path)
        .unwrap();
    let free = DiskSpace::for_path(disk).unwrap().free.0;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free - bytes).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_delays_commands_and_loses_nothing() {
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 1 << 30);
    let world = open(&data(disk.path()), Storage::Plain).await;
    let id = world.create().await;
    stdout_text(&shell(&world, &id, "echo before > ~/f").await);
    let line = "read go; seq 1 200000; echo end >&2";
    let exec = world
        .runtime
        .exec(&id, ExecSpec::shell(line).piped_stdin().deadline(DEADLINE))
        .await
        .unwrap();

    let filler = fill(disk.path());
    let mut whole = tokio::spawn(async move { exec.finish(b"go\n", 64 << 20).await });
    let error = world
        .runtime
        .create(SandboxSpec::default())
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::DiskFull, "{error:?}");
    assert!(error.remedy.is_some());
    let error = write(&world, &id, "/home/user/more", &vec![1; 1 << 20])
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::DiskFull, "{error:?}");
    let root = atoll_model::RunAs::root();
    // Existing files can be read.
    let reader = world.runtime.read_file(&id, &root, b"/home/user/f");
    reader.await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(700), &mut whole).await;
    assert!(
        early.is_err(),
        "a command ended whose output has no room: {early:?}"
    );

    std::fs::remove_file(filler).unwrap();
    let done = whole.await.unwrap().unwrap();
    let expected: String = (1..=200_000)
        .flat_map(|number| [number.to_string(), "\n".into()])
        .collect();
    assert!(done.status.success(), "{:?}", done.status);
    assert!(
        done.stdout == expected.as_bytes(),
        "{} of {} bytes",
        done.stdout.len(),
        expected.len()
    );
    assert_eq!(done.stderr, b"end\n");
    assert_eq!(
        stdout_text(&shell(&world, &id, "cat ~/f").await),
        "before\n"
    );
    write(&world, &id, "/home/user/more", b"room")
        .await
        .unwrap();
    let another = world.create().await;
    stdout_text(&shell(&world, &another, "echo fine").await);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_sandboxes_can_be_deleted_on_a_full_disk() {
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 1 << 30);
    let world = open(&data(disk.path()), Storage::Plain).await;
    let id = world.create().await;
    // The sandbox itself fills the disk.
    assert!(no_room(&shell(&world, &id, "cat /dev/zero > ~/big").await));
    world.runtime.delete(&id).await.unwrap();
    wait_for("the room to come back", DEADLINE, || {
        DiskSpace::for_path(disk.path()).unwrap().available().0 > 500 * MIB
    });
    let id = world.create().await;
    stdout_text(&shell(&world, &id, "echo fine").await);
    world.close().await;
}

/// Limit and usage of all sandboxes of an image together, according to the kernel.
fn ceiling(top: PathBuf) -> (impl Fn() -> u64, impl Fn() -> u64) {
    use atoll_jail::btrfs;
    let id = btrfs::id(File::open(top).unwrap().as_fd()).unwrap();
    let group = btrfs::group(0);
    let name = format!("{}_{}", group >> 48, group & ((1 << 48) - 1));
    let group = Path::new("/sys/fs/btrfs")
        .join(id)
        .join("qgroups")
        .join(name);
    let number = |file: PathBuf| {
        move || -> u64 {
            let text = std::fs::read_to_string(&file).unwrap();
            text.trim().parse().unwrap()
        }
    };
    (
        number(group.join("max_referenced")),
        number(group.join("referenced")),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_on_an_image_leave_the_host_reserve_free() {
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 2 << 30);
    let world = open(&data(disk.path()), Storage::Image).await;
    let (one, other) = (world.create().await, world.create().await);
    stdout_text(
        &shell(
            &world,
            &one,
            "head -c 20M /dev/urandom > ~/f; sha256sum ~/f > ~/sum",
        )
        .await,
    );
    let reserve = DiskSpace::for_path(disk.path()).unwrap().reserve.0;
    // Another file takes all space but the reserve and a little.
    let filler = leave(disk.path(), reserve + 100 * MIB);
    let top = data(disk.path()).join("runs").join(world.runtime.tag());
    let (most, used) = ceiling(top.join("storage"));
    wait_for("the ceiling to come down", DEADLINE, || {
        most() < used() + 150 * MIB
    });
    assert!(no_room(
        &shell(&world, &other, "cat /dev/zero > ~/big").await
    ));
    let space = DiskSpace::for_path(disk.path()).unwrap();
    // Metadata of the image does not count against limits of sandboxes.
    assert!(space.free.0 > reserve - 64 * MIB, "{space:?}");
    stdout_text(&shell(&world, &one, "sha256sum -c --quiet ~/sum").await);
    world.runtime.delete(&other).await.unwrap();

    std::fs::remove_file(filler).unwrap();
    let mut last = String::new();
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let done = shell(&world, &one, "head -c 200M /dev/zero > ~/big && echo done").await;
        if done.status.success() {
            break;
        }
        last.clone_from(&String::from_utf8_lossy(&done.stderr).into_owned());
        assert!(std::time::Instant::now() < deadline, "{last}");
        assert!(no_room(&done), "{done:?}");
    }
    stdout_text(&shell(&world, &one, "sha256sum -c --quiet ~/sum").await);
    world.close().await;
}
