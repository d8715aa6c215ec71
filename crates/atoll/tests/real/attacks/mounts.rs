//! A07, A08, A09, A10, A15: mounts, masked paths, and every way to change them.

use atoll_jail::plan::Plan;
use atoll_jail::wire::Source;
use atoll_model::{HostMount, SandboxSpec};
use atoll_testkit::Attempt;

use super::{
    Case, Control, ROOT, SYS_ADMIN, SYS_CHROOT, USERS, allow, attack, check, lines, refused,
};
use crate::harness::{Kind, World, template};

const READ_ONLY: u32 = 1;

fn drop_mounts(plan: &mut Plan, drop: impl Fn(&str) -> bool) {
    plan.inside.mounts.retain(|mount| !drop(&mount.target));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_proc_and_sys_can_be_written() {
    check(&Case {
        probe: &["a07-write"],
        place: "/",
        // Every user may open `timerslack_ns`; a write requires CAP_SYS_NICE.
        gains: |_, found| {
            lines(found, |it| {
                it.worked()
                    && it.what.starts_with("open:")
                    && it.what != "open:/proc/1/timerslack_ns"
            })
        },
        controls: &[
            Control {
                lift: |plan| drop_mounts(plan, |target| target == "/proc/sys"),
                users: ROOT,
                gains: &["open:/proc/sys/kernel/", "open:/proc/sys/fs/mqueue/"],
            },
            // Files that all users may write to.
            Control {
                lift: |plan| {
                    drop_mounts(plan, |target| {
                        target == "/proc/sys" || target == "/proc/pressure"
                    });
                },
                users: USERS,
                gains: &["open:/proc/sys/", "open:/proc/pressure/"],
            },
            Control {
                lift: |plan| {
                    for mount in plan
                        .inside
                        .mounts
                        .iter_mut()
                        .filter(|mount| mount.target == "/sys")
                    {
                        mount.attributes &= !READ_ONLY;
                    }
                },
                users: ROOT,
                gains: &["open:/sys/"],
            },
        ],
    })
    .await;
}

/// Returns true if the attempt read data or found directory entries.
fn tells(attempt: &Attempt) -> bool {
    let entries = attempt
        .value("entries")
        .and_then(|count| count.parse::<u32>().ok());
    attempt.worked()
        && (attempt.detail.starts_with("data") || entries.is_some_and(|count| count > 0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_of_the_host_are_hidden() {
    check(&Case {
        probe: &[
            "a08-read",
            "/proc/config.gz",
            "/proc/bus",
            "/proc/driver",
            "/proc/irq",
        ],
        place: "/",
        gains: |_, found| {
            lines(found, |it| match it.what.as_str() {
                // Without the capability, every address reads as 0.
                "/proc/iomem" | "/proc/ioports" => {
                    tells(it) && !it.detail.starts_with("data head=0000")
                }
                "/proc/interrupts" => false,
                // The sandbox's own `/sys/kernel` has one directory.
                "/sys/kernel" => tells(it) && it.value("entries") != Some("1"),
                _ => tells(it),
            })
        },
        controls: &[Control {
            lift: |plan| {
                plan.inside.mounts.retain(|mount| {
                    !matches!(&mount.source, Source::View { path } if path.starts_with("empty/"))
                });
            },
            users: USERS,
            gains: &["/proc/kallsyms", "/proc/irq", "/proc/bus"],
        }],
    })
    .await;
}

/// The sandbox's mount namespace has no fully visible sysfs, so the kernel rejects a new one. The
/// error names the failed step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_cannot_have_a_sysfs_of_its_own() {
    let world = World::open_with(|plan| {
        for mount in plan
            .inside
            .mounts
            .iter_mut()
            .filter(|mount| mount.target == "/sys")
        {
            mount.source = Source::New {
                kind: "sysfs".into(),
                options: Vec::new(),
            };
        }
    });
    let world = world.await;
    let spec = SandboxSpec {
        template: template(Kind::Static),
        ..SandboxSpec::default()
    };
    let refused = world
        .runtime
        .create(spec)
        .await
        .expect_err("the kernel refuses");
    assert!(refused.message.contains("sysfs"), "{refused}");
    world.close().await;
}

/// The host's sysfs contains paths that a sandbox's `/sys` does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_sysfs_would_expose_the_host() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Static, |spec| {
            spec.mounts.push(HostMount {
                source: "/sys".into(),
                target: "/sys".into(),
            });
        })
        .await;
    for user in USERS {
        let found = attack(&world, &id, user, "/", &["a08-read"]).await;
        for path in ["/sys/firmware", "/sys/module", "/sys/kernel"] {
            assert!(
                found.iter().any(|it| it.what == path && tells(it)),
                "{user} {path}: {found:#?}"
            );
        }
    }
    world.close().await;
}

