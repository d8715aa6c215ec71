//! Snapshots of every isolation decision: requested spec × facts of the host.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::mounts::{NODEV, NOEXEC, NOSUID, READ_ONLY};
use super::*;
use crate::facts::Cgroups;
use crate::wire::Source;

/// A host with controllers in cgroup v1, and cgroup2 without controllers.
fn facts() -> Facts {
    let v1 = ["cpu", "memory", "pids"]
        .map(|name| (name.into(), format!("/sys/fs/cgroup/{name}").into()));
    Facts {
        kernel: (6, 18),
        release: "6.18.44".into(),
        root: true,
        capabilities: (1 << 41) - 1,
        processors: (0..8).collect(),
        memory: 24 << 30,
        user_namespaces: true,
        filesystems: ["proc", "tmpfs", "devpts", "mqueue", "overlay", "ext4"]
            .map(String::from)
            .to_vec(),
        detached_layers: true,
        seccomp: true,
        cgroups: Cgroups {
            v1: BTreeMap::from(v1),
            v2: Some("/sys/fs/cgroup/unified".into()),
            v2_controllers: Vec::new(),
            swap: false,
        },
        proc_paths: [
            "bus/",
            "kcore",
            "keys",
            "pressure/",
            "sys/",
            "sysrq-trigger",
        ]
        .map(String::from)
        .to_vec(),
        open_files: 20_000,
    }
}

/// A host with cgroup2 alone.
fn v2() -> Facts {
    let mut facts = facts();
    facts.cgroups.v1.clear();
    facts.cgroups.v2 = Some("/sys/fs/cgroup".into());
    facts.cgroups.v2_controllers = ["cpuset", "cpu", "io", "memory", "pids"]
        .map(String::from)
        .to_vec();
    facts
}

fn spec() -> Spec {
    Spec {
        id: "iaaaaaaaaaaaaaaaaaaaa".into(),
        ids: IdRange {
            base: 1_310_720,
            count: 65_536,
        },
        millicpus: 2000,
        memory: 2 << 30,
        pids: 1024,
        user: User {
            name: "user".into(),
            uid: 1000,
            gid: 1000,
            home: "/home/user".into(),
        },
        sudo: true,
        nested_user_namespaces: false,
        host_mounts: Vec::new(),
        boot: "00000000-0000-4000-8000-000000000000".into(),
    }
}

/// Text form of a plan. Of the system call policy it has only the size; the policy has its own snapshot.
fn describe(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name}: {value}");
    };
    let Plan {
        ids,
        namespaces,
        limits,
        nosuid,
        layers,
        policy,
        inside,
    } = plan;
    line("ids", format!("{} + {}", ids.base, ids.count));
    line("namespaces", names(*namespaces, &NAMESPACES));
    for (controller, files) in &limits.v1 {
        for (file, value) in files {
            line("limit v1", format!("{controller}/{file} = {value}"));
        }
    }
    for (file, value) in &limits.v2 {
        line("limit v2", format!("{file} = {value}"));
    }
    line("nosuid", nosuid.to_string());
    line("layers", format!("{layers:?}"));
    let size = policy.as_ref().map(|policy| policy.lines().len());
    line(
        "policy",
        size.map_or("none".into(), |lines| format!("{lines} lines")),
    );
    line("host name", inside.hostname.clone());
    line("sandbox", inside.sandbox.clone());
    line(
        "capabilities",
        names(
            inside.capabilities,
            &CAPABILITIES.map(|(name, bit)| (name, 1 << bit)),
        ),
    );
    line("no new privileges", inside.no_new_privs.to_string());
    line("processors", format!("{:?}", inside.processors));
    line("open files", format!("{:?}", inside.open_files));
    line("loopback", inside.loopback.to_string());
    line("cgroup namespace", inside.cgroup_namespace.to_string());
    line("close descriptors", inside.close_descriptors.to_string());
    line("user", format!("{:?}", inside.user));
    for mount in &inside.mounts {
        let source = match &mount.source {
            Source::New { kind, options } => {
                let options: Vec<_> = options
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                format!("new {kind} {}", options.join(","))
            }
            Source::Devices => "devices".to_owned(),
            Source::Terminals => "terminals".to_owned(),
            Source::View { path } => format!("view {path}"),
            Source::Handed { path } => format!("host {path}"),
            Source::Again => "itself".into(),
        };
        let attributes = names(u64::from(mount.attributes), &ATTRIBUTES);
        line(
            "mount",
            format!("{} <- {} [{attributes}]", mount.target, source.trim_end()),
        );
    }
    for (path, contents) in &inside.views {
        let first = contents.lines().next().unwrap_or_default();
        line("view", format!("{path}: {first}"));
    }
    text
}

