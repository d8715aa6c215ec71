//! Changed limits of existing sandboxes: running, paused, stopped, or warm.

use std::path::Path;

use atoll_model::{Bytes, Code, Cpus, ExecSpec, Limits, SandboxId, SandboxState};
use atoll_testkit::wait_for;
use atoll_worker::LocalRuntime;

use super::{limited, value};
use crate::harness::{DEADLINE, KINDS, Kind, World, probe_spec, stdout_text, template};
use crate::restart::{Place, spec};

fn size(cpus: u32, memory: u64, pids: u32) -> Limits {
    Limits {
        cpus: Cpus(cpus),
        memory: Bytes(memory),
        pids,
        ..Limits::default()
    }
}

/// Checks the limits of a sandbox: in its description, outside in its cgroup, and inside.
async fn check(runtime: &LocalRuntime, id: &SandboxId, limits: Limits) {
    assert_eq!(runtime.get(id).unwrap().limits, limits);
    let (memory, pids) = (limits.memory.0, limits.pids);
    // The kernel limits whole pages.
    let pages = memory / 4096 * 4096;
    let kept = |controller, v1, v2| kept(runtime, id, controller, v1, v2);
    assert_eq!(
        kept("memory", "memory.limit_in_bytes", "memory.max"),
        pages.to_string()
    );
    assert_eq!(kept("pids", "pids.max", "pids.max"), pids.to_string());
    let host = runtime.facts().processors.len();
    let quota = i64::from(limits.cpus.0) * 100;
    if limits.cpus.0 as usize >= host * 1000 {
        let free = kept("cpu", "cpu.cfs_quota_us", "cpu.max");
        assert!(["-1", "max 100000"].contains(&free.as_str()), "{free}");
    } else {
        let quotas = [quota.to_string(), format!("{quota} 100000")];
        assert!(quotas.contains(&kept("cpu", "cpu.cfs_quota_us", "cpu.max")));
    }
    let probe = async |words: &[&str]| {
        let spec = probe_spec(words).user("user").deadline(DEADLINE);
        let exec = runtime.exec(id, spec).await.unwrap();
        exec.finish(b"", 1 << 16).await.unwrap()
    };
    // A second command sees the same values.
    for _ in 0..2 {
        let processors = (limits.cpus.0.div_ceil(1000) as usize).min(host);
        assert_eq!(
            stdout_text(&probe(&["nproc"]).await),
            format!("{processors}\n")
        );
    }
    let meminfo = probe(&["meminfo"]).await;
    assert_eq!(value(&meminfo, "MemTotal"), memory / 1024 * 1024);
    for (path, text) in [
        ("/sys/fs/cgroup/memory.max", format!("{memory}\n")),
        ("/sys/fs/cgroup/cpu.max", format!("{quota} 100000\n")),
        ("/sys/fs/cgroup/pids.max", format!("{pids}\n")),
    ] {
        assert_eq!(stdout_text(&probe(&["read", path]).await), text);
    }
}

/// Value of a cgroup file on the host.
fn kept(runtime: &LocalRuntime, id: &SandboxId, controller: &str, v1: &str, v2: &str) -> String {
    let cgroups = &runtime.facts().cgroups;
    let (mount, file) = match cgroups.v1.get(controller) {
        Some(mount) => (mount, v1),
        None => (cgroups.v2.as_ref().unwrap(), v2),
    };
    let group = mount.join(format!("atoll-{}", runtime.tag()));
    let text = std::fs::read_to_string(group.join(id.as_str()).join(file)).unwrap();
    text.trim().to_owned()
}

/// A runtime with `count` warm sandboxes of `base`.
async fn warm(count: usize) -> World {
    let world = World::open_as(|config| config.warm_count = count).await;
    filled(&world, count);
    world
}

