//! Attacks from inside a sandbox: each one fails in an unmodified sandbox and succeeds if one
//! defence is missing.
//!
//! A [`Case`] has a probe and a function that lists the attacker's gains. In an unmodified sandbox
//! the list must be empty, both for root and for the user. A [`Control`] runs the same probe in a
//! sandbox whose plan lacks one defence, where the list must not be empty. So a function that
//! detects no gains, or a probe that attempts nothing, fails the test.
//!
//! Controls never remove the user namespace: root of such a sandbox would be root of this machine.
//! If a filtered call also requires a capability, the control lifts the filter and grants the
//! capability, and only to root: other users have no capabilities under any plan. [`IMPOSSIBLE`]
//! lists the attempts that have no control.

mod canary;
mod capabilities;
mod descriptors;
mod devices;
mod fuzz;
mod heavy;
mod init;
mod kernel;
mod links;
mod mounts;
mod names;
mod neighbours;
mod templates;

use atoll_jail::plan::Plan;
use atoll_model::{SandboxId, TerminalSize};
use atoll_testkit::{Attempt, attempts};

use crate::harness::{Kind, World, probe_spec, stdout_text};

/// Users inside the sandbox that run each attack.
const USERS: &[&str] = &["root", "user"];
const ROOT: &[&str] = &["root"];

/// An attack.
struct Case<'a> {
    /// The probe's arguments.
    probe: &'static [&'static str],
    /// Working directory.
    place: &'static str,
    /// Returns the gains of a user, one line each, which begins with the attempt's name.
    gains: fn(&str, &[Attempt]) -> Vec<String>,
    controls: &'a [Control<'a>],
}

/// A sandbox that lacks a defence.
struct Control<'a> {
    lift: fn(&mut Plan),
    /// Users for which the attack succeeds without the defence.
    users: &'static [&'static str],
    /// Prefixes of expected gains.
    gains: &'a [&'a str],
}

/// Attempts that the kernel or the sandbox's construction rejects even without the tested defence,
/// each with the reason and the substitute test.
const IMPOSSIBLE: &[(&str, &str)] = &[
    (
        "A02, A17: memory, descriptors and namespaces of PID 1",
        "PID 1 never execs: its memory belongs to the host's user namespace, which no plan can change. The same calls on \
         another process of the box work",
    ),
    (
        "A04, A05: a mount that follows a template's link",
        "attaching without following links is how mounts are attached, not something a plan says. The test shows that \
         a program that follows the same link on the host is at the canary",
    ),
    (
        "A07, A09: sysctls and files of /proc that belong to the host",
        "without the read-only mounts the kernel still asks for a capability of the initial user namespace; those that \
         belong to the sandbox's own namespaces open",
    ),
    (
        "A08: /proc/kcore, /proc/scsi, /sys/class/dmi",
        "this kernel has none of them; the control shows kallsyms, acpi and a real /sys instead",
    ),
    (
        "A10: pivot_root, and chroot out of the box",
        "the box's root is the root of its mount namespace: there is nothing above it to climb to, and no other mount to \
         pivot to. With chroot allowed the classic escape ends where it began",
    ),
    (
        "A11: device nodes",
        "a user namespace may make none but the whiteout 0:0, and what it mounts is nodev for ever: the control makes \
         that one",
    ),
    (
        "B04: bpf, module and kexec calls, acct, swap, reboot, clocks, ports, open_by_handle_at, vhangup, syslog",
        "they ask for capabilities of the initial user namespace, so a permitted call answers EPERM too; the harmful \
         ones are not lifted even so",
    ),
    (
        "B04: memfd_secret, perf_event_open",
        "some hosts give them to no process without a right (secretmem.enable, kernel.perf_event_paranoid); where they \
         do not, the control has them",
    ),
    (
        "B05: AF_ALG, AF_BLUETOOTH and other families",
        "this kernel has neither; by the same rule AF_VSOCK and AF_PACKET are refused, which it has, and the control shows",
    ),
    (
        "A17: a PID 1 that exits with 0",
        "PID 1 is our own code and has no way to that but the end of its keeper, and nothing inside can call exit for it. \
         How it ends is not looked at: killed and stopped ones are shown",
    ),
    (
        "G09: a process that not even a kill ends",
        "it takes a broken device or a file system that the host serves itself: neither can be had inside. One that waits \
         uninterruptibly, for a child after vfork, is shown",
    ),
    (
        "D01, D02, D03, D05, D06: file work that resolves a path outside",
        "file work is done inside by construction, there is no plan without that. Each test does the same naively on the \
         host and is at the canary, or blocks",
    ),
    (
        "B08: abstract sockets in a shared network",
        "a shared network namespace would be the host's; the control looks from a second program in the same box",
    ),
];

