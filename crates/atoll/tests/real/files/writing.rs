//! Writes: contents, ownership of the written file, and errors.

use std::fs::File;
use std::io::{Read, Seek};

use atoll_model::{Code, FileKind, RunAs, WriteOptions};
use atoll_testkit::{Fnv64, Scratch, pattern};

use super::{Files, IN_PLACE, REPLACE, code, owner, user};
use crate::harness::{in_both, stdout_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_every_size_come_back_as_they_were_sent() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        for options in [REPLACE, IN_PLACE] {
            for size in [0, 1, 4096, 65_535, 65_536, 65_537, 5_000_000] {
                let bytes = pattern(size).to_vec();
                let written = files
                    .try_write(&user(), "~/file", &bytes, options)
                    .await
                    .unwrap();
                assert_eq!((written.size, written.kind), (size, FileKind::File));
                assert_eq!(written.path, b"/home/user/file");
                assert!(
                    files.try_read(&user(), "~/file").await.unwrap() == bytes,
                    "{size}"
                );
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_value_survives() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        files.write("/bytes", &bytes).await;
        assert!(files.read("/bytes").await == bytes);
    })
    .await;
}

/// The hash of a whole file.
fn hash(mut file: &File) -> Fnv64 {
    file.rewind().unwrap();
    let mut hash = Fnv64::default();
    std::io::copy(&mut file, &mut hash).unwrap();
    hash
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_megabytes_are_written_and_read() {
    const SIZE: u64 = 300_000_007;
    let scratch = Scratch::new();
    let path = scratch.join("source");
    std::io::copy(&mut pattern(SIZE), &mut File::create(&path).unwrap()).unwrap();
    let sent = hash(&File::open(&path).unwrap());
    in_both(async |world, id| {
        let writer = world.runtime.write_file(id, &user(), b"big", REPLACE).await;
        let mut writer = writer.unwrap();
        assert_eq!(
            writer
                .splice_from(File::open(&path).unwrap())
                .await
                .unwrap(),
            SIZE
        );
        assert_eq!(writer.commit().await.unwrap().size, SIZE);
        let reader = world.runtime.read_file(id, &user(), b"big").await.unwrap();
        assert_eq!(reader.entry.size, SIZE);
        let back = File::create(scratch.join("back")).unwrap();
        assert_eq!(reader.splice_to(back).await.unwrap(), SIZE);
        assert_eq!(hash(&File::open(scratch.join("back")).unwrap()), sent);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_bytes_precede_spliced_bytes() {
    in_both(async |world, id| {
        let scratch = Scratch::new();
        std::fs::write(scratch.join("middle"), "middle ").unwrap();
        let mut file = File::open(scratch.join("middle")).unwrap();
        let writer = world
            .runtime
            .write_file(id, &user(), b"parts", REPLACE)
            .await;
        let mut writer = writer.unwrap();
        writer.write(b"begin ").await.unwrap();
        writer.splice_from(file.try_clone().unwrap()).await.unwrap();
        writer.write(b"end").await.unwrap();
        writer.commit().await.unwrap();
        assert_eq!(
            Files::of(world, id).text("/home/user/parts").await,
            "begin middle end"
        );
        // A file is sent from its current position.
        assert_eq!(file.read(&mut [0]).unwrap(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_is_the_requested_or_the_previous_one() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let moded = |mode| WriteOptions {
            mode: Some(mode),
            ..REPLACE
        };
        assert_eq!(files.write("/new", "").await.mode, 0o644);
        for mode in [0o600, 0o755, 0o4711, 0o000] {
            let written = files
                .try_write(&RunAs::root(), "/moded", "x", moded(mode))
                .await;
            assert_eq!(written.unwrap().mode, mode);
            assert_eq!(files.stat("/moded").await.mode, mode);
        }
        let replace = files
            .try_write(&RunAs::root(), "/kept", "x", moded(0o640))
            .await;
        assert_eq!(replace.unwrap().mode, 0o640);
        assert_eq!(files.write("/kept", "y").await.mode, 0o640);
        let in_place = files
            .try_write(&RunAs::root(), "/kept", "z", IN_PLACE)
            .await;
        assert_eq!(in_place.unwrap().mode, 0o640);
        assert_eq!(files.text("/kept").await, "z");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_belong_to_the_user_with_any_rights() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let parents = WriteOptions {
            parents: true,
            ..REPLACE
        };
        let entry = files.try_write(&user(), "own", "x", REPLACE).await.unwrap();
        assert_eq!((entry.uid, entry.gid), (1000, 1000));
        let entry = files
            .try_write(&owner(), "/srv2/deep/file", "x", parents)
            .await
            .unwrap();
        assert_eq!((entry.uid, entry.gid), (1000, 1000));
        for path in ["/srv2", "/srv2/deep"] {
            let entry = files.stat(path).await;
            assert_eq!(
                (entry.uid, entry.gid, entry.mode),
                (1000, 1000, 0o755),
                "{path}"
            );
        }
        // A replacement keeps the owner of the replaced file.
        files.write("/roots", "x").await;
        let entry = files
            .try_write(&owner(), "/roots", "y", REPLACE)
            .await
            .unwrap();
        assert_eq!((entry.uid, entry.gid), (0, 0));
        let other = RunAs {
            user: Some("4321:77".into()),
            ..owner()
        };
        let entry = files
            .try_write(&other, "/others", "x", REPLACE)
            .await
            .unwrap();
        assert_eq!((entry.uid, entry.gid), (4321, 77));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_parents_are_created_only_with_the_option() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let path = "/home/user/a/b/c/file";
        let missing = files.try_write(&user(), path, "x", REPLACE).await;
        assert_eq!(code(missing), Code::FileNotFound);
        assert!(!files.exists("/home/user/a").await);
        let parents = WriteOptions {
            parents: true,
            ..REPLACE
        };
        files.try_write(&user(), path, "x", parents).await.unwrap();
        assert_eq!(files.text(path).await, "x");
        // A file where a directory should be.
        let below = files
            .try_write(&user(), format!("{path}/below"), "x", parents)
            .await;
        assert_eq!(code(below), Code::NotADirectory);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_files_are_not_written() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        stdout_text(&world.probe(id, "root", &["fifo", "/fifo"]).await);
        stdout_text(&world.probe(id, "root", &["socket", "/socket"]).await);
        for options in [REPLACE, IN_PLACE] {
            for path in ["/", "/home", "/fifo", "/socket", "/dev/null"] {
                let written = files.try_write(&RunAs::root(), path, "x", options).await;
                let error = written.unwrap_err();
                assert_eq!(error.code, Code::NotAFile, "{path}");
                assert_eq!(error.details["path"], path);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_follows_links() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/real").await;
        files.write("/real/file", "old").await;
        files.link("file", "/real/second").await;
        files.link("/real/second", "/first").await;
        files.link("real/not-yet", "/dangling").await;
        files.link("/around", "/about").await;
        files.link("/about", "/around").await;
        for options in [REPLACE, IN_PLACE] {
            let text = format!("{options:?}");
            files
                .try_write(&RunAs::root(), "/first", &text, options)
                .await
                .unwrap();
            assert_eq!(files.stat("/first").await.kind, FileKind::Link);
            assert_eq!(files.stat("/real/second").await.kind, FileKind::Link);
            assert_eq!(files.text("/real/file").await, text);
            files
                .try_write(&RunAs::root(), "/dangling", &text, options)
                .await
                .unwrap();
            assert_eq!(files.stat("/dangling").await.kind, FileKind::Link);
            assert_eq!(files.text("/real/not-yet").await, text);
            let circle = files
                .try_write(&RunAs::root(), "/around", "x", options)
                .await;
            assert_eq!(code(circle), Code::InvalidRequest);
        }
        assert_eq!(files.names("/real").await, ["file", "not-yet", "second"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_are_checked_against_the_user_permissions() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/roots", "old").await;
        for options in [REPLACE, IN_PLACE] {
            for path in ["/roots", "/new"] {
                let written = files.try_write(&user(), path, "x", options).await;
                let error = written.unwrap_err();
                assert_eq!(error.code, Code::PermissionDenied, "{path}");
                assert_eq!(error.details["path"], path);
            }
        }
        assert_eq!(files.text("/roots").await, "old");
        assert!(!files.exists("/new").await);
        // The user's own file in a directory of another user can only be written in place.
        let handed = world
            .runtime
            .chown(id, &RunAs::root(), b"/roots", "user", "")
            .await;
        handed.unwrap();
        assert_eq!(
            code(files.try_write(&user(), "/roots", "x", REPLACE).await),
            Code::PermissionDenied
        );
        files
            .try_write(&user(), "/roots", "new", IN_PLACE)
            .await
            .unwrap();
        assert_eq!(files.text("/roots").await, "new");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_arrives_while_bytes_are_still_sent() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let much = vec![b'x'; 8 << 20];
        let error = files
            .try_write(&user(), "/new", &much, REPLACE)
            .await
            .unwrap_err();
        assert_eq!(error.code, Code::PermissionDenied, "{error:?}");
    })
    .await;
}
