//! B08: kernel objects through which one sandbox could pass data to another.

use atoll_model::{ExecSpec, SandboxId};
use atoll_testkit::{Attempt, attempts};
use atoll_worker::StartedExec;

use super::{USERS, attack};
use crate::harness::{Kind, World, probe_spec, stdout_text};

const CLONE_NEWIPC: u64 = 0x0800_0000;

/// Reads a program's output up to the line `last`.
async fn until(exec: &mut StartedExec, last: &str) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while !text.lines().any(|line| line == last) {
        let read = exec.stdout.read(&mut buffer).await.expect("it can be read");
        assert!(read > 0, "it ended before {last}: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}

fn worked(found: &[Attempt]) -> Vec<String> {
    found
        .iter()
        .filter(|it| it.worked())
        .map(|it| it.what.clone())
        .collect()
}

/// Returns the objects that the writer created, and those that a reader finds in the same sandbox
/// and in another.
async fn leave(world: &World, boxes: [&SandboxId; 2], user: &str) -> [Vec<String>; 3] {
    let token = format!("atoll-token-{}-{user}", std::process::id());
    let writer = probe_spec(&["b08-shared", "write", &token]).user(user);
    let writer = writer.piped_stdin();
    let mut writer = world
        .runtime
        .exec(boxes[0], writer)
        .await
        .expect("it starts");
    let left = worked(&attempts(&until(&mut writer, "ready").await));
    let mut found = Vec::new();
    for id in boxes {
        found.push(worked(
            &attack(world, id, user, "/", &["b08-shared", "look", &token]).await,
        ));
    }
    // The probe removes its objects before it exits.
    writer
        .handle
        .close_stdin()
        .expect("its standard input closes");
    let status = writer.wait().await;
    assert!(status.success(), "{status:?}");
    let elsewhere = found.pop().expect("two boxes");
    [left, found.pop().expect("two boxes"), elsewhere]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_invisible_to_other_sandboxes() {
    let world = World::open().await;
    let (first, second) = (
        world.sandbox(Kind::Base).await,
        world.sandbox(Kind::Base).await,
    );
    for user in USERS {
        let [left, same, elsewhere] = leave(&world, [&first, &second], user).await;
        for place in [
            "file:/dev/shm",
            "file:/tmp",
            "file:/var/tmp",
            "abstract-socket",
            "sysv-shm",
            "posix-queue",
        ]
        .into_iter()
        .chain((*user == "root").then_some("file:/run"))
        {
            assert!(
                left.iter().any(|it| it == place),
                "{user} could not write {place}, but {left:?}"
            );
        }
        // The control: in the same sandbox the probe finds all objects.
        assert!(
            left.iter().all(|it| same.contains(it)),
            "{user} left {left:?} and found {same:?}"
        );
        assert_eq!(elsewhere, [""; 0], "{user}");
    }
    world.close().await;
}

/// Both sandboxes then use the host's IPC namespace. The kernel refuses to mount its message queues
/// inside, so the plan drops that mount, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_ipc_namespaces_sandboxes_share_memory() {
    let world = World::open_with(|plan| {
        plan.namespaces &= !CLONE_NEWIPC;
        plan.inside
            .mounts
            .retain(|mount| mount.target != "/dev/mqueue");
    });
    let world = world.await;
    let (first, second) = (
        world.sandbox(Kind::Static).await,
        world.sandbox(Kind::Static).await,
    );
    for user in USERS {
        let [left, _, elsewhere] = leave(&world, [&first, &second], user).await;
        assert!(left.contains(&"sysv-shm".to_owned()), "{left:?}");
        assert_eq!(
            elsewhere,
            ["sysv-shm", "sysv-queue", "posix-queue"],
            "{user}"
        );
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_another_sandbox_are_invisible() {
    let world = World::open().await;
    let (first, second) = (
        world.sandbox(Kind::Static).await,
        world.sandbox(Kind::Static).await,
    );
    let sleeper = world
        .runtime
        .exec(&first, probe_spec(&["sleep", "60"]).user("root"))
        .await
        .expect("it starts");
    for (id, expected) in [(&first, true), (&second, false)] {
        let listed = world.probe(id, "root", &["ls", "/proc"]).await;
        // Both sandboxes have PID 1 and the probe; the first one also has the sleeper.
        let pids = stdout_text(&listed)
            .split_whitespace()
            .filter(|name| name.parse::<u32>().is_ok())
            .count();
        assert_eq!(pids > 2, expected, "{}", stdout_text(&listed));
    }
    sleeper.kill().expect("it can be killed");
    world.close().await;
}

/// A shared inode would share its locks: one sandbox could block another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_on_a_device_or_mask_blocks_no_other_sandbox() {
    let world = World::open().await;
    let (first, second) = (
        world.sandbox(Kind::Base).await,
        world.sandbox(Kind::Base).await,
    );
    for file in ["/dev/null", "/dev/zero", "/proc/keys", "/proc/meminfo"] {
        let line = format!("exec 9<{file} && flock 9 && echo ready && exec sleep 1000");
        let mut holder = world
            .runtime
            .exec(&first, ExecSpec::shell(line))
            .await
            .expect("it starts");
        until(&mut holder, "ready").await;
        let attempt = ExecSpec::shell(format!("exec 9<{file} && flock -n 9"));
        // The control: in the same sandbox the lock is taken.
        let here = world.exec(&first, attempt.clone()).await;
        assert_eq!(here.status.exit_code(), 1, "{file} in the same box");
        let there = world.exec(&second, attempt).await;
        assert_eq!(there.status.exit_code(), 0, "{file} in another box");
        holder.kill().expect("it can be killed");
        holder.wait().await;
    }
    world.close().await;
}
