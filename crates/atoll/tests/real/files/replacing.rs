//! Replacing a file is atomic, and an aborted write leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_model::RunAs;
use atoll_testkit::pattern;

use super::{Files, IN_PLACE, REPLACE, user};
use crate::harness::{DEADLINE, in_both, stdout_text};

/// The inode inside.
async fn inode(files: &Files<'_>, path: &str) -> String {
    let done = files.world.probe(files.id, "root", &["stat", path]).await;
    let text = stdout_text(&done);
    let mut words = text.split(' ').skip_while(|word| *word != "ino");
    words.nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_sees_either_the_old_or_the_new_file() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let size = 100_000;
        files.write("/file", vec![b'a'; size]).await;
        let done = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (runtime, id, done) = (world.runtime.clone(), id.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    let mut rounds = 0;
                    while !done.load(Ordering::Relaxed) {
                        let reader = runtime.read_file(&id, &RunAs::root(), b"/file").await;
                        let bytes = reader.unwrap().read_to_end(1 << 20).await.unwrap();
                        assert_eq!(bytes.len(), size);
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of each");
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        for round in 0..200_u8 {
            files.write("/file", vec![b'a' + round % 26; size]).await;
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.await.unwrap() > 0);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_place_keeps_the_inode_and_replace_changes_the_inode() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/file", "a longer text").await;
        let changed = world
            .runtime
            .chmod(id, &RunAs::root(), b"/file", 0o751)
            .await;
        changed.unwrap();
        stdout_text(
            &world
                .probe(id, "root", &["hardlink", "/file", "/other"])
                .await,
        );
        let before = inode(&files, "/file").await;
        files
            .try_write(&RunAs::root(), "/file", "short", IN_PLACE)
            .await
            .unwrap();
        assert_eq!(inode(&files, "/file").await, before);
        assert_eq!(files.stat("/file").await.mode, 0o751);
        assert_eq!(files.text("/other").await, "short");
        files.write("/file", "new").await;
        assert_ne!(inode(&files, "/file").await, before);
        assert_eq!(files.stat("/file").await.mode, 0o751);
        assert_eq!(files.text("/other").await, "short");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_write_leaves_nothing() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/place").await;
        files.write("/place/kept", "old").await;
        for path in ["/place/kept", "/place/new"] {
            let root = RunAs::root();
            let writer = world
                .runtime
                .write_file(id, &root, path.as_bytes(), REPLACE);
            let mut writer = writer.await.unwrap();
            // More than a pipe holds: some of it is in a file already.
            writer.write(&pattern(3_000_000).to_vec()).await.unwrap();
            assert!(!files.exists("/place/new").await);
            drop(writer);
        }
        for path in ["/place/kept", "/place/new"] {
            let root = RunAs::root();
            let writer = world
                .runtime
                .write_file(id, &root, path.as_bytes(), REPLACE);
            drop(writer.await.unwrap());
        }
        let gone = async {
            while files.names("/place").await != ["kept"] {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(DEADLINE, gone).await;
        assert!(waited.is_ok(), "left: {:?}", files.names("/place").await);
        assert_eq!(files.text("/place/kept").await, "old");
        // No helper process remains in the sandbox.
        atoll_testkit::wait_for("the helpers to end", DEADLINE, || {
            world.runtime.usage(id).unwrap().pids == 1
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_read_ends_its_helper() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/big", pattern(8_000_000).to_vec()).await;
        let mut reader = world.runtime.read_file(id, &user(), b"/big").await.unwrap();
        assert!(reader.read(&mut [0; 100][..]).await.unwrap() > 0);
        drop(reader);
        atoll_testkit::wait_for("the helper to end", DEADLINE, || {
            world.runtime.usage(id).unwrap().pids == 1
        });
    })
    .await;
}
