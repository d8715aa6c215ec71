//! Changes of the tree: create, remove, rename, and the permissions for each.

use atoll_model::{Code, FileKind, RunAs};

use super::{Files, code, owner, user};
use crate::harness::{DEADLINE, Kind, World, in_both, probe_spec, stdout_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_made() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let make = async |caller: &RunAs, path: &str, mode, parents| {
            world
                .runtime
                .make_directory(id, caller, path.as_bytes(), mode, parents)
                .await
        };
        make(&user(), "one", 0o1770, false).await.unwrap();
        let entry = files.stat("/home/user/one").await;
        assert_eq!(
            (entry.mode, entry.uid, entry.kind),
            (0o1770, 1000, FileKind::Directory)
        );
        assert_eq!(
            code(make(&user(), "one", 0o755, false).await),
            Code::FileExists
        );
        make(&user(), "one", 0o755, true).await.unwrap();
        assert_eq!(files.stat("/home/user/one").await.mode, 0o1770);
        assert_eq!(
            code(make(&user(), "a/b", 0o755, false).await),
            Code::FileNotFound
        );
        make(&user(), "a/b/c", 0o700, true).await.unwrap();
        assert_eq!(files.stat("/home/user/a/b").await.mode, 0o755);
        assert_eq!(files.stat("/home/user/a/b/c").await.mode, 0o700);
        assert_eq!(
            code(make(&user(), "/denied", 0o755, false).await),
            Code::PermissionDenied
        );
        make(&owner(), "/granted", 0o755, false).await.unwrap();
        assert_eq!(files.stat("/granted").await.uid, 1000);
        files.write("/file", "").await;
        assert_eq!(
            code(make(&RunAs::root(), "/file", 0o755, false).await),
            Code::FileExists
        );
        assert_eq!(
            code(make(&RunAs::root(), "/file", 0o755, true).await),
            Code::FileExists
        );
        assert_eq!(
            code(make(&RunAs::root(), "/file/a/b", 0o755, true).await),
            Code::NotADirectory
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_directories_are_removed() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let root = RunAs::root();
        let remove = async |caller: &RunAs, path: &str, recursive| {
            world
                .runtime
                .remove(id, caller, path.as_bytes(), recursive)
                .await
        };
        files.mkdir("/full/below/deeper").await;
        files.write("/full/below/file", "x").await;
        files.mkdir("/empty").await;
        files.mkdir("/spared").await;
        files.write("/spared/file", "x").await;
        files.link("/spared", "/full/link").await;
        files.write("/file", "x").await;
        assert_eq!(
            code(remove(&root, "/missing", false).await),
            Code::FileNotFound
        );
        assert_eq!(
            code(remove(&root, "/missing", true).await),
            Code::FileNotFound
        );
        assert_eq!(
            code(remove(&user(), "/file", false).await),
            Code::PermissionDenied
        );
        assert_eq!(
            code(remove(&user(), "/full", true).await),
            Code::PermissionDenied
        );
        let refused = remove(&root, "/full", false).await.unwrap_err();
        assert_eq!(refused.code, Code::Conflict);
        assert!(refused.remedy.unwrap().contains("recursive"));
        remove(&root, "/file", false).await.unwrap();
        remove(&root, "/empty", false).await.unwrap();
        remove(&root, "/full", true).await.unwrap();
        for path in ["/file", "/empty", "/full"] {
            assert!(!files.exists(path).await, "{path}");
        }
        // A remove of a link keeps its target.
        assert_eq!(files.text("/spared/file").await, "x");
        files.link("/spared", "/link").await;
        remove(&root, "/link", true).await.unwrap();
        assert_eq!(files.text("/spared/file").await, "x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_directories_are_renamed() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let root = RunAs::root();
        let rename = async |caller: &RunAs, from: &str, to: &str, replace| {
            let (from, to) = (from.as_bytes(), to.as_bytes());
            world.runtime.rename(id, caller, from, to, replace).await
        };
        files.write("/one", "1").await;
        files.write("/two", "2").await;
        files.mkdir("/dir/below").await;
        files.mkdir("/other").await;
        files.write("/dir/below/file", "x").await;
        assert_eq!(
            code(rename(&root, "/missing", "/x", true).await),
            Code::FileNotFound
        );
        assert_eq!(
            code(rename(&root, "/one", "/two", false).await),
            Code::FileExists
        );
        assert_eq!(files.text("/one").await, "1");
        assert_eq!(
            code(rename(&user(), "/one", "/three", true).await),
            Code::PermissionDenied
        );
        assert_eq!(
            code(rename(&root, "/one", "/no/such", true).await),
            Code::FileNotFound
        );
        rename(&root, "/one", "/two", true).await.unwrap();
        assert_eq!(files.text("/two").await, "1");
        rename(&root, "/two", "/dir/below/two", false)
            .await
            .unwrap();
        assert!(!files.exists("/two").await);
        rename(&root, "/dir", "/other/dir", false).await.unwrap();
        assert_eq!(files.names("/other/dir/below").await, ["file", "two"]);
        assert_eq!(
            code(rename(&root, "/other", "/other/dir/x", true).await),
            Code::InvalidRequest
        );
        files.mkdir("/empty").await;
        rename(&root, "/empty", "/gone", true).await.unwrap();
        files.mkdir("/full/x").await;
        assert_eq!(
            code(rename(&root, "/gone", "/full", true).await),
            Code::Conflict
        );
        // The link itself is moved, not its target.
        files.link("/other/dir/below/file", "/link").await;
        rename(&root, "/link", "/moved", false).await.unwrap();
        assert_eq!(files.stat("/moved").await.kind, FileKind::Link);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_of_the_template_are_renamed_and_removed() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let other = world.sandbox(Kind::Base).await;
    let files = Files::of(&world, &id);
    let root = RunAs::root();
    let before = files.names("/usr/share/doc").await;
    assert!(before.len() > 10);
    let rename = world
        .runtime
        .rename(&id, &root, b"/usr/share/doc", b"/moved", false);
    rename.await.unwrap();
    assert_eq!(files.names("/moved").await, before);
    assert!(!files.exists("/usr/share/doc").await);
    world
        .runtime
        .remove(&id, &root, b"/moved", true)
        .await
        .unwrap();
    assert!(!files.exists("/moved").await);
    world
        .runtime
        .remove(&id, &root, b"/etc", true)
        .await
        .unwrap();
    // PID 1 and helpers work without the files of the template; another sandbox still has them.
    assert!(stdout_text(&world.probe(&id, "user", &["id"]).await).starts_with("uid 1000 "));
    assert_eq!(
        Files::of(&world, &other).names("/usr/share/doc").await,
        before
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_are_set() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files
            .try_write(&user(), "~/own", "x", super::REPLACE)
            .await
            .unwrap();
        files.write("/roots", "x").await;
        let chmod = async |caller: &RunAs, path: &str, mode| {
            world.runtime.chmod(id, caller, path.as_bytes(), mode).await
        };
        for mode in [0o000, 0o777, 0o4755, 0o1640] {
            chmod(&user(), "own", mode).await.unwrap();
            assert_eq!(files.stat("/home/user/own").await.mode, mode);
        }
        assert_eq!(
            code(chmod(&user(), "/roots", 0o777).await),
            Code::PermissionDenied
        );
        chmod(&owner(), "/roots", 0o600).await.unwrap();
        assert_eq!(files.stat("/roots").await.mode, 0o600);
        assert_eq!(
            code(chmod(&user(), "missing", 0o777).await),
            Code::FileNotFound
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_are_set_by_name_and_number() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/file", "x").await;
        let chown = async |caller: &RunAs, owner: &str, group: &str| {
            world
                .runtime
                .chown(id, caller, b"/file", owner, group)
                .await
        };
        for (owner, group, uid, gid) in [
            ("user", "", 1000, 0),
            ("", "77", 1000, 77),
            ("4321", "8765", 4321, 8765),
            ("root", "0", 0, 0),
            ("", "", 0, 0),
        ] {
            chown(&RunAs::root(), owner, group).await.unwrap();
            let entry = files.stat("/file").await;
            assert_eq!((entry.uid, entry.gid), (uid, gid), "{owner}:{group}");
        }
        for (owner, group, wrong) in [
            ("nobody-here", "", "nobody-here"),
            ("", "no-group", "no-group"),
            ("70000", "", "70000"),
        ] {
            let error = chown(&RunAs::root(), owner, group).await.unwrap_err();
            assert_eq!(error.code, Code::UnknownUser);
            assert!(error.message.contains(wrong), "{error:?}");
        }
        assert_eq!(
            code(chown(&user(), "user", "").await),
            Code::PermissionDenied
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_calls_at_once_do_not_mix() {
    in_both(async |world, id| {
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..40 {
            let (runtime, id) = (world.runtime.clone(), id.clone());
            calls.spawn(async move {
                let (path, text) = (
                    format!("file-{number}"),
                    format!("text {number} ").repeat(9000),
                );
                let writer = runtime
                    .write_file(&id, &user(), path.as_bytes(), super::REPLACE)
                    .await;
                let mut writer = writer.unwrap();
                writer.write(text.as_bytes()).await.unwrap();
                writer.commit().await.unwrap();
                let reader = runtime
                    .read_file(&id, &user(), path.as_bytes())
                    .await
                    .unwrap();
                assert!(reader.read_to_end(1 << 20).await.unwrap() == text.as_bytes());
                let entry = runtime
                    .stat(&id, &user(), path.as_bytes(), true)
                    .await
                    .unwrap();
                assert_eq!(entry.size, text.len() as u64);
            });
        }
        calls.join_all().await;
        assert_eq!(
            Files::of(world, id)
                .names("/home/user")
                .await
                .iter()
                .filter(|name| name.starts_with("file-"))
                .count(),
            40
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_call_at_the_process_limit_names_the_limit() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Static, |spec| spec.limits.pids = 8)
        .await;
    let full = async {
        let mut running = Vec::new();
        loop {
            let spec = probe_spec(&["sleep", "600"]);
            match world.runtime.exec(&id, spec).await {
                Ok(exec) => running.push(exec),
                Err(refusal) => return (running, refusal),
            }
        }
    };
    let (_running, refusal) = tokio::time::timeout(DEADLINE, full).await.unwrap();
    assert_eq!(refusal.code, Code::QuotaExceeded);
    let user = user();
    let made = world
        .runtime
        .make_directory(&id, &user, b"one", 0o755, false);
    assert_eq!(made.await.unwrap_err(), refusal);
    world.close().await;
}
