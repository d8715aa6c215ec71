//! B01 to B05: the kernel's attack surface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use atoll_jail::seccomp::{SyscallPolicy, syscall_name};
use atoll_testkit::Attempt;

use super::{
    Case, Control, NET_RAW, ROOT, SYS_ADMIN, USERS, allow, attack, check, line, lines, refused,
};
use crate::harness::{Kind, World, probe_spec};

/// Calls that require privileges even with zero arguments, because they change user or group ids.
const FOR_ROOT: [&str; 8] = [
    "fchown",
    "setgid",
    "setgroups",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setuid",
];

async fn every_call(world: &World, user: &str) -> BTreeMap<String, Attempt> {
    let id = world.sandbox(Kind::Static).await;
    let found = attack(world, &id, user, "/", &["b01-syscalls"]).await;
    found.into_iter().map(|it| (it.what.clone(), it)).collect()
}

/// Groups known calls by result: `EPERM`, `ENOSYS`, or any other, which comes from the kernel.
fn classes(found: &BTreeMap<String, Attempt>) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let allowed: BTreeSet<String> = SyscallPolicy::standard().lines().into_iter().collect();
    let mut classes: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (number, name) in (0..=600).filter_map(|number| Some((number, syscall_name(number)?))) {
        let class = match found[&format!("x64:{number}")].result.as_str() {
            // This kernel was built without the call; others have it.
            "ENOSYS" if allowed.contains(&format!("{name} allow")) => "allowed",
            "EPERM" => "EPERM",
            "ENOSYS" => "ENOSYS",
            _ => "allowed",
        };
        classes.entry(class).or_default().insert(name);
    }
    classes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(
    clippy::print_stdout,
    reason = "the effective policy is part of the test output"
)]
async fn system_calls_are_the_committed_ones() {
    let world = World::open().await;
    let root = every_call(&world, "root").await;
    let user = every_call(&world, "user").await;
    world.close().await;
    for found in [&root, &user] {
        for (what, it) in found {
            let known = what
                .strip_prefix("x64:")
                .and_then(|number| syscall_name(number.parse().ok()?));
            assert!(
                known.is_some() || it.result == "ENOSYS",
                "unknown number or foreign ABI: {}",
                line(it)
            );
        }
    }
    let (root, user) = (classes(&root), classes(&user));
    let more: BTreeSet<&str> = root["allowed"]
        .difference(&user["allowed"])
        .copied()
        .collect();
    assert!(
        more.iter().all(|name| FOR_ROOT.contains(name)),
        "only root may {more:?}"
    );
    assert!(
        user["allowed"].is_subset(&root["allowed"]),
        "only a user may"
    );
    let mut text = String::new();
    for (class, names) in &root {
        let _ = writeln!(
            text,
            "{class}: {}",
            names.iter().copied().collect::<Vec<_>>().join(" ")
        );
    }
    println!("{text}");
    insta::assert_snapshot!(text);
}

