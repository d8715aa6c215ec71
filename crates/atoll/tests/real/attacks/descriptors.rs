//! A01, A02: access to the runtime's open files from inside a sandbox.

use std::os::unix::fs::MetadataExt;

use atoll_model::{Code, ExecSpec};
use atoll_testkit::Attempt;

use super::{Case, Control, Streams, USERS, attack, check, check_on, lines};
use crate::harness::{Kind, World, probe_spec, stdout_text};

const CONTROLS: &[Control] = &[Control {
    lift: |plan| plan.inside.close_descriptors = false,
    users: USERS,
    gains: &["fchdir:"],
}];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_descriptor_leads_to_a_directory_of_the_host() {
    check(&Case {
        probe: &["a01-cwd-fd"],
        place: "/",
        gains: |_, found| lines(found, |it| it.what.contains("chdir:") && it.worked()),
        controls: CONTROLS,
    })
    .await;
}

/// A program has its three descriptors and can read the command line of PID 1.
const INVENTORY: Case<'static> = Case {
    probe: &["a02-fds"],
    place: "/",
    gains: |_, found| {
        let expected = [
            "self-fd",
            "self-fd:0",
            "self-fd:1",
            "self-fd:2",
            "read:/proc/1/cmdline",
        ];
        lines(found, |it| {
            it.worked() && !expected.contains(&it.what.as_str())
        })
    },
    controls: &[Control {
        lift: |plan| plan.inside.close_descriptors = false,
        users: USERS,
        gains: &["self-fd:4"],
    }],
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_has_three_descriptors_and_none_of_pid_1() {
    check(&INVENTORY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_program_has_three_descriptors_and_none_of_pid_1() {
    check_on(Streams::Terminal, &INVENTORY).await;
}

/// PID 1's child changes to the working directory of an exec while the child still has one more
/// descriptor than the program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_exec_starts_in_a_descriptor_directory() {
    no_number_leads_out(World::open().await, &[]).await;
}

/// Leaked descriptors are not sufficient: an exec also rejects a directory that has no path from
/// the sandbox's root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_starts_inside_even_with_leaked_descriptors() {
    let world = World::open_with(|plan| plan.inside.close_descriptors = false).await;
    // The only directory of the sandbox that PID 1 has open.
    no_number_leads_out(world, &["/proc\n"]).await;
}

/// Asserts that no descriptor is accepted as a working directory, except the directories in `own`.
async fn no_number_leads_out(world: World, own: &[&str]) {
    let id = world.sandbox(Kind::Static).await;
    stdout_text(&world.probe(&id, "root", &["mkdir", "/links"]).await);
    for user in USERS {
        for number in 3..1024 {
            let direct = format!("/proc/self/fd/{number}");
            let mut ways = vec![direct.clone()];
            if number < 32 {
                let link = format!("/links/{user}-{number}");
                stdout_text(&world.probe(&id, "root", &["link", &direct, &link]).await);
                ways.push(link);
            }
            for way in ways {
                let spec = probe_spec(&["pwd"]).user(*user).directory(&way);
                match world.runtime.exec(&id, spec).await {
                    Ok(exec) => {
                        let finished = exec.finish(b"", 1000).await.unwrap();
                        assert!(own.contains(&stdout_text(&finished)), "{way}: {finished:?}");
                    }
                    Err(error) => assert_eq!(error.code, Code::CwdNotFound, "{way}: {error}"),
                }
            }
        }
    }
    // Validates the method: a directory of the sandbox is entered through a descriptor's path.
    let spec = ExecSpec::argv(["/probe", "pwd"])
        .user("user")
        .directory("/proc/self/cwd");
    assert_eq!(stdout_text(&world.exec(&id, spec).await), "/\n");
    world.close().await;
}

/// A host file that every sandbox has open would share locks, timestamps and watches between
/// sandboxes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standard_input_is_no_file_of_the_host() {
    let host = std::fs::metadata("/dev/null").expect("the host has one");
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    for user in USERS {
        let spec = ExecSpec::shell("stat -L -c %d:%i /dev/stdin /dev/null").user(*user);
        let finished = world.exec(&id, spec).await;
        let found: Vec<&str> = stdout_text(&finished).lines().collect();
        assert_eq!(found[0], found[1], "{user}");
        assert_ne!(found[0], format!("{}:{}", host.dev(), host.ino()), "{user}");
    }
    world.close().await;
}

/// Validates `CONTROLS`: the leaked descriptor is a directory of the host, which has no path from
/// the sandbox's root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaked_descriptor_leads_out_of_the_sandbox() {
    let world = World::open_with(|plan| plan.inside.close_descriptors = false).await;
    let id = world.sandbox(Kind::Static).await;
    for user in USERS {
        let found = attack(&world, &id, user, "/", &["a01-cwd-fd"]).await;
        let out = |it: &Attempt| {
            it.value("cwd")
                .is_some_and(|cwd| cwd.starts_with("(unreachable)"))
        };
        assert!(found.iter().any(out), "{user} {found:#?}");
    }
    world.close().await;
}