#[test]
#[allow(clippy::print_stdout, reason = "the list is part of the test output")]
fn cases_without_a_control_are_listed_with_their_reason() {
    for (attack, reason) in IMPOSSIBLE {
        println!("{attack}\n    {reason}");
    }
}

/// Returns true if the filter or a permission check of the kernel rejected the call.
fn refused(attempt: &Attempt) -> bool {
    ["EPERM", "ENOSYS", "EACCES"].contains(&attempt.result.as_str())
}

/// Formats an attempt as the line of a gain.
fn line(attempt: &Attempt) -> String {
    format!("{} {} {}", attempt.what, attempt.result, attempt.detail)
}

/// Returns the lines of the attempts that `gained` accepts.
fn lines(found: &[Attempt], mut gained: impl FnMut(&Attempt) -> bool) -> Vec<String> {
    found
        .iter()
        .filter(|attempt| gained(attempt))
        .map(line)
        .collect()
}

async fn attack(
    world: &World,
    id: &SandboxId,
    user: &str,
    place: &str,
    probe: &[&str],
) -> Vec<Attempt> {
    attack_on(Streams::Pipes, world, id, user, place, probe).await
}

/// Type of the attacker's standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streams {
    Pipes,
    Terminal,
}

async fn attack_on(
    streams: Streams,
    world: &World,
    id: &SandboxId,
    user: &str,
    place: &str,
    probe: &[&str],
) -> Vec<Attempt> {
    let mut spec = probe_spec(probe).user(user).directory(place);
    if streams == Streams::Terminal {
        spec = spec.terminal(TerminalSize {
            rows: 30,
            columns: 100,
        });
    }
    let found = attempts(stdout_text(&world.exec(id, spec).await));
    assert!(!found.is_empty(), "{probe:?} as {user} tried nothing");
    found
}

/// Asserts that the attack fails in an unmodified sandbox, which keeps working, and that the attack
/// succeeds without the defence.
async fn check(case: &Case<'_>) {
    check_on(Streams::Pipes, case).await;
}

async fn check_on(streams: Streams, case: &Case<'_>) {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    for user in USERS {
        let found = attack_on(streams, &world, &id, user, case.place, case.probe).await;
        let gained = (case.gains)(user, &found);
        assert!(
            gained.is_empty(),
            "{:?} as {user} gained {gained:#?}",
            case.probe
        );
    }
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    world.close().await;
    for control in case.controls {
        let world = World::open_with(control.lift).await;
        let id = world.sandbox(Kind::Static).await;
        for user in control.users {
            let found = attack_on(streams, &world, &id, user, case.place, case.probe).await;
            let gained = (case.gains)(user, &found);
            for expected in control.gains {
                assert!(
                    gained.iter().any(|gain| gain.starts_with(expected)),
                    "{:?} as {user} did not gain {expected}, but {gained:#?} from {:#?}",
                    case.probe,
                    found.iter().map(line).collect::<Vec<_>>()
                );
            }
        }
        world.close().await;
    }
}

/// Makes the plan's filter allow `calls`.
fn allow(plan: &mut Plan, calls: &[&str]) {
    let policy = plan.policy.as_mut().expect("a plan has a filter");
    for call in calls {
        assert!(policy.allow(call), "no call {call}");
    }
}

const SYS_CHROOT: u64 = 1 << 18;
const SYS_ADMIN: u64 = 1 << 21;
const NET_RAW: u64 = 1 << 13;
const LEASE: u64 = 1 << 28;
