//! A12, A13: setuid programs and capabilities.

use atoll_jail::plan::CAPABILITIES;
use atoll_testkit::{Attempt, attempts, wait_for};

use super::init::processes;
use super::{Case, Control, LEASE, ROOT, USERS, attack, check, line};
use crate::harness::{DEADLINE, Kind, World, probe_spec, stdout_text};

fn granted() -> u64 {
    CAPABILITIES.iter().map(|(_, bit)| 1 << bit).sum()
}

fn set(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or(u64::MAX)
}

/// Returns true if the attempt shows a privilege that the user must not have.
fn gained(user: &str, it: &Attempt) -> bool {
    let granted = granted();
    let own = if user == "root" { granted } else { 0 };
    let known = |name: &str| {
        CAPABILITIES
            .iter()
            .any(|(known, _)| name.strip_prefix("CAP_") == Some(known))
    };
    let Some((what, name)) = it.what.split_once(':') else {
        return match it.what.as_str() {
            "CapPrm" | "CapEff" | "CapInh" | "CapAmb" => set(&it.detail) & !own != 0,
            "CapBnd" => set(&it.detail) != granted,
            "Seccomp" => it.detail != "2",
            "ids" => set(it.value("permitted").unwrap_or("")) & !own != 0,
            "securebits-set" => it.worked() && user != "root",
            _ => false,
        };
    };
    match what {
        "raise" | "ambient" => it.worked() && !(user == "root" && known(name)),
        "bounding" => it.detail != "0" && !known(name),
        // Root may set file capabilities; the bounding set limits their effect.
        "filecaps" if name == "set" => it.worked() && user != "root",
        "filecaps" if name == "exec" => {
            it.worked() && set(it.value("permitted").unwrap_or("")) & !own != 0
        }
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capabilities_match_the_snapshot_and_cannot_be_gained() {
    check(&Case {
        probe: &["a13-caps"],
        place: "/",
        gains: |user, found| {
            found
                .iter()
                .filter(|it| gained(user, it))
                .map(line)
                .collect()
        },
        controls: &[
            Control {
                lift: |plan| plan.inside.capabilities |= LEASE,
                users: USERS,
                gains: &["CapBnd", "bounding:CAP_LEASE"],
            },
            Control {
                lift: |plan| plan.inside.capabilities |= LEASE,
                users: ROOT,
                gains: &["CapEff", "raise:CAP_LEASE", "ambient:CAP_LEASE"],
            },
            Control {
                lift: |plan| plan.policy = None,
                users: USERS,
                gains: &["Seccomp"],
            },
        ],
    })
    .await;
}

/// Returns the effective user id and capabilities before and after the user runs root's setuid
/// program.
async fn by_setuid(world: &World) -> [(u64, u64); 2] {
    let id = world.sandbox(Kind::Static).await;
    for (user, path) in [("root", "/setuid-root"), ("user", "/dev/shm/setuid-user")] {
        let made = attack(world, &id, user, "/", &["a12-setuid", "make", path]).await;
        assert!(made.iter().all(Attempt::worked), "{made:?}");
    }
    // A setuid program that the user owns changes nothing.
    let own = world
        .probe(&id, "user", &["a12-setuid", "run", "/dev/shm/setuid-user"])
        .await;
    assert!(
        attempts(stdout_text(&own))
            .iter()
            .all(|it| it.value("euid") == Some("1000")),
        "{own:?}"
    );
    let found = attack(
        world,
        &id,
        "user",
        "/",
        &["a12-setuid", "run", "/setuid-root"],
    )
    .await;
    ["before", "after"].map(|what| {
        let it = found.iter().find(|it| it.what == what).expect(what);
        let id = it
            .value("euid")
            .and_then(|text| text.parse().ok())
            .expect("an id");
        (id, set(it.value("permitted").expect("a set")))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setuid_grants_only_root_of_the_sandbox() {
    let world = World::open().await;
    assert_eq!(by_setuid(&world).await, [(1000, 0), (0, granted())]);
    // Root of the sandbox is an unprivileged user of the host.
    let id = world.sandbox(Kind::Static).await;
    let sleep = world
        .runtime
        .exec(&id, probe_spec(&["sleep", "60"]).user("root"));
    let sleep = sleep.await.expect("it starts");
    let both = || processes(&world, &id);
    wait_for("PID 1 and the program", DEADLINE, || both().len() == 2);
    for pid in both() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        for ids in status
            .lines()
            .filter(|line| line.starts_with("Uid:") || line.starts_with("Gid:"))
        {
            let outside = |id: &str| id.parse::<u32>().is_ok_and(|id| id >= 65_536);
            assert!(ids.split_whitespace().skip(1).all(outside), "{ids}");
        }
    }
    sleep.kill().expect("it can be killed");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wider_bounding_set_would_widen_setuid() {
    let world = World::open_with(|plan| plan.inside.capabilities |= LEASE).await;
    assert_eq!(by_setuid(&world).await, [(1000, 0), (0, granted() | LEASE)]);
    world.close().await;
}

/// A template with `sudo: false` sets `nosuid` and `no_new_privs`; either is sufficient.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setuid_without_sudo_gains_nothing() {
    for (nosuid, no_new_privs) in [(true, true), (true, false), (false, true)] {
        let world = World::open_with(move |plan| {
            plan.nosuid = nosuid;
            plan.inside.no_new_privs = no_new_privs;
        });
        let world = world.await;
        assert_eq!(
            by_setuid(&world).await,
            [(1000, 0), (1000, 0)],
            "{nosuid} {no_new_privs}"
        );
        world.close().await;
    }
}
