//! Disk space: a sandbox that fills its own disk affects no other, the host keeps a reserve, and a host without
//! free space pauses sandboxes and loses none of their data.

mod full;
mod halted;
mod mounts;

use std::path::{Path, PathBuf};

use atoll_model::runtime::ExecResult;
use atoll_model::{Bytes, Code, ExecSpec, RunAs, SandboxId, SandboxSpec, WriteOptions};
use atoll_testkit::{Scratch, wait_for};
use atoll_worker::Storage;

use crate::harness::{DEADLINE, Kind, World, private, stdout_text, template};

const MIB: u64 = 1 << 20;

/// A data directory of the test's own.
fn data(scratch: &Path) -> PathBuf {
    let data = scratch.join("data");
    private(&data);
    data
}

async fn open(data: &Path, storage: Storage) -> World {
    World::open_stored(data, |config| config.storage = storage).await
}

async fn limited(world: &World, disk: u64) -> SandboxId {
    let spec = SandboxSpec {
        limits: atoll_model::Limits {
            disk: Bytes(disk),
            ..atoll_model::Limits::default()
        },
        ..SandboxSpec::default()
    };
    world.runtime.create(spec).await.unwrap().id
}

async fn shell(world: &World, id: &SandboxId, line: &str) -> ExecResult {
    world.exec(id, ExecSpec::shell(line)).await
}

async fn write(
    world: &World,
    id: &SandboxId,
    path: &str,
    text: &[u8],
) -> Result<(), atoll_model::Error> {
    let root = RunAs::root();
    let options = WriteOptions::default();
    let mut writer = world
        .runtime
        .write_file(id, &root, path.as_bytes(), options)
        .await?;
    writer.write(text).await?;
    writer.commit().await.map(|_| ())
}

/// Whether the command failed with ENOSPC or EDQUOT.
fn no_room(finished: &ExecResult) -> bool {
    let text = String::from_utf8_lossy(&finished.stderr).to_lowercase();
    let text = format!(
        "{text}{}",
        String::from_utf8_lossy(&finished.stdout).to_lowercase()
    );
    text.contains("quota exceeded") || text.contains("no space left")
}

