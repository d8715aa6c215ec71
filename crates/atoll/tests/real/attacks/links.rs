//! D01, D03: file calls through symlinks and through `/proc`, as every kind of caller.

use std::fs;

use atoll_model::{Authority, Code, RunAs, SandboxId, WriteOptions};

use super::canary::{Canary, GUEST, HOST, read, upper, write};
use crate::harness::{Kind, World, stdout_text};

/// Returns the callers: root, the user, and the user with root's capabilities.
fn callers() -> [RunAs; 3] {
    let user = Some("user".to_owned());
    [
        RunAs::root(),
        RunAs {
            user: user.clone(),
            authority: Authority::User,
        },
        RunAs {
            user,
            authority: Authority::Root,
        },
    ]
}

/// Makes every file call with `path` in each argument. Returns the contents and listings.
async fn every_call(world: &World, id: &SandboxId, caller: &RunAs, path: &str) -> Vec<u8> {
    let runtime = &world.runtime;
    let bytes = path.as_bytes();
    let mut seen = read(world, id, caller, path).await.unwrap_or_default();
    if let Ok(entry) = runtime.stat(id, caller, bytes, true).await {
        seen.extend(format!("{entry:?}").bytes());
    }
    for depth in [1, 3] {
        if let Ok((entries, _)) = runtime.list_files(id, caller, bytes, depth, 1000).await {
            seen.extend(entries.into_iter().flat_map(|entry| entry.path));
        }
    }
    let below = format!("{path}/f");
    seen.extend(read(world, id, caller, &below).await.unwrap_or_default());
    let copy = "/place/copy";
    for from in [path, &below] {
        if runtime
            .copy(id, caller, from.as_bytes(), copy.as_bytes(), true)
            .await
            .is_ok()
        {
            seen.extend(read(world, id, caller, copy).await.unwrap_or_default());
            seen.extend(
                read(world, id, caller, &format!("{copy}/f"))
                    .await
                    .unwrap_or_default(),
            );
        }
        let _ = runtime.remove(id, caller, copy.as_bytes(), true).await;
    }
    for to in [path, &below] {
        for (in_place, parents) in [(false, false), (true, false), (false, true), (true, true)] {
            let options = WriteOptions {
                mode: Some(0o666),
                in_place,
                parents,
            };
            let _ = write(world, id, caller, to, options).await;
        }
        let _ = runtime.chmod(id, caller, to.as_bytes(), 0o777).await;
        let _ = runtime
            .chown(id, caller, to.as_bytes(), "1000", "1000")
            .await;
        let _ = runtime
            .copy(id, caller, b"/place/own", to.as_bytes(), true)
            .await;
        let _ = runtime
            .make_directory(id, caller, format!("{to}/new").as_bytes(), 0o755, true)
            .await;
    }
    let _ = runtime
        .rename(id, caller, below.as_bytes(), b"/place/moved", true)
        .await;
    let _ = runtime
        .rename(id, caller, b"/place/own", below.as_bytes(), true)
        .await;
    let _ = runtime.remove(id, caller, below.as_bytes(), true).await;
    let _ = runtime.remove(id, caller, bytes, true).await;
    seen
}

/// Creates a sandbox with a directory `/place` that every user can write to.
async fn prepared(world: &World) -> SandboxId {
    let id = world.sandbox(Kind::Static).await;
    stdout_text(&world.probe(&id, "root", &["mkdir", "/place"]).await);
    stdout_text(&world.probe(&id, "root", &["chmod", "/place", "777"]).await);
    id
}

async fn set_up(world: &World, id: &SandboxId, links: &[(&str, String)]) {
    for path in ["/place/own", "/place/copy", "/place/moved"] {
        let _ = world
            .runtime
            .remove(id, &RunAs::root(), path.as_bytes(), true)
            .await;
    }
    stdout_text(
        &world
            .probe(id, "root", &["write", "/place/own", "own"])
            .await,
    );
    for (link, target) in links {
        let _ = world
            .runtime
            .remove(id, &RunAs::root(), link.as_bytes(), true)
            .await;
        stdout_text(&world.probe(id, "root", &["link", target, link]).await);
    }
}