const NAMESPACES: [(&str, u64); 7] = [
    ("user", libc::CLONE_NEWUSER as u64),
    ("pid", libc::CLONE_NEWPID as u64),
    ("mount", libc::CLONE_NEWNS as u64),
    ("net", libc::CLONE_NEWNET as u64),
    ("ipc", libc::CLONE_NEWIPC as u64),
    ("uts", libc::CLONE_NEWUTS as u64),
    ("cgroup", libc::CLONE_NEWCGROUP as u64),
];

const ATTRIBUTES: [(&str, u64); 4] = [
    ("ro", READ_ONLY as u64),
    ("nosuid", NOSUID as u64),
    ("nodev", NODEV as u64),
    ("noexec", NOEXEC as u64),
];

/// Names of the set bits; bits without a name are shown as a number.
fn names(bits: u64, known: &[(&str, u64)]) -> String {
    let mut words: Vec<String> = known
        .iter()
        .filter(|(_, bit)| bits & bit != 0)
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let rest = known.iter().fold(bits, |bits, (_, bit)| bits & !bit);
    if rest != 0 {
        words.push(format!("{rest:#x}"));
    }
    words.join(" ")
}

/// Text form of a plan, or of the error.
fn render(spec: &Spec, facts: &Facts) -> String {
    match plan(spec, facts) {
        Ok(plan) => describe(&plan),
        Err(Error::Unsupported {
            feature,
            why,
            remedy,
        }) => {
            format!("unsupported: {feature}\nwhy: {why}\nremedy: {remedy}\n")
        }
        Err(error) => format!("error: {error}\n"),
    }
}

/// Differences from the default plan on the same host: `-` is removed, `+` is added.
fn changes(spec: &Spec, facts: &Facts, ordinary: &Spec, usual: &Facts) -> String {
    let (before, after) = (render(ordinary, usual), render(spec, facts));
    let lacks = |text: &str, line: &str| !text.lines().any(|known| known == line);
    let gone = before
        .lines()
        .filter(|line| lacks(&after, line))
        .map(|line| format!("- {line}\n"));
    let new = after
        .lines()
        .filter(|line| lacks(&before, line))
        .map(|line| format!("+ {line}\n"));
    gone.chain(new).collect()
}

#[test]
fn the_ordinary_sandbox_on_cgroup_v1() {
    insta::assert_snapshot!(render(&spec(), &facts()));
}

#[test]
fn limits_are_written_where_each_controller_is() {
    let mut with_swap = facts();
    with_swap.cgroups.swap = true;
    let mut hybrid = facts();
    hybrid.cgroups.v1.remove("pids");
    hybrid.cgroups.v2_controllers = vec!["pids".into()];
    let mut v2_with_swap = v2();
    v2_with_swap.cgroups.swap = true;
    let differences: Vec<String> = [
        ("v1 with swap", with_swap),
        ("hybrid", hybrid),
        ("v2", v2()),
        ("v2 with swap", v2_with_swap),
    ]
    .iter()
    .map(|(name, host)| format!("{name}\n{}", changes(&spec(), host, &spec(), &facts())))
    .collect();
    insta::assert_snapshot!(differences.join("\n"));
}

#[test]
fn only_requested_options_change_the_plan() {
    type Change = fn(&mut Spec);
    let cases: [(&str, Change); 7] = [
        ("half a processor", |spec| spec.millicpus = 500),
        ("three and a bit processors", |spec| spec.millicpus = 3200),
        ("more processors than there are", |spec| {
            spec.millicpus = 64_000;
        }),
        ("256 MiB and 64 pids", |spec| {
            (spec.memory, spec.pids) = (256 << 20, 64);
        }),
        ("no sudo", |spec| spec.sudo = false),
        ("mounts of the host", |spec| {
            spec.host_mounts = vec![
                ("/srv/data".into(), "/data".into()),
                ("/etc/hosts".into(), "/etc/hosts".into()),
            ];
        }),
        ("another range of ids", |spec| {
            spec.ids.base += spec.ids.count;
        }),
    ];
    let differences: Vec<String> = cases
        .iter()
        .map(|(name, change)| {
            let mut requested = spec();
            change(&mut requested);
            format!(
                "{name}\n{}",
                changes(&requested, &facts(), &spec(), &facts())
            )
        })
        .collect();
    insta::assert_snapshot!(differences.join("\n"));
}

