//! Paths as callers write them, and names as hostile as a file system allows.

use atoll_model::{Code, RunAs};

use super::{Files, REPLACE, code, user};
use crate::harness::{Kind, World, in_both, stdout_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relative_paths_and_the_tilde_start_at_home() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/root").await;
        for path in ["plain", "~/tilde", "./dot", "../user/up"] {
            files.try_write(&user(), path, path, REPLACE).await.unwrap();
        }
        for (path, text) in [
            ("plain", "plain"),
            ("tilde", "~/tilde"),
            ("dot", "./dot"),
            ("up", "../user/up"),
        ] {
            assert_eq!(files.text(format!("/home/user/{path}")).await, text);
        }
        files
            .try_write(&RunAs::root(), "roots", "x", REPLACE)
            .await
            .unwrap();
        assert_eq!(files.text("/root/roots").await, "x");
        let home = world.runtime.stat(id, &user(), b"~", false).await.unwrap();
        assert_eq!(home.path, b"/home/user");
        // `~` is expanded only alone or before a slash.
        files
            .try_write(&user(), "~name", "x", REPLACE)
            .await
            .unwrap();
        assert_eq!(files.text("/home/user/~name").await, "x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_paths_are_refused_by_name() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let long = "/a".repeat(2049);
        for path in ["", "/a\0b", long.as_str()] {
            let bytes = path.as_bytes();
            let runtime = &world.runtime;
            let root = RunAs::root();
            let errors = [
                files
                    .try_write(&root, bytes, "", REPLACE)
                    .await
                    .unwrap_err(),
                files.try_read(&root, bytes).await.unwrap_err(),
                files.try_stat(bytes).await.unwrap_err(),
                runtime
                    .list_files(id, &root, bytes, 1, 1)
                    .await
                    .unwrap_err(),
                runtime
                    .make_directory(id, &root, bytes, 0o755, true)
                    .await
                    .unwrap_err(),
                runtime.remove(id, &root, bytes, true).await.unwrap_err(),
                runtime
                    .rename(id, &root, bytes, b"/x", true)
                    .await
                    .unwrap_err(),
                runtime
                    .rename(id, &root, b"/probe", bytes, true)
                    .await
                    .unwrap_err(),
                runtime
                    .copy(id, &root, bytes, b"/x", true)
                    .await
                    .unwrap_err(),
                runtime
                    .copy(id, &root, b"/probe", bytes, true)
                    .await
                    .unwrap_err(),
                runtime.chmod(id, &root, bytes, 0o755).await.unwrap_err(),
                runtime
                    .chown(id, &root, bytes, "root", "")
                    .await
                    .unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.code, Code::InvalidRequest, "{error:?}");
                assert_eq!(error.details["field"], "path");
            }
        }
        assert!(files.exists("/probe").await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_valid_file_name_is_accepted() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/names").await;
        let long = "n".repeat(255);
        let names: [&[u8]; 8] = [
            b"new\nline",
            b"\xff\xfe\x80",
            long.as_bytes(),
            b" blank ",
            b"-rf",
            b"*?[",
            b"\x01\x7f",
            "grün".as_bytes(),
        ];
        for name in names {
            let path = [b"/names/", name].concat();
            files.write(&path, name).await;
            assert_eq!(files.read(&path).await, name);
            assert_eq!(files.stat(&path).await.path, path);
        }
        let root = RunAs::root();
        let (entries, _) = world
            .runtime
            .list_files(id, &root, b"/names", 1, 100)
            .await
            .unwrap();
        let mut expected = names.to_vec();
        expected.sort_unstable();
        let listed: Vec<&[u8]> = entries.iter().map(|entry| &entry.path[..]).collect();
        assert_eq!(listed, expected);
        let longer = format!("/names/{long}n");
        let refused = files.try_write(&root, &longer, "", REPLACE).await;
        assert_eq!(code(refused), Code::InvalidRequest);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_resolves_in_the_sandbox_and_never_on_the_host() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        for path in [
            "/../../../../probe",
            "/proc/1/root/probe",
            "/proc/self/root/probe",
        ] {
            let bytes = files.try_read(&RunAs::root(), path).await;
            match bytes {
                Ok(bytes) => assert!(bytes == files.read("/probe").await, "{path}"),
                Err(error) => assert_eq!(error.code, Code::PermissionDenied, "{path}"),
            }
        }
        files.link("/proc/1/root/etc/hostname", "/out").await;
        let through = files.try_read(&RunAs::root(), "/out").await;
        assert!(matches!(
            code(through),
            Code::PermissionDenied | Code::FileNotFound
        ));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_caller_is_named() {
    in_both(async |world, id| {
        let caller = RunAs {
            user: Some("nobody-here".into()),
            ..RunAs::default()
        };
        let error = Files::of(world, id)
            .try_read(&caller, "/probe")
            .await
            .unwrap_err();
        assert_eq!(error.code, Code::UnknownUser);
        assert_eq!(error.details["user"], "nobody-here");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_of_one_binary_gets_only_mount_points() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let listed = stdout_text(&world.probe(&id, "root", &["ls", "/"]).await).to_owned();
    let made = "dev directory\nprobe regular\nproc directory\nrun directory\nsys directory\n";
    assert_eq!(listed, made, "only mount points are added");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_on_a_deleted_sandbox_is_refused() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    world.runtime.delete(&id).await.unwrap();
    let files = Files::of(&world, &id);
    assert_eq!(
        code(files.try_read(&user(), "/probe").await),
        Code::SandboxNotFound
    );
    assert_eq!(
        code(files.try_write(&user(), "/x", "", REPLACE).await),
        Code::SandboxNotFound
    );
    assert_eq!(code(files.try_stat("/probe").await), Code::SandboxNotFound);
    world.close().await;
}