/// Ways to exceed the disk limit: name, user and command.
const GREED: [(&str, &str, &str); 7] = [
    ("root", "root", "cat /dev/zero > /big"),
    ("tmp", "user", "cat /dev/zero > /tmp/big"),
    (
        "home",
        "user",
        "for i in $(seq 100); do head -c 4M /dev/zero > ~/f$i || exit 1; done",
    ),
    ("fallocate", "user", "fallocate -l 1G ~/big"),
    (
        "sparse",
        "user",
        "truncate -s 8T ~/big && for i in $(seq 200); do dd if=/dev/zero of=$HOME/big bs=1M count=1 seek=$((i * 40000)) conv=notrunc status=none || exit 1; done",
    ),
    (
        "inodes",
        "user",
        "python3 -c \"import os\nos.chdir('/home/user')\nfor i in range(10**7): os.close(os.open(f'{i:0200}', os.O_CREAT | os.O_WRONLY))\"",
    ),
    ("copies", "user", "cp -r /usr/bin ~/copies"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_sandbox_leaves_others_their_space() {
    let scratch = Scratch::new();
    let world = open(&data(scratch.path()), Storage::Image).await;
    let neighbour = world.create().await;
    for (name, user, line) in GREED {
        let id = limited(&world, 24 * MIB).await;
        let done = world.exec(&id, ExecSpec::shell(line).user(user)).await;
        assert!(!done.status.success() && no_room(&done), "{name}: {done:?}");
        let used = world.runtime.disk_usage(&id).await.unwrap();
        assert!(used.enforced && used.complete, "{name}: {used:?}");
        assert!(used.used <= used.limit, "{name}: {used:?}");
        // A file call fails with the specific code.
        let error = write(&world, &id, "/more", &vec![1; 30 << 20])
            .await
            .unwrap_err();
        assert_eq!(error.code, Code::DiskFull, "{name}: {error:?}");
        stdout_text(&shell(&world, &neighbour, "head -c 30M /dev/zero > ~/fine").await);
        world.runtime.delete(&id).await.unwrap();
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_files_free_space_in_a_full_sandbox() {
    let scratch = Scratch::new();
    let world = open(&data(scratch.path()), Storage::Image).await;
    let id = limited(&world, 32 * MIB).await;
    assert!(no_room(&shell(&world, &id, "cat /dev/zero > ~/big").await));
    stdout_text(&shell(&world, &id, "rm ~/big && head -c 20M /dev/zero > ~/smaller").await);
    world.close().await;
}

/// Control: the same commands without an image exceed the limit, so the image enforces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_storage_has_advisory_limits_and_refuses_others() {
    let scratch = Scratch::new();
    let disk = atoll_testkit::Cage::disk(scratch.path(), 2 << 30);
    let world = open(&data(disk.path()), Storage::Plain).await;
    let id = world.create().await;
    stdout_text(&shell(&world, &id, "head -c 200M /dev/zero > ~/big").await);
    let usage = world.runtime.disk_usage(&id).await.unwrap();
    assert!(!usage.enforced && usage.complete);
    assert!((200 * MIB..220 * MIB).contains(&usage.used.0), "{usage:?}");
    let spec = SandboxSpec {
        limits: atoll_model::Limits {
            disk: Bytes(32 * MIB),
            ..atoll_model::Limits::default()
        },
        ..SandboxSpec::default()
    };
    let error = world.runtime.create(spec).await.unwrap_err();
    assert_eq!(error.code, Code::UnsupportedByHost);
    assert_eq!(error.details["field"], "disk");
    assert!(error.remedy.unwrap().contains("storage = image"));
    world.close().await;
}

/// ext4 with blocks of 4 KiB ends one block before 16 TiB; a btrfs goes far beyond (C04).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_terabyte_file_is_refused_or_takes_no_space() {
    const HUGE: u64 = 16 << 40;
    let scratch = Scratch::new();
    let disk = atoll_testkit::Cage::disk(scratch.path(), 1 << 30);
    for storage in [Storage::Plain, Storage::Image] {
        let world = open(&data(disk.path()), storage).await;
        let (root, runtime) = (RunAs::root(), &world.runtime);
        let id = world.create().await;
        let huge = format!("truncate -s {HUGE} ~/huge");
        let made = shell(&world, &id, &huge).await;
        let size = if storage == Storage::Plain {
            let complaint = String::from_utf8_lossy(&made.stderr);
            assert!(complaint.contains("File too large"), "{made:?}");
            // The largest possible limit is accepted.
            let largest = HUGE - 4096;
            stdout_text(&shell(&world, &id, &format!("truncate -s {largest} ~/huge")).await);
            largest
        } else {
            stdout_text(&made);
            HUGE
        };
        // A sparse file with data in its middle and at its end.
        let line = "for at in 1 8000000 16777214; do printf x | dd of=$HOME/huge bs=1M seek=$at conv=notrunc status=none; done; sync ~/huge";
        stdout_text(&shell(&world, &id, line).await);
        let path = b"/home/user/huge";
        let entry = runtime.stat(&id, &root, path, false).await.unwrap();
        assert_eq!(entry.size, size, "{storage}");
        let used = runtime.disk_usage(&id).await.unwrap();
        assert!(
            used.complete && used.used.0 < 8 * MIB,
            "{storage}: {used:?}"
        );
        // A range of the file can be read; a read of the whole file ends at the limit.
        let part = runtime.read_range(&id, &root, path, 8_000_000 * MIB, 2);
        let part = part.await.unwrap().read_to_end(16).await.unwrap();
        assert_eq!(part, b"x\0", "{storage}");
        let all = runtime.read_file(&id, &root, path).await.unwrap();
        let error = all.read_to_end(1 << 20).await.unwrap_err();
        assert_eq!(error.code, Code::QuotaExceeded, "{storage}: {error:?}");
        // A copy keeps the holes, or fails on a full disk without effect on other sandboxes.
        let copied = runtime.copy(&id, &root, path, b"/home/user/copy", false);
        match tokio::time::timeout(DEADLINE, copied)
            .await
            .expect("it ends")
        {
            Ok(()) => {
                let used = runtime.disk_usage(&id).await.unwrap();
                assert!(used.used.0 < 16 * MIB, "{storage}: {used:?}");
            }
            Err(error) => assert_eq!(error.code, Code::DiskFull, "{storage}: {error:?}"),
        }
        runtime.delete(&id).await.unwrap();
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_trees_are_deleted_and_free_their_space() {
    let scratch = Scratch::new();
    let data = data(scratch.path());
    let world = open(&data, Storage::Image).await;
    let odd = "import os
os.chdir('/home/user')
for name in [b'a\\nb', b'x' * 255, b'\\xff\\xfe', b'-rf', b' ']: os.close(os.open(name, os.O_CREAT))
try: os.open(b'x' * 256, os.O_CREAT)
except OSError as error: print(error.errno)
open('kept', 'wb').write(os.urandom(40 << 20))
for _ in range(4096):
    os.mkdir('d'); os.chdir('d')
print('deep')";
    let id = world.create().await;
    let done = world
        .exec(&id, ExecSpec::argv(["python3", "-c", odd]))
        .await;
    assert_eq!(stdout_text(&done), "36\ndeep\n");
    let tag = world.runtime.tag().to_owned();
    let image = data.join("runs").join(tag).join("storage.btrfs");
    // A remaining sandbox shares the image's blocks with it.
    let stays = world.create().await;
    stdout_text(&shell(&world, &stays, "head -c 2M /dev/urandom > ~/f").await);
    let blocks =
        || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&image).unwrap()) * 512;
    // `sync` in the sandbox has no effect; blocks are freed only after they were written to the disk.
    let top = std::fs::File::open(image.with_file_name("storage")).unwrap();
    rustix::fs::syncfs(&top).unwrap();
    drop(top);
    assert!(blocks() > 40 * MIB, "{} bytes", blocks());
    world.runtime.delete(&id).await.unwrap();
    wait_for("the image to shrink", DEADLINE, || blocks() < 20 * MIB);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_usage_and_embryo_limits_work_on_both_storages() {
    let scratch = Scratch::new();
    for storage in [Storage::Plain, Storage::Image] {
        let data = data(scratch.path());
        let world = World::open_stored(&data, |config| {
            config.storage = storage;
            config.embryo_count = 1;
        });
        let world = world.await;
        let id = world.create().await;
        stdout_text(&shell(&world, &id, "head -c 8M /dev/urandom > ~/f; sync").await);
        let usage = world.runtime.disk_usage(&id).await.unwrap();
        assert!(
            (8 * MIB..10 * MIB).contains(&usage.used.0),
            "{storage}: {usage:?}"
        );
        assert_eq!(usage.enforced, storage == Storage::Image);
        world.runtime.stop(&id).await.unwrap();
        let stopped = world.runtime.disk_usage(&id).await.unwrap();
        assert!(stopped.used.0 >= 8 * MIB, "{storage}: {stopped:?}");
        if storage == Storage::Image {
            for _ in 0..3 {
                let id = limited(&world, 16 * MIB).await;
                assert!(no_room(&shell(&world, &id, "cat /dev/zero > ~/big").await));
            }
        }
        world.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_of_one_program_works_on_an_image() {
    let scratch = Scratch::new();
    let world = open(&data(scratch.path()), Storage::Image).await;
    let id = world.sandbox(Kind::Static).await;
    assert_eq!(
        world.runtime.get(&id).unwrap().template,
        template(Kind::Static)
    );
    // Programs on the image can be executed in the sandbox, although the mount on the host is noexec.
    let copy = world.probe(&id, "root", &["read", "/probe"]).await;
    write(&world, &id, "/copy", &copy.stdout).await.unwrap();
    world
        .runtime
        .chmod(&id, &RunAs::root(), b"/copy", 0o755)
        .await
        .unwrap();
    stdout_text(&world.exec(&id, ExecSpec::argv(["/copy", "true"])).await);
    world.close().await;
}