fn filled(world: &World, count: usize) {
    wait_for("warm sandboxes", DEADLINE, || {
        world.runtime.pool_sizes().0 == count
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_sandbox_gets_the_requested_size() {
    let world = warm(2).await;
    for limits in [size(500, 96 << 20, 24), size(1000, 5 << 29, 2000)] {
        let create = atoll_model::SandboxSpec {
            limits,
            ..atoll_model::SandboxSpec::default()
        };
        filled(&world, 2);
        let info = world.runtime.create(create).await.unwrap();
        assert!(info.timings.root.is_zero(), "{info:?} was not warm");
        let options = atoll_model::WriteOptions {
            mode: Some(0o755),
            ..atoll_model::WriteOptions::default()
        };
        let root = atoll_model::RunAs::root();
        let write = world
            .runtime
            .write_file(&info.id, &root, b"/probe", options);
        let mut writer = write.await.unwrap();
        let probe = std::fs::File::open(atoll_testkit::probe()).unwrap();
        writer.splice_from(probe).await.unwrap();
        writer.commit().await.unwrap();
        check(&world.runtime, &info.id, limits).await;
    }
    // The smallest limits, whether or not a warm sandbox can be changed to them.
    let least = atoll_model::SandboxSpec {
        limits: Limits {
            disk: Limits::default().disk,
            ..Limits::MIN
        },
        ..atoll_model::SandboxSpec::default()
    };
    let least = world.runtime.create(least).await.unwrap();
    stdout_text(&world.exec(&least.id, ExecSpec::argv(["true"])).await);
    // The limit is enforced, not only reported.
    let small = world.runtime.list().pop().unwrap().id;
    let crowd = "for i in $(seq 40); do sleep 300 & done";
    let done = world.exec(&small, ExecSpec::shell(crowd)).await;
    let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(complaint.contains("fork"), "{complaint}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_spec_is_refused_and_uses_no_warm_sandbox() {
    let world = warm(1).await;
    let wrong: [fn(&mut atoll_model::SandboxSpec); 3] = [
        |spec| spec.limits.pids = 0,
        |spec| {
            spec.environment.insert("A=B".into(), String::new());
        },
        |spec| spec.policy.default = atoll_model::PolicyAction::Deny,
    ];
    for change in wrong {
        let mut create = atoll_model::SandboxSpec::default();
        change(&mut create);
        let error = world.runtime.create(create).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest, "{error:?}");
        assert_eq!(world.runtime.pool_sizes().0, 1);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_template_is_warm_for_the_next_create() {
    let world = warm(2).await;
    let create = || atoll_model::SandboxSpec {
        template: template(Kind::Static),
        limits: size(500, 64 << 20, 99),
        ..atoll_model::SandboxSpec::default()
    };
    let first = world.runtime.create(create()).await.unwrap();
    assert!(!first.timings.root.is_zero(), "{first:?} cannot be warm");
    // A warm sandbox of the other template replaces one of `base`. Only a create shows which ones are ready.
    wait_for("one of the template", DEADLINE, || {
        let made = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(world.runtime.create(create()))
        });
        made.unwrap().timings.root.is_zero()
    });
    filled(&world, 2);
    let taken = world.runtime.create(create()).await.unwrap();
    assert!(taken.timings.root.is_zero(), "{taken:?} was not warm");
    check(&world.runtime, &taken.id, taken.limits).await;
    let base = atoll_model::SandboxSpec::default();
    let base = world.runtime.create(base).await.unwrap();
    assert!(base.timings.root.is_zero(), "{base:?} was not warm");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_sandbox_grows_and_shrinks() {
    let world = World::open().await;
    for kind in KINDS {
        let id = world.sandbox_spec(kind, limited(500, 256 << 20)).await;
        for limits in [
            size(2000, 1 << 30, 64),
            size(500, 128 << 20, 32),
            Limits::default(),
            size(1500, 300_000_000, 4000),
        ] {
            let info = world.runtime.set_limits(&id, limits).await.unwrap();
            assert_eq!(info.limits, limits);
            check(&world.runtime, &id, limits).await;
        }
        // No process inside can write to these files.
        for path in ["/proc/meminfo", "/sys/fs/cgroup/memory.max"] {
            let done = world.probe(&id, "root", &["write", path, "0"]).await;
            let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(complaint.contains("EROFS"), "{path}: {complaint}");
        }
        let small = size(500, 64 << 20, 32);
        world.runtime.set_limits(&id, small).await.unwrap();
        let greedy = probe_spec(&["c02-memory", "anon", "536870912"]).variable("HOLD", "1");
        assert!(world.exec(&id, greedy).await.status.oom_killed);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_runs_keeps_its_processors() {
    let world = World::open().await;
    if world.runtime.facts().processors.len() < 2 {
        // With one processor the number cannot change.
        return world.close().await;
    }
    let id = world.sandbox_spec(Kind::Base, limited(1000, 1 << 30)).await;
    let old = ExecSpec::shell("read line; nproc").piped_stdin();
    let old = world.runtime.exec(&id, old).await.unwrap();
    world
        .runtime
        .set_limits(&id, Limits::default())
        .await
        .unwrap();
    old.handle.write_stdin_at(0, b"\n").unwrap();
    old.handle.close_stdin().unwrap();
    assert_eq!(stdout_text(&old.finish(b"", 100).await.unwrap()), "1\n");
    let new = world.exec(&id, ExecSpec::shell("nproc")).await;
    assert_eq!(stdout_text(&new), "2\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_resize_keeps_the_old_size() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let old = world.runtime.get(&id).unwrap().limits;
    for (field, limits) in [
        ("cpus", size(0, 1 << 30, 99)),
        ("memory", size(1000, 1, 99)),
        ("pids", size(1000, 1 << 30, 0)),
        (
            "disk",
            Limits {
                disk: Bytes(1),
                ..old
            },
        ),
    ] {
        let error = world.runtime.set_limits(&id, limits).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
        assert_eq!(error.details["field"], field);
    }
    let holding = probe_spec(&["c02-memory", "anon", "134217728"]).variable("HOLD", "300");
    let holding = world.runtime.exec(&id, holding).await.unwrap();
    wait_for("128 MiB to be used", DEADLINE, || {
        world.runtime.usage(&id).unwrap().memory.0 > 120 << 20
    });
    let less = size(500, 64 << 20, 99);
    let error = world.runtime.set_limits(&id, less).await.unwrap_err();
    assert_eq!(
        (error.code, error.details["field"].as_str()),
        (Code::Conflict, "memory")
    );
    assert!(error.message.contains("uses"), "{error:?}");
    check(&world.runtime, &id, old).await;
    assert_eq!(
        holding.handle.info().status,
        None,
        "it was not killed for it"
    );
    holding.kill().unwrap();
    holding.wait().await;
    wait_for("room for less", DEADLINE, || {
        world.runtime.usage(&id).unwrap().memory.0 < 60 << 20
    });
    world.runtime.set_limits(&id, less).await.unwrap();
    check(&world.runtime, &id, less).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_and_stopped_sandboxes_resume_with_the_new_size() {
    let world = World::open().await;
    for kind in KINDS {
        let id = world.sandbox(kind).await;
        // A command before the pause.
        stdout_text(&world.probe(&id, "user", &["true"]).await);
        world.runtime.pause(&id).await.unwrap();
        for limits in [size(500, 256 << 20, 99), size(1000, 128 << 20, 50)] {
            let info = world.runtime.set_limits(&id, limits).await.unwrap();
            assert_eq!((info.state, info.limits), (SandboxState::Paused, limits));
        }
        world.runtime.resume(&id).await.unwrap();
        check(&world.runtime, &id, size(1000, 128 << 20, 50)).await;
        world.runtime.stop(&id).await.unwrap();
        let limits = size(500, 512 << 20, 70);
        let info = world.runtime.set_limits(&id, limits).await.unwrap();
        assert_eq!((info.state, info.limits), (SandboxState::Stopped, limits));
        world.runtime.start(&id).await.unwrap();
        check(&world.runtime, &id, limits).await;
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excessive_resize_of_a_paused_sandbox_is_refused() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    world.runtime.pause(&id).await.unwrap();
    let mut last = world.runtime.get(&id).unwrap().limits;
    let error = loop {
        let next = size(500, 256 << 20, last.pids + 1);
        match world.runtime.set_limits(&id, next).await {
            Ok(info) => last = info.limits,
            Err(error) => break error,
        }
        assert!(last.pids < 4000, "every resize was accepted");
    };
    assert_eq!(error.code, Code::Conflict, "{error:?}");
    world.runtime.resume(&id).await.unwrap();
    check(&world.runtime, &id, last).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_server_keeps_the_new_size() {
    let place = Place::new();
    let open = async |data: &Path| {
        let config = atoll_worker::Config {
            binary: crate::harness::binary(),
            persistent: true,
            ..atoll_worker::Config::new(data)
        };
        LocalRuntime::open(config).await.unwrap()
    };
    let runtime = open(&place.data()).await;
    let id = runtime.create(spec()).await.unwrap().id;
    let limits = size(500, 256 << 20, 99);
    runtime.set_limits(&id, limits).await.unwrap();
    runtime.close().await.unwrap();
    let runtime = open(&place.data()).await;
    check(&runtime, &id, limits).await;
    let limits = size(2000, 1 << 30, 200);
    runtime.set_limits(&id, limits).await.unwrap();
    check(&runtime, &id, limits).await;
    runtime.stop(&id).await.unwrap();
    runtime.start(&id).await.unwrap();
    check(&runtime, &id, limits).await;
    place.close(runtime).await;
}
