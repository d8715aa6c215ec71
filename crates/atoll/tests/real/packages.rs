//! `base` is a complete system: packages install, tools run, sudo gives root of the sandbox and no more. Only
//! `registries` needs a network.

mod registries;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use atoll_model::runtime::ExecResult;
use atoll_model::{ExecSpec, RunAs, SandboxId, SandboxSpec, WriteOptions};
use atoll_testkit::{Scratch, make_deb};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};

use crate::harness::{Kind, World, data, private, stdout_text};

async fn shell(world: &World, id: &SandboxId, user: &str, line: &str) -> ExecResult {
    world.exec(id, ExecSpec::shell(line).user(user)).await
}

/// Standard output of a shell line that must succeed; standard error is ignored.
async fn printed(world: &World, id: &SandboxId, user: &str, line: &str) -> String {
    let done = shell(world, id, user, line).await;
    assert!(
        done.status.success(),
        "{line}: {:?}\n{}\n{}",
        done.status,
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_installs_as_root_and_through_sudo() {
    let scratch = Scratch::new();
    let package = std::fs::read(make_deb(scratch.path())).unwrap();
    let world = World::open().await;
    for (user, command) in [("root", "apt-get"), ("user", "sudo apt-get")] {
        let id = world.sandbox(Kind::Base).await;
        let caller = RunAs {
            user: Some(user.into()),
            ..RunAs::default()
        };
        let write =
            world
                .runtime
                .write_file(&id, &caller, b"/tmp/local.deb", WriteOptions::default());
        let mut writer = write.await.unwrap();
        writer.write(&package).await.unwrap();
        writer.commit().await.unwrap();
        printed(
            &world,
            &id,
            user,
            &format!("cd /tmp && {command} install -y ./local.deb"),
        )
        .await;
        assert_eq!(
            printed(&world, &id, "user", "atoll-hello").await,
            "hello from a package\n"
        );
        assert_eq!(
            printed(&world, &id, user, "cat /var/lib/atoll-hello").await,
            "configured\n"
        );
        let state = printed(
            &world,
            &id,
            user,
            "dpkg-query -W -f '${Status}' atoll-hello",
        )
        .await;
        assert_eq!(state, "install ok installed");
        printed(
            &world,
            &id,
            user,
            &format!("{command} remove -y atoll-hello"),
        )
        .await;
        assert!(
            !shell(&world, &id, user, "atoll-hello")
                .await
                .status
                .success()
        );
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyday_tools_work() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let python = printed(&world, &id, "user", "python3 -c 'print(6*7)'").await;
    assert_eq!(python, "42\n");
    let git = "git init -q r && cd r && git config user.email a@b && git config user.name a && \
               echo x > f && git add f && git commit -qm first && git log --format=%s && \
               git clone -q . ../copy && cat ../copy/f";
    assert_eq!(printed(&world, &id, "user", git).await, "first\nx\n");
    let gcc = "printf '#include <stdio.h>\\nint main(void){puts(\"hello world\");return 0;}' > h.c && \
               gcc -O1 -o h h.c && ./h";
    assert_eq!(printed(&world, &id, "user", gcc).await, "hello world\n");
    let tar = "tar czf /tmp/t.tgz -C /usr/share/doc . && mkdir out && tar xzf /tmp/t.tgz -C out && ls out | wc -l";
    assert!(
        printed(&world, &id, "user", tar)
            .await
            .trim()
            .parse::<u32>()
            .unwrap()
            > 10
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debuggers_attach() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    for user in ["user", "root"] {
        let strace = "sh -c 'while sleep 0.02; do :; done' & target=$!; strace -qq -o trace -p $target & \
                      until grep -qs wait4 trace; do sleep 0.05; done; kill $target; wait; rm trace; \
                      echo traced";
        assert_eq!(printed(&world, &id, user, strace).await, "traced\n");
        let gdb = "sleep 100 & target=$!; gdb -q -batch -p $target -ex 'info registers rip' -ex detach \
                   2>/dev/null | grep -c '^rip'; kill $target";
        assert_eq!(printed(&world, &id, user, gdb).await, "1\n");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sudo_gives_root_of_the_sandbox() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    assert_eq!(printed(&world, &id, "user", "sudo id -u").await, "0\n");
    assert_eq!(
        printed(&world, &id, "user", "sudo -u nobody id -un").await,
        "nobody\n"
    );
    assert_eq!(
        printed(&world, &id, "root", "su user -c 'id -un'").await,
        "user\n"
    );
    let line = "sudo sh -c 'echo x > /etc/mine && chown user /etc/mine' && stat -c %U /etc/mine";
    assert_eq!(printed(&world, &id, "user", line).await, "user\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_without_sudo_gains_nothing() {
    let scratch = Scratch::new();
    private(&scratch.join("data"));
    let tree = scratch.join("tree");
    atoll_testkit::static_layer(&tree);
    // A setuid program that prints root if it becomes root.
    std::fs::copy(tree.join("probe"), tree.join("raised")).unwrap();
    std::fs::set_permissions(tree.join("raised"), PermissionsExt::from_mode(0o4755)).unwrap();
    let store = TemplateStore::open(scratch.join("data/templates")).unwrap();
    for (name, sudo) in [("with", true), ("without", false)] {
        let options = TemplateOptions {
            sudo,
            ..TemplateOptions::default()
        };
        store
            .add(
                name,
                &Source::Directory(tree.clone()),
                &options,
                &mut |_| {},
            )
            .unwrap();
    }
    let world = World::open_in(&scratch.join("data")).await;
    for (template, effective) in [("with", 0), ("without", 1000)] {
        let spec = SandboxSpec {
            template: template.into(),
            ..SandboxSpec::default()
        };
        let id = world.runtime.create(spec).await.unwrap().id;
        let done = world.exec(&id, ExecSpec::argv(["/raised", "id"])).await;
        let first = stdout_text(&done).lines().next().unwrap().to_owned();
        assert_eq!(
            first,
            format!("uid 1000 {effective} {effective}"),
            "{template}"
        );
    }
    world.close().await;
}

fn make(root: &Path, name: &str, text: &str, mode: u32) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn base_has_no_private_files_of_the_host() {
    let scratch = Scratch::new();
    let host = scratch.join("host");
    make(&host, "usr/local/bin/tool", "for all", 0o755);
    make(&host, "usr/local/bin/secret", "for root", 0o700);
    make(&host, "usr/local/etc/key", "for root", 0o600);
    make(
        &host,
        "usr/local/private/inner",
        "below a private directory",
        0o644,
    );
    std::fs::set_permissions(
        host.join("usr/local/private"),
        PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    make(
        &host,
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\n",
        0o644,
    );
    make(&host, "etc/group", "root:x:0:\nann:x:1001:\n", 0o644);
    make(&host, "etc/shadow", "root:$6$secret:1::::::\n", 0o640);
    make(&host, "home/ann/diary", "mine", 0o644);
    make(&host, "root/notes", "mine", 0o644);
    private(&scratch.join("data"));
    let store = TemplateStore::open(scratch.join("data/templates"))
        .unwrap()
        .with_host_root(&host);
    let template = store.ensure_base(&mut |_| {}).unwrap();
    let there = |name: &str| template.layer.join(name).symlink_metadata().is_ok();
    assert!(there("usr/local/bin/tool"));
    for name in [
        "usr/local/bin/secret",
        "usr/local/etc/key",
        "usr/local/private/inner",
        "home/ann",
        "root/notes",
    ] {
        assert!(!there(name), "{name}");
    }
    let passwd = std::fs::read_to_string(template.layer.join("etc/passwd")).unwrap();
    assert!(
        passwd.contains("user:x:1000:") && !passwd.contains("ann"),
        "{passwd}"
    );
    let shadow = std::fs::read_to_string(template.layer.join("etc/shadow")).unwrap_or_default();
    assert!(!shadow.contains("secret"), "{shadow}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn base_shows_nothing_private_of_this_host() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    assert_eq!(
        printed(
            &world,
            &id,
            "root",
            "ls -A /root /home/user | grep -v -e '^$' -e ':$' -e '^\\.' | wc -l"
        )
        .await,
        "0\n"
    );
    // No hash of a password, and nothing that only the host's root could read.
    let hashes = shell(&world, &id, "root", "grep -c '[$]' /etc/shadow").await;
    assert_eq!(hashes.stdout, b"0\n");
    let found = printed(
        &world,
        &id,
        "root",
        "find /usr -xdev ! -perm -004 -type f | head",
    )
    .await;
    let unreadable: Vec<&str> = found
        .lines()
        .filter(|path| !path.contains("sudo"))
        .collect();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    let templates = data().join("templates").metadata().unwrap();
    assert_eq!(templates.permissions().mode() & 0o777, 0o700);
    world.close().await;
}