#[test]
fn nested_user_namespaces_need_few_more_system_calls() {
    let mut nested = spec();
    nested.nested_user_namespaces = true;
    let lines = |spec: &Spec| {
        plan(spec, &facts())
            .ok()
            .and_then(|plan| plan.policy)
            .map(|policy| policy.lines())
    };
    let (before, after) = (
        lines(&spec()).unwrap_or_default(),
        lines(&nested).unwrap_or_default(),
    );
    let changed: Vec<String> = after
        .into_iter()
        .filter(|line| !before.contains(line))
        .collect();
    insta::assert_snapshot!(changed.join("\n"));
}

#[test]
fn a_smaller_host_changes_the_plan() {
    let one = Facts {
        processors: vec![3],
        ..facts()
    };
    let few_files = Facts {
        open_files: 512,
        ..facts()
    };
    let bare_proc = Facts {
        proc_paths: vec!["sys/".into()],
        ..facts()
    };
    let debian_12 = Facts {
        kernel: (6, 1),
        detached_layers: false,
        ..v2()
    };
    let differences: Vec<String> = [
        ("one processor", one),
        ("few open files", few_files),
        ("a bare /proc", bare_proc),
        ("Debian 12", debian_12),
    ]
    .iter()
    .map(|(name, host)| format!("{name}\n{}", changes(&spec(), host, &spec(), &facts())))
    .collect();
    insta::assert_snapshot!(differences.join("\n"));
}

#[test]
fn a_host_that_cannot_isolate_is_refused_with_a_remedy() {
    type Change = fn(&mut Facts);
    let cases: [(&str, Change); 10] = [
        ("not root", |facts| facts.root = false),
        ("without CAP_SYS_ADMIN and CAP_MKNOD", |facts| {
            facts.capabilities &= !(1 << 21 | 1 << 27);
        }),
        ("Linux 5.15", |facts| {
            (facts.kernel, facts.release) = ((5, 15), "5.15.0-91-generic".into());
        }),
        ("no user namespaces", |facts| facts.user_namespaces = false),
        ("no seccomp", |facts| facts.seccomp = false),
        ("no overlay", |facts| {
            facts.filesystems.retain(|kind| kind != "overlay");
        }),
        ("no cgroups at all", |facts| {
            facts.cgroups = Cgroups::default();
        }),
        ("cgroup v1 alone", |facts| facts.cgroups.v2 = None),
        ("no memory controller", |facts| {
            drop(facts.cgroups.v1.remove("memory"));
        }),
        ("cgroup2 without pids", |facts| {
            facts.cgroups.v1.clear();
            facts.cgroups.v2_controllers = vec!["cpu".into(), "memory".into()];
        }),
    ];
    let mut refusals = String::new();
    for (name, change) in cases {
        let mut host = facts();
        change(&mut host);
        let refusal = render(&spec(), &host);
        assert!(refusal.starts_with("unsupported"), "{name}: {refusal}");
        let _ = writeln!(refusals, "{name}\n{refusal}");
    }
    insta::assert_snapshot!(refusals);
}

#[test]
fn oldest_supported_kernel_is_accepted() {
    let facts = Facts {
        kernel: OLDEST_KERNEL,
        ..facts()
    };
    assert!(plan(&spec(), &facts).is_ok());
}

#[test]
fn plan_depends_only_on_its_arguments() {
    assert_eq!(plan(&spec(), &facts()).ok(), plan(&spec(), &facts()).ok());
    assert!(plan(&spec(), &facts()).is_ok_and(|plan| plan.inside.filter.is_empty()));
    assert!(plan(&spec(), &facts()).is_ok_and(|plan| !plan.boot().filter.is_empty()));
}

#[test]
fn size_matches_the_plan_and_its_difference_is_minimal() {
    let small = Spec {
        millicpus: 500,
        memory: 64 << 20,
        ..spec()
    };
    for facts in [facts(), v2()] {
        let (old, new) = (size(&spec(), &facts), size(&small, &facts));
        let (old, new) = (old.expect("a size"), new.expect("a size"));
        let whole = plan(&small, &facts).expect("a plan");
        assert_eq!(new.limits, whole.limits);
        assert_eq!(new.processors, whole.inside.processors);
        let update = new.since(&old);
        let mut views = whole.inside.views;
        views.retain(|view| update.views.contains(view));
        assert_eq!(views, update.views, "only views that the plan contains");
        let paths: Vec<&str> = update.views.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "meminfo",
                "sys/devices/system/cpu/online",
                "sys/devices/system/cpu/possible",
                "sys/devices/system/cpu/present",
                "sys/fs/cgroup/cpu.max",
                "sys/fs/cgroup/memory.max"
            ]
        );
        // All processors are listed: with an empty list the previous ones would stay.
        let all = Spec {
            millicpus: 8000,
            ..spec()
        };
        let all = size(&all, &facts).expect("a size");
        assert_eq!(all.since(&new).processors, facts.processors);
    }
}