const MOUNTING: &[&str] = &[
    "mount",
    "umount2",
    "fsopen",
    "fsconfig",
    "fsmount",
    "move_mount",
    "open_tree",
    "fspick",
    "mount_setattr",
];

/// Allows the mount calls and grants `CAP_SYS_ADMIN`, which the kernel requires for them.
fn lift_mounting(plan: &mut Plan) {
    allow(plan, MOUNTING);
    plan.inside.capabilities |= SYS_ADMIN;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_stay_unchanged_and_masks_stay_in_place() {
    check(&Case {
        probe: &["a09-mount"],
        place: "/dev/shm",
        gains: |_, found| {
            lines(found, |it| {
                if it.what.starts_with("masked-") {
                    tells(it) || (it.worked() && it.what.contains("open-write"))
                } else {
                    !refused(it)
                }
            })
        },
        controls: &[Control {
            lift: lift_mounting,
            users: ROOT,
            gains: &[
                "mount:tmpfs ok",
                "bind:/proc ok",
                "move:/proc ok",
                "move_mount:tmpfs ok",
                "open_tree-clone:/ ok",
                "remount-bind-rw:/proc/sys ok",
                "umount:/proc/kallsyms ok",
                "umount-lazy:/proc ok",
                "masked-after:/proc/kallsyms ok data",
                "masked-after:/proc/irq ok",
            ],
        }],
    })
    .await;
}

/// Device and inode that the probe reports for a root directory.
fn root_of<'a>(found: &'a [Attempt], what: &str) -> Option<(&'a str, &'a str)> {
    let it = found.iter().find(|it| it.what == what)?;
    Some((it.value("dev")?, it.value("ino")?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pivot_root_and_chroot_do_not_leave_the_root_directory() {
    check(&Case {
        probe: &["a10-root"],
        place: "/",
        gains: |_, found| {
            let mut gained = lines(found, |it| {
                it.what.starts_with("pivot_root:") && !refused(it)
            });
            gained.extend(lines(found, |it| it.what == "chroot:nook" && it.worked()));
            if root_of(found, "dotdot") != root_of(found, "root") {
                gained.push("dotdot leads elsewhere".to_owned());
            }
            gained
        },
        controls: &[Control {
            lift: |plan| {
                allow(plan, &["chroot", "pivot_root"]);
                plan.inside.capabilities |= SYS_CHROOT | SYS_ADMIN;
            },
            users: ROOT,
            gains: &["chroot:nook ok", "pivot_root:dot"],
        }],
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classic_chroot_escape_stays_in_the_sandbox() {
    let lifted = World::open_with(|plan| {
        allow(plan, &["chroot"]);
        plan.inside.capabilities |= SYS_CHROOT;
    });
    let world = lifted.await;
    let id = world.sandbox(Kind::Static).await;
    let found = attack(&world, &id, "root", "/", &["a10-root"]).await;
    let escaped = root_of(&found, "escaped");
    assert!(escaped.is_some(), "the escape was not tried: {found:#?}");
    assert_eq!(escaped, root_of(&found, "root"));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_groups_are_out_of_reach() {
    check(&Case {
        probe: &["a15-cgroup"],
        place: "/dev/shm",
        gains: |_, found| {
            lines(found, |it| {
                let of_the_host = it.what == "self" && it.detail.contains("atoll-");
                of_the_host || (it.worked() && it.what != "self")
            })
        },
        controls: &[
            Control {
                lift: |plan| plan.inside.cgroup_namespace = false,
                users: USERS,
                gains: &["self"],
            },
            Control {
                lift: lift_mounting,
                users: ROOT,
                gains: &["mount:cgroup2: ok", "open-write:./probe-nook-"],
            },
        ],
    })
    .await;
}
