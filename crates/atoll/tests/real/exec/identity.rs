//! User and group of a command, and its clean initial state: session, signals, descriptors, limits.

use atoll_model::{Code, ExecSpec};

use super::refused;
use crate::harness::{Kind, World, in_both, probe_spec, stdout_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_are_found_by_name_by_number_and_by_both_numbers() {
    in_both(async |world, id| {
        for (user, uid, gid) in [
            ("", 1000, 1000),
            ("user", 1000, 1000),
            ("1000", 1000, 1000),
            ("root", 0, 0),
            ("0", 0, 0),
            ("4321", 4321, 4321),
            ("4321:8765", 4321, 8765),
            ("user:7", 1000, 7),
            ("65534:0", 65534, 0),
        ] {
            let done = world.exec(id, probe_spec(&["id"]).user(user)).await;
            let expected = format!("uid {uid} {uid} {uid}\ngid {gid} {gid} {gid}\ngroups {gid}\n");
            assert_eq!(stdout_text(&done), expected, "{user:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_user_is_named() {
    in_both(async |world, id| {
        for user in [
            "nobody-here",
            "70000",
            "-1",
            "user:no-group",
            "0:70000",
            "user:",
            ":",
            ":0",
        ] {
            let error = refused(world, id, probe_spec(&["true"]).user(user)).await;
            assert_eq!(error.code, Code::UnknownUser, "{user}");
            assert_eq!(error.details["user"], user);
            assert!(error.message.contains(user), "{error:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supplementary_groups_come_from_the_files_of_the_sandbox() {
    in_both(async |world, id| {
        // Only one of the two templates has `/etc`.
        world.probe(id, "root", &["remove", "/etc"]).await;
        for words in [
            ["mkdir", "/etc", ""],
            ["write", "/etc/passwd", "ann:x:1001:1002::/:\n"],
            [
                "write",
                "/etc/group",
                "wheel:x:10:ann,bob\nstaff:x:50:bob,ann\nann:x:1002:\n",
            ],
        ] {
            let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
            stdout_text(&world.probe(id, "0", &words).await);
        }
        let done = world.probe(id, "ann", &["id"]).await;
        let expected = "uid 1001 1001 1001\ngid 1002 1002 1002\ngroups 10 50 1002\n";
        assert_eq!(stdout_text(&done), expected);
        assert!(stdout_text(&world.probe(id, "user", &["id"]).await).starts_with("uid 1000 "));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_leads_a_session_of_its_own_without_a_terminal() {
    in_both(async |world, id| {
        let exec = world.runtime.exec(id, probe_spec(&["sid"])).await.unwrap();
        let pid = exec.pid;
        let done = exec.finish(b"", 1 << 20).await.unwrap();
        assert_eq!(
            stdout_text(&done),
            format!("pid {pid} pgid {pid} sid {pid}\n")
        );
        let done = world.probe(id, "user", &["tty"]).await;
        let expected = "fd 0 not-a-tty\nfd 1 not-a-tty\nfd 2 not-a-tty\ncontrolling errno ENXIO\n";
        assert_eq!(stdout_text(&done), expected);
        assert_eq!(
            stdout_text(&world.probe(id, "user", &["ppid"]).await),
            "1\n"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_three_descriptors() {
    in_both(async |world, id| {
        for user in ["user", "root"] {
            let done = world.probe(id, user, &["fds"]).await;
            let lines: Vec<&str> = stdout_text(&done).lines().collect();
            assert_eq!(lines.len(), 3, "{lines:?}");
            assert_eq!(lines[0], "0 /dev/null");
            assert!(
                lines[1].starts_with("1 pipe:") && lines[2].starts_with("2 pipe:"),
                "{lines:?}"
            );
        }
    })
    .await;
}

/// As scripts do: a second open checks permissions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_can_reopen_its_standard_streams() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr";
    for user in ["user", "root", "4321"] {
        let spec = ExecSpec::shell(line).user(user).piped_stdin();
        let done = world.exec_with(&id, spec, b"in\n").await;
        assert_eq!(done.stdout, b"in\nout\n", "{user}: {done:?}");
        assert_eq!(done.stderr, b"err\n", "{user}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn umask_and_signals_are_those_of_a_login() {
    in_both(async |world, id| {
        assert_eq!(
            stdout_text(&world.probe(id, "user", &["umask"]).await),
            "0022\n"
        );
        assert_eq!(
            stdout_text(&world.probe(id, "user", &["signals"]).await),
            "blocked\nignored\n"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_limits_are_set_and_not_inherited() {
    in_both(async |world, id| {
        let done = world.probe(id, "user", &["limits"]).await;
        let lines: Vec<&str> = stdout_text(&done).lines().collect();
        let limit = |name: &str| {
            let line = lines.iter().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} is not in {lines:?}"))
                .trim()
                .to_owned()
        };
        assert!(limit("nofile").starts_with("1024 "), "{lines:?}");
        assert!(limit("core").starts_with("0 "), "{lines:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_name_is_the_sandboxs_id() {
    in_both(async |world, id| {
        assert_eq!(
            stdout_text(&world.probe(id, "user", &["hostname"]).await),
            format!("{id}\n")
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_in_a_deleted_sandbox_is_refused() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    world.runtime.delete(&id).await.unwrap();
    let error = refused(&world, &id, probe_spec(&["true"])).await;
    assert_eq!(error.code, Code::SandboxNotFound);
    assert_eq!(error.details["sandboxID"], id.as_str());
    world.close().await;
}

/// User lookups are not cached between commands: a change takes effect for the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_users_and_groups_shows_in_the_next_command() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let groups = async || {
        let ran = world.exec(&id, ExecSpec::argv(["id", "-nG"])).await;
        stdout_text(&ran).trim().to_owned()
    };
    assert_eq!(groups().await, "user");
    assert_eq!(groups().await, "user");
    for (command, expected) in [
        ("echo crew:x:4242:user >> /etc/group", "user crew"),
        ("echo other:x:4343:user >> /etc/group", "user crew other"),
        ("sed -i /^crew/d /etc/group", "user other"),
        (
            "sed -i 's/^user:x:1000:1000/user:x:1000:4343/' /etc/passwd",
            "other",
        ),
    ] {
        let change = ExecSpec::shell(command).user("root");
        stdout_text(&world.exec(&id, change).await);
        assert_eq!(groups().await, expected, "{command}");
    }
    world.close().await;
}