fn contains(seen: &[u8], secret: &[u8]) -> bool {
    seen.windows(secret.len()).any(|window| window == secret)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_resolve_inside_the_sandbox() {
    let canary = Canary::new();
    let world = World::open().await;
    let id = prepared(&world).await;
    let climb = "../".repeat(20);
    let links = [
        ("/place/file", canary.file()),
        ("/place/directory", canary.directory()),
        ("/place/climbing", format!("{climb}{}", canary.file())),
        (
            "/place/climbing-directory",
            format!("{climb}{}", canary.directory()),
        ),
    ];
    set_up(&world, &id, &links).await;
    // The control: path joining on the host reaches the canary, in the upper layer and in /proc.
    let upper = upper(&world, &id);
    let pid = world.runtime.host_pid(&id).expect("it runs");
    for root in [upper, format!("/proc/{pid}/root").into()] {
        for path in [
            "place/file",
            "place/directory/f",
            "place/climbing",
            "place/climbing-directory/f",
        ] {
            let climbs_in_proc = root.starts_with("/proc") && path.contains("climbing");
            if !climbs_in_proc {
                assert_eq!(
                    fs::read(root.join(path)).expect("it is read"),
                    HOST,
                    "{}",
                    root.join(path).display()
                );
            }
        }
    }
    for caller in callers() {
        for (link, _) in &links {
            set_up(&world, &id, &links).await;
            let seen = every_call(&world, &id, &caller, link).await;
            assert!(!contains(&seen, HOST), "{caller:?} {link}");
            canary.assert_untouched(&format!("{caller:?} {link}"));
        }
    }
    world.close().await;
}

/// A symlink to a host path resolves to the sandbox's own file, with the caller's permissions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_paths_in_links_reach_files_of_the_sandbox() {
    let world = World::open().await;
    let id = prepared(&world).await;
    stdout_text(&world.probe(&id, "root", &["mkdir", "/etc"]).await);
    stdout_text(
        &world
            .probe(&id, "root", &["write", "/etc/shadow", "of the box"])
            .await,
    );
    stdout_text(
        &world
            .probe(&id, "root", &["chmod", "/etc/shadow", "600"])
            .await,
    );
    let links = [
        ("/place/x", "/etc/shadow".to_owned()),
        ("/place/y", "../../../../etc/shadow".to_owned()),
    ];
    set_up(&world, &id, &links).await;
    let [root, user, for_user] = callers();
    for (link, _) in &links {
        assert_eq!(
            read(&world, &id, &root, link).await.expect("root may"),
            b"of the box"
        );
        assert_eq!(
            read(&world, &id, &for_user, link).await.expect("root may"),
            b"of the box"
        );
        assert_eq!(
            read(&world, &id, &user, link)
                .await
                .expect_err("a user may not")
                .code,
            Code::PermissionDenied
        );
        let refused = write(&world, &id, &user, link, WriteOptions::default())
            .await
            .expect_err("a user may not");
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
        write(
            &world,
            &id,
            &root,
            link,
            WriteOptions {
                in_place: true,
                ..WriteOptions::default()
            },
        )
        .await
        .expect("root may");
        assert_eq!(
            read(&world, &id, &root, "/etc/shadow")
                .await
                .expect("root may"),
            GUEST
        );
        stdout_text(
            &world
                .probe(&id, "root", &["write", "/etc/shadow", "of the box"])
                .await,
        );
        world
            .runtime
            .remove(&id, &root, link.as_bytes(), true)
            .await
            .expect("the link goes");
        assert_eq!(
            read(&world, &id, &root, "/etc/shadow")
                .await
                .expect("it stays"),
            b"of the box"
        );
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proc_and_descriptors_do_not_lead_out() {
    let canary = Canary::new();
    let world = World::open().await;
    let id = prepared(&world).await;
    let (directory, host, init) = (
        canary.directory(),
        std::process::id(),
        world.runtime.host_pid(&id).expect("it runs"),
    );
    // The control: on the host, the same path leads to the host's files.
    assert_eq!(
        fs::read(format!("/proc/self/root{directory}/f")).expect("it is read"),
        HOST
    );
    let mut paths = Vec::new();
    for process in [
        "self".to_owned(),
        "thread-self".to_owned(),
        "1".to_owned(),
        host.to_string(),
        init.to_string(),
    ] {
        for name in ["root", "cwd", "task/1/root"] {
            paths.push(format!("/proc/{process}/{name}{directory}"));
            paths.push(format!("/proc/{process}/{name}/../../../..{directory}"));
        }
    }
    for number in 0..8 {
        paths.push(format!("/dev/fd/{number}"));
        paths.push(format!("/proc/self/fd/{number}/..{directory}"));
        paths.push(format!("/proc/1/fd/{number}"));
    }
    for caller in callers() {
        for path in &paths {
            set_up(&world, &id, &[]).await;
            let seen = every_call(&world, &id, &caller, path).await;
            assert!(!contains(&seen, HOST), "{caller:?} {path}");
        }
        canary.assert_untouched(&format!("{caller:?}"));
        let refused = read(&world, &id, &caller, "/proc/1/root/probe")
            .await
            .expect_err("PID 1 is closed");
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    }
    // The same path leads to the sandbox's own files, and the sandbox works.
    let own = read(&world, &id, &RunAs::root(), "/proc/self/root/place/own").await;
    assert!(own.is_ok() || own.is_err_and(|error| error.code == Code::FileNotFound));
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    world.close().await;
}