/// Control: the check of the test above detects calls and ABIs that the filter does not block.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_filter_forbidden_calls_reach_the_kernel() {
    let world = World::open_with(|plan| plan.policy = None).await;
    for user in USERS {
        let found = every_call(&world, user).await;
        let allowed = &classes(&found)["allowed"];
        for name in ["add_key", "clone3", "io_uring_setup", "kcmp", "keyctl"] {
            assert!(allowed.contains(name), "{name} as {user}");
        }
        let foreign = lines(&found.values().cloned().collect::<Vec<_>>(), |it| {
            (it.what.starts_with("i386:") || it.what.starts_with("x32:")) && it.result != "ENOSYS"
        });
        assert!(
            !foreign.is_empty(),
            "this kernel has no foreign ABI to be kept from {user}"
        );
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_io_uring() {
    check(&Case {
        probe: &["b02-uring"],
        place: "/",
        gains: |_, found| lines(found, |it| it.what.starts_with("io_uring") && !refused(it)),
        controls: &[Control {
            lift: |plan| {
                allow(
                    plan,
                    &["io_uring_setup", "io_uring_enter", "io_uring_register"],
                );
            },
            users: USERS,
            gains: &[
                "io_uring_setup ok",
                "io_uring_enter ok",
                "io_uring_register",
            ],
        }],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_no_further_namespaces() {
    check(&Case {
        probe: &["b03-userns"],
        place: "/",
        gains: |_, found| {
            lines(found, |it| {
                if it.what == "nested" {
                    it.value("depth") != Some("0")
                } else {
                    it.worked()
                }
            })
        },
        controls: &[
            // A template may request user namespaces.
            Control {
                lift: |plan| {
                    plan.policy
                        .as_mut()
                        .expect("a filter")
                        .allow_user_namespaces();
                },
                users: USERS,
                gains: &[
                    "unshare:NEWUSER ok",
                    "clone:NEWUSER ok",
                    "clone-high:NEWUSER ok",
                    "unshare:NEWNS+NEWUSER ok",
                    "nested",
                ],
            },
            Control {
                lift: |plan| allow(plan, &["clone3"]),
                users: USERS,
                gains: &["clone3:NEWUSER ok", "clone3:NEWNET+NEWUSER ok"],
            },
            // Without a new user namespace the kernel requires the capability.
            Control {
                lift: |plan| {
                    allow(plan, &["unshare", "clone"]);
                    plan.inside.capabilities |= SYS_ADMIN;
                },
                users: ROOT,
                gains: &["unshare:NEWNS ok", "clone:NEWPID ok"],
            },
        ],
    })
    .await;
}

/// Calls that the control permits: they have no effect, or the kernel requires no privileges.
const HARMLESS: &[&str] = &[
    "add_key",
    "fanotify_init",
    "kcmp",
    "keyctl",
    "memfd_secret",
    "modify_ldt",
    "name_to_handle_at",
    "perf_event_open",
    "personality",
    "quotactl",
    "quotactl_fd",
    "request_key",
    "userfaultfd",
];

/// Results of permitted calls that need no privileges.
const GAINS: &[&str] = &[
    "add_key ok",
    "fanotify_init:fid ok",
    "kcmp ok",
    "keyctl",
    "modify_ldt ok",
    "name_to_handle_at",
    "personality:ADDR_NO_RANDOMIZE ok",
    "quotactl ",
    "quotactl_fd EBADF",
    "request_key",
    "userfaultfd:user-mode ok",
];

/// Gains that depend on the host's settings: a host may refuse these calls to all processes.
fn given_here() -> impl Iterator<Item = &'static str> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let paranoid = read("/proc/sys/kernel/perf_event_paranoid");
    let counters = paranoid.trim().parse::<i32>().is_ok_and(|level| level <= 2);
    let secrets = read("/sys/module/secretmem/parameters/enable").trim() == "Y";
    let counters = counters.then_some("perf_event_open ok");
    counters
        .into_iter()
        .chain(secrets.then_some("memfd_secret ok"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dangerous_parts_of_the_kernel_are_closed() {
    let gains: Vec<&str> = GAINS.iter().copied().chain(given_here()).collect();
    check(&Case {
        probe: &["b04-kernel", "1"],
        place: "/",
        gains: |_, found| {
            lines(found, |it| {
                let free = ["personality:get", "personality:PER_LINUX32", "kill:1"]
                    .contains(&it.what.as_str());
                !free && !refused(it)
            })
        },
        controls: &[Control {
            lift: |plan| allow(plan, HARMLESS),
            users: USERS,
            gains: &gains,
        }],
    })
    .await;
}

/// Processes of the sandbox can be traced and read; PID 1 and processes of the host cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_processes_of_the_sandbox_can_be_traced() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let host = std::process::id().to_string();
    for user in USERS {
        let sleeper = world
            .runtime
            .exec(&id, probe_spec(&["sleep", "60"]).user(*user))
            .await
            .expect("it starts");
        let own = sleeper.pid.to_string();
        for (target, expected) in [
            (own.as_str(), "ok"),
            ("1", "EPERM"),
            (host.as_str(), "ESRCH"),
        ] {
            let found = attack(&world, &id, user, "/", &["b04-kernel", target]).await;
            let result = |name: &str| {
                let what = format!("{name}:{target}");
                found
                    .iter()
                    .find(|it| it.what == what)
                    .map(|it| it.result.clone())
                    .expect("it was tried")
            };
            assert_eq!(result("ptrace"), expected, "{user} {target}");
            // EFAULT means that the address is unmapped and that the permission check passed.
            let read = result("process_vm_readv");
            let reached = ["ok", "EFAULT"].contains(&read.as_str());
            assert!(
                if expected == "ok" {
                    reached
                } else {
                    read == expected
                },
                "{user} {target} {read}"
            );
        }
        sleeper.kill().expect("it can be killed");
    }
    world.close().await;
}

/// Returns true for socket families and protocols that a sandbox has.
fn usual(what: &str) -> bool {
    let what = what.replace("+high", "");
    let (family, rest) = what.split_once(':').unwrap_or((&what, ""));
    match family {
        "AF_UNIX" => true,
        // Without a protocol, or with 1 (ICMP) or 58 (ICMPv6), for ping.
        "AF_INET" | "AF_INET6" => ["STREAM", "DGRAM", "DGRAM:1", "DGRAM:58"].contains(&rest),
        "AF_NETLINK" => ["RAW", "DGRAM", "RAW:0"].contains(&rest),
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_are_of_the_usual_families() {
    check(&Case {
        probe: &["b05-sockets"],
        place: "/",
        gains: |_, found| lines(found, |it| it.worked() && !usual(&it.what)),
        controls: &[
            Control {
                lift: |plan| allow(plan, &["socket"]),
                users: USERS,
                gains: &["AF_NETLINK:RAW:16 ok", "AF_VSOCK"],
            },
            // The sandbox's new network namespace has only a loopback interface.
            Control {
                lift: |plan| {
                    allow(plan, &["socket"]);
                    plan.inside.capabilities |= NET_RAW;
                },
                users: ROOT,
                gains: &["AF_PACKET:RAW ok", "AF_INET:RAW:1 ok"],
            },
        ],
    })
    .await;
}
