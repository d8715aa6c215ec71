//! The image is mounted only while it is needed; after a kill of the server its successor takes the mount over.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use atoll_model::{Code, SandboxState};
use atoll_testkit::{Scratch, mounts, run_within, wait_for};
use atoll_worker::instance::{Scope, collect};
use atoll_worker::{Config, LocalRuntime, Storage};

use super::{data, limited, no_room, open, shell};
use crate::cli::{atoll, done, output_text};
use crate::harness::{DEADLINE, World, binary, stdout_text};

/// Mounts and loop devices of anything below a directory.
fn left(below: &Path) -> Vec<String> {
    let mut left: Vec<String> = mounts()
        .iter()
        .filter(|mount| mount.point.starts_with(below))
        .map(|mount| mount.point.display().to_string())
        .collect();
    for device in std::fs::read_dir("/sys/block").unwrap().flatten() {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file"));
        left.extend(
            file.ok()
                .filter(|file| file.starts_with(below.to_str().unwrap())),
        );
    }
    left
}

fn nothing_left(below: &Path) {
    wait_for("mounts and loop devices to go", DEADLINE, || {
        left(below).is_empty()
    });
}

#[test]
fn a_run_leaves_neither_mount_nor_device() {
    let scratch = Scratch::new();
    let data = data(scratch.path());
    let run = |args: &[&str]| {
        let mut command = atoll(args);
        command.env("ATOLL_DATA_DIR", &data);
        command
    };
    let line = "head -c 100M /dev/zero > big; stat -c %s big";
    let mut limited = run(&["run", "--disk", "32M", "--", "sh", "-c", line]);
    let output = run_within(&mut limited, Duration::from_mins(1), b"");
    let text = output_text(&output);
    assert!(text.contains("quota exceeded"), "{text}");
    nothing_left(scratch.path());

    // After a kill the mounts remain for `gc`.
    let mut child = run(&[
        "run",
        "--disk",
        "32M",
        "--",
        "sh",
        "-c",
        "head -c 8M /dev/urandom > f; echo ready; sleep 300",
    ])
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut ready,
    )
    .unwrap();
    let table = output_text(&run_within(&mut run(&["df"]), Duration::from_mins(1), b""));
    assert!(
        table.contains("image") && table.contains("32 MiB"),
        "{table}"
    );
    let json = run_within(&mut run(&["df", "--json"]), Duration::from_mins(1), b"");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["sandboxes"][0]["enforced"], true, "{json}");
    assert!(
        json["sandboxes"][0]["used"].as_u64().unwrap() >= 8 << 20,
        "{json}"
    );
    assert!(
        json["host"]["reserve"].as_u64().unwrap() >= 1 << 30,
        "{json}"
    );
    assert!(!left(scratch.path()).is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the collector to find it dead", DEADLINE, || {
        let collected = run_within(&mut run(&["gc"]), Duration::from_mins(1), b"");
        assert!(collected.status.success(), "{}", output_text(&collected));
        output_text(&collected).contains("removed 1 dead run,")
    });
    nothing_left(scratch.path());
    assert_eq!(std::fs::read_dir(data.join("runs")).unwrap().count(), 0);
}

#[test]
fn unenforceable_disk_settings_are_refused() {
    let output = done(&["run", "--disk", "1T", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        output_text(&output).contains("disk 1 TiB is out of range"),
        "{}",
        output_text(&output)
    );
    let mut wrong = atoll(&["df"]);
    let output = run_within(
        wrong.env("ATOLL_STORAGE", "tape"),
        Duration::from_mins(1),
        b"",
    );
    assert!(
        output_text(&output).contains("\"tape\" is not a storage"),
        "{}",
        output_text(&output)
    );
}

fn lasting(storage: Storage) -> impl FnOnce(&mut Config) {
    move |config| {
        config.storage = storage;
        config.persistent = true;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persistent_image_is_taken_over_remounted_and_remembered() {
    let scratch = Scratch::new();
    let data = data(scratch.path());
    let world = World::open_stored(&data, lasting(Storage::Image)).await;
    let id = limited(&world, 32 << 20).await;
    let gone = limited(&world, 32 << 20).await;
    stdout_text(&shell(&world, &id, "echo here > ~/f").await);
    let tag = world.runtime.tag().to_owned();
    world.runtime.stop(&gone).await.unwrap();
    world.close().await;
    assert!(!left(scratch.path()).is_empty());
    // State after a kill during a delete.
    std::fs::rename(
        data.join("sandboxes").join(gone.as_str()),
        data.join("trash").join(gone.as_str()),
    )
    .unwrap();

    let other = Config {
        binary: binary(),
        persistent: true,
        ..Config::new(&data)
    };
    let error = LocalRuntime::open(other).await.unwrap_err();
    assert_eq!(error.code, Code::Conflict, "{error:?}");
    assert_eq!(error.details["storage"], "image");

    // Still running, on the existing mount.
    let world = World::open_stored(&data, lasting(Storage::Image)).await;
    assert_eq!(world.runtime.get(&id).unwrap().state, SandboxState::Running);
    assert_eq!(stdout_text(&shell(&world, &id, "cat ~/f").await), "here\n");
    assert!(!data.join("storage").join(gone.as_str()).exists());
    world.runtime.stop(&id).await.unwrap();
    world.close().await;

    // State after a reboot of the host: nothing is mounted.
    let facts = atoll_jail::facts::Facts::read();
    wait_for("the instance to be dead", DEADLINE, || {
        let collected = collect(Scope::Below(&data), &facts).unwrap();
        assert_eq!(collected.problems, Vec::<String>::new());
        collected.instances == [tag.clone()]
    });
    nothing_left(scratch.path());
    let world = World::open_stored(&data, lasting(Storage::Image)).await;
    world.runtime.start(&id).await.unwrap();
    assert_eq!(stdout_text(&shell(&world, &id, "cat ~/f").await), "here\n");
    assert!(no_room(&shell(&world, &id, "cat /dev/zero > ~/big").await));
    world.runtime.delete(&id).await.unwrap();
    let tag = world.runtime.tag().to_owned();
    world.close().await;
    wait_for("the instance to be dead", DEADLINE, || {
        collect(Scope::Below(&data), &facts).unwrap().instances == [tag.clone()]
    });
    nothing_left(scratch.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cgroups_of_deleted_sandboxes_do_not_accumulate() {
    let scratch = Scratch::new();
    let data = data(scratch.path());
    let world = open(&data, Storage::Image).await;
    let at = data.join("runs").join(world.runtime.tag()).join("storage");
    for _ in 0..20 {
        let id = world.create().await;
        world.runtime.delete(&id).await.unwrap();
    }
    let fs = std::fs::File::open(&at).unwrap();
    let id = atoll_jail::btrfs::id(std::os::fd::AsFd::as_fd(&fs)).unwrap();
    drop(fs);
    let groups = Path::new("/sys/fs/btrfs").join(id).join("qgroups");
    wait_for("their groups to go", DEADLINE, || {
        let names = std::fs::read_dir(&groups).unwrap().flatten();
        let ours = names.filter(|entry| entry.file_name().to_str().unwrap().starts_with("0_"));
        ours.count() <= 2
    });
    world.close().await;
    nothing_left(scratch.path());
}
