//! D05, D06: special files, and unusual names.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use atoll_model::{Code, Error, FileKind, RunAs, WriteOptions};

use super::USERS;
use super::canary::{Canary, read, upper, write};
use crate::harness::{Kind, World, stdout_text};

/// Timeout that no response exceeds; reading an endless file exceeds the timeout.
const SOON: Duration = Duration::from_secs(30);

fn caller(user: &str) -> RunAs {
    RunAs {
        user: Some(user.to_owned()),
        ..RunAs::default()
    }
}

async fn refused<T: std::fmt::Debug>(
    what: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Code {
    let answer = tokio::time::timeout(SOON, call).await;
    let answer = answer.unwrap_or_else(|_| panic!("{what} blocks"));
    answer.err().unwrap_or_else(|| panic!("{what} works")).code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn special_files_are_refused_without_blocking() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    for args in [
        ["fifo", "/fifo"],
        ["socket", "/socket"],
        ["mkdir", "/directory"],
    ] {
        stdout_text(&world.probe(&id, "root", &args).await);
    }
    for path in ["/fifo", "/socket"] {
        stdout_text(&world.probe(&id, "root", &["chmod", path, "666"]).await);
    }
    for (link, target) in [("/to-fifo", "/fifo"), ("/to-zero", "/dev/zero")] {
        stdout_text(&world.probe(&id, "root", &["link", target, link]).await);
    }
    for user in USERS {
        let caller = caller(user);
        for path in [
            "/fifo",
            "/socket",
            "/directory",
            "/to-fifo",
            "/to-zero",
            "/dev/zero",
            "/dev/null",
            "/dev/urandom",
            "/dev/pts/ptmx",
        ] {
            let what = format!("read {path} as {user}");
            let code = refused(&what, read(&world, &id, &caller, path)).await;
            assert_eq!(code, Code::NotAFile, "{what}");
            for in_place in [false, true] {
                let what = format!("write {path} as {user}, in place {in_place}");
                let options = WriteOptions {
                    in_place,
                    ..WriteOptions::default()
                };
                let code = refused(&what, write(&world, &id, &caller, path, options)).await;
                assert_eq!(code, Code::NotAFile, "{what}");
            }
        }
        let kept = refused("read /proc/kmsg", read(&world, &id, &caller, "/proc/kmsg")).await;
        assert_eq!(kept, Code::PermissionDenied);
        // A read of a regular file in /proc ends, with or without an error.
        for path in [
            "/proc/version",
            "/proc/self/status",
            "/proc/self/mounts",
            "/proc/kallsyms",
        ] {
            let _ = tokio::time::timeout(SOON, read(&world, &id, &caller, path))
                .await
                .expect(path);
        }
    }
    naive_blocks(&upper(&world, &id).join("fifo"));
    world.close().await;
}

/// The control: a plain open of the FIFO blocks until a writer opens the FIFO.
fn naive_blocks(fifo: &Path) {
    let (sender, opened) = mpsc::channel();
    let path = fifo.to_path_buf();
    let reader = std::thread::spawn(move || {
        let file = fs::File::open(path);
        let _ = sender.send(());
        file
    });
    assert!(
        opened.recv_timeout(Duration::from_millis(300)).is_err(),
        "it did not block"
    );
    let writer = fs::File::options()
        .write(true)
        .open(fifo)
        .expect("it lets the reader go");
    reader.join().expect("it ends").expect("it opens");
    drop(writer);
}

/// Names that must be stored unchanged, also those that differ only in case or normalization.
fn verbatim() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        "back\\slash",
        "..\\..\\up",
        "new\nline",
        "tab\tand space ",
        " leading",
        "-rf",
        "*",
        "$(id)",
        "~",
        "...",
        ".hidden",
        "C:",
        "case",
        "Case",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{202e}gnp.exe",
        "\u{1f980}",
        "%2e%2e%2f",
        "a;b|c&d",
        "'\"`",
        "\u{1}\u{7f}",
    ]
    .map(|name| name.as_bytes().to_vec())
    .into();
    names.push(b"\xff\xfe not text".to_vec());
    names.push(vec![b'n'; 255]);
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_names_are_stored_unchanged() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    for user in USERS {
        let place = format!("/place-{user}");
        world
            .runtime
            .make_directory(&id, &RunAs::root(), place.as_bytes(), 0o777, true)
            .await
            .expect("root may");
        let caller = caller(user);
        let mut names = verbatim();
        for name in &names {
            let path = [place.as_bytes(), b"/", name].concat();
            let text = String::from_utf8_lossy(name).into_owned();
            let made = world
                .runtime
                .write_file(&id, &caller, &path, WriteOptions::default())
                .await;
            let mut writer = made.unwrap_or_else(|error| panic!("{text:?}: {error}"));
            writer.write(name).await.expect("it takes it");
            writer
                .commit()
                .await
                .unwrap_or_else(|error| panic!("{text:?}: {error}"));
        }
        for name in &names {
            let path = [place.as_bytes(), b"/", name].concat();
            let reader = world
                .runtime
                .read_file(&id, &caller, &path)
                .await
                .expect("it is there");
            assert_eq!(
                reader.read_to_end(4096).await.expect("it can be read"),
                *name
            );
        }
        let (entries, truncated) = world
            .runtime
            .list_files(&id, &caller, place.as_bytes(), 1, 1000)
            .await
            .expect("it can be listed");
        assert!(!truncated);
        let mut listed: Vec<Vec<u8>> = entries.into_iter().map(|entry| entry.path).collect();
        listed.sort();
        names.sort();
        assert_eq!(listed, names, "{user}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_names_are_refused_by_name() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let long = format!("/{}", "n".repeat(256));
    let deep = format!("/{}", "d/".repeat(2048));
    for user in USERS {
        let caller = caller(user);
        for (path, code, named) in [
            ("", Code::InvalidRequest, "empty"),
            ("/nul\0byte", Code::InvalidRequest, "NUL"),
            (&deep, Code::InvalidRequest, "longer than 4096"),
            (&long, Code::InvalidRequest, "too long"),
            ("/..", Code::NotAFile, "/.."),
            ("/", Code::NotAFile, "/"),
            ("/missing/f", Code::FileNotFound, "/missing"),
        ] {
            for written in [false, true] {
                let call = async {
                    if written {
                        write(&world, &id, &caller, path, WriteOptions::default()).await
                    } else {
                        read(&world, &id, &caller, path).await.map(drop)
                    }
                };
                let error = call.await.expect_err(path);
                // Permissions are checked before the name.
                let early = user == &"user" && written && error.code == Code::PermissionDenied;
                assert!(
                    early || error.code == code,
                    "{user} {written} {path:.20}: {error:?}"
                );
                assert!(
                    early || error.message.contains(named),
                    "{user} {written} {path:.20}: {error:?}"
                );
            }
        }
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parent_references_stay_in_the_sandbox() {
    let canary = Canary::new();
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    // The control: joining an absolute path or one with `..` leaves the sandbox's directory.
    let upper = upper(&world, &id);
    assert_eq!(upper.join(canary.file()), Path::new(&canary.file()));
    let climbing = format!("{}{}", "../".repeat(20), canary.file());
    assert!(fs::read(upper.join(&climbing)).is_ok());
    let options = WriteOptions {
        parents: true,
        ..WriteOptions::default()
    };
    for user in USERS {
        let caller = caller(user);
        for path in [
            canary.file(),
            climbing.clone(),
            format!("/{climbing}"),
            format!("/proc/../..{}", canary.file()),
        ] {
            assert_eq!(
                refused(&path, read(&world, &id, &caller, &path)).await,
                Code::FileNotFound
            );
            let written = write(&world, &id, &caller, &path, options).await;
            // Root creates the file in the sandbox, under the same path.
            if *user == "root" {
                written.unwrap_or_else(|error| panic!("{path}: {error}"));
                let found = world
                    .runtime
                    .stat(&id, &caller, canary.file().as_bytes(), false)
                    .await
                    .expect("it is there");
                assert_eq!(found.kind, FileKind::File);
                world
                    .runtime
                    .remove(&id, &caller, canary.file().as_bytes(), false)
                    .await
                    .expect("it can go");
            }
            canary.assert_untouched(&path);
        }
    }
    world.close().await;
}
