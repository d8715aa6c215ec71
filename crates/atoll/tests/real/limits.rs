//! Resource limits of a sandbox, how programs inside see them, and limits that are refused.

mod changed;
mod exhausted;

use std::path::Path;
use std::time::{Duration, Instant};

use atoll_model::runtime::ExecResult;
use atoll_model::{Bytes, Code, Cpus, Error, ExecSpec, HostMount, Limits, RunAs, SandboxSpec};
use atoll_testkit::{Scratch, wait_for};

use crate::harness::{DEADLINE, KINDS, Kind, World, data, probe_spec, stdout_text, template};

/// A value of `probe meminfo`.
fn value(finished: &ExecResult, name: &str) -> u64 {
    let line = stdout_text(finished)
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

fn limited(cpus: u32, memory: u64) -> impl FnOnce(&mut SandboxSpec) {
    move |spec| {
        spec.limits.cpus = Cpus(cpus);
        spec.limits.memory = Bytes(memory);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_see_the_size_of_the_sandbox() {
    let world = World::open().await;
    let host = world.runtime.facts().processors.len();
    for kind in KINDS {
        for (cpus, memory) in [(500, 256 << 20), (1000, 300_000_000), (2000, 1 << 30)] {
            let id = world.sandbox_spec(kind, limited(cpus, memory)).await;
            let expected = (cpus.div_ceil(1000) as usize).min(host);
            assert_eq!(
                stdout_text(&world.probe(&id, "user", &["nproc"]).await),
                format!("{expected}\n")
            );
            let meminfo = world.probe(&id, "user", &["meminfo"]).await;
            for name in ["MemTotal", "MemFree", "MemAvailable"] {
                assert_eq!(value(&meminfo, name), memory / 1024 * 1024, "{name}");
            }
            assert_eq!(value(&meminfo, "SwapTotal"), 0);
            for (path, text) in [
                ("/sys/fs/cgroup/memory.max", format!("{memory}\n")),
                ("/sys/fs/cgroup/cpu.max", format!("{} 100000\n", cpus * 100)),
                ("/sys/fs/cgroup/pids.max", "1024\n".to_owned()),
            ] {
                assert_eq!(
                    stdout_text(&world.probe(&id, "user", &["read", path]).await),
                    text
                );
            }
        }
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_tools_report_the_same_limits() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Base, limited(500, 256 << 20))
        .await;
    let line =
        "nproc; free -b | awk '/^Mem/{print $2} /^Swap/{print $2}'; getconf _NPROCESSORS_ONLN";
    let done = world.exec(&id, ExecSpec::shell(line)).await;
    assert_eq!(stdout_text(&done), "1\n268435456\n0\n1\n");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_grows_with_use_and_falls_after() {
    let world = World::open().await;
    for kind in KINDS {
        let id = world.sandbox(kind).await;
        wait_for("PID 1 alone", DEADLINE, || {
            world.runtime.usage(&id).unwrap().pids == 1
        });
        let before = world.runtime.usage(&id).unwrap();
        let held = probe_spec(&["c02-memory", "anon", "67108864"]).variable("HOLD", "300");
        let exec = world
            .runtime
            .exec(&id, held.deadline(DEADLINE))
            .await
            .unwrap();
        // Less than 64 MiB: earlier cache may have been reclaimed meanwhile.
        wait_for("some 64 MiB to be counted", DEADLINE, || {
            world.runtime.usage(&id).unwrap().memory.0 > before.memory.0 + (56 << 20)
        });
        wait_for("PID 1 and the program", DEADLINE, || {
            world.runtime.usage(&id).unwrap().pids == 2
        });
        exec.kill().unwrap();
        exec.wait().await;
        wait_for("the memory to come back", DEADLINE, || {
            world.runtime.usage(&id).unwrap().memory.0 < before.memory.0 + (32 << 20)
        });
        let used = || world.runtime.usage(&id).unwrap().cpu;
        let before = used();
        let spin = world.runtime.exec(&id, probe_spec(&["spin", "600"]));
        let spin = spin.await.unwrap();
        wait_for("processor time to be counted", DEADLINE, || {
            used() > before + Duration::from_millis(100)
        });
        spin.kill().unwrap();
        spin.wait().await;
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_processor_gives_half_the_cpu_time() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Static, limited(500, 256 << 20))
        .await;
    let before = world.runtime.usage(&id).unwrap().cpu;
    let begin = Instant::now();
    stdout_text(&world.probe(&id, "user", &["spin", "2", "2"]).await);
    let wall = begin.elapsed();
    let used = world
        .runtime
        .usage(&id)
        .unwrap()
        .cpu
        .checked_sub(before)
        .unwrap();
    // The kernel assigns time in slices, so usage may be slightly higher.
    assert!(used < wall.mul_f64(0.65), "{used:?} in {wall:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_over_the_limit_ends_the_command_with_the_reason() {
    let world = World::open().await;
    for kind in KINDS {
        let id = world.sandbox_spec(kind, limited(1000, 64 << 20)).await;
        let spec = probe_spec(&["c02-memory", "anon", "536870912"]).variable("HOLD", "1");
        let done = world.exec(&id, spec).await;
        assert!(done.status.oom_killed, "{done:?}");
        assert_eq!(done.status.exit_code(), 137);
        assert!(!done.status.timed_out);
        // The sandbox continues, and an ordinary SIGKILL is not reported as an OOM kill.
        let done = world.probe(&id, "user", &["signal", "9"]).await;
        assert_eq!(
            (done.status.signal, done.status.oom_killed),
            (Some(9), false)
        );
    }
    world.close().await;
}

/// A new program shares PID 1's memory until exec: the OOM killer must not count that memory as the program's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_with_permanently_full_memory_survives() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Base, limited(2000, 64 << 20))
        .await;
    let files =
        "head -c 33554432 /dev/zero > /dev/shm/f; head -c 16777216 /dev/zero > /run/f; true";
    stdout_text(&world.exec(&id, ExecSpec::shell(files).user("root")).await);
    let eat = "while :; do /probe c02-memory anon 536870912; [ $? = 137 ] && echo killed; done";
    let mut eaters = Vec::new();
    for _ in 0..2 {
        let eater = ExecSpec::shell(eat).variable("HOLD", "1");
        eaters.push(world.runtime.exec(&id, eater).await.unwrap());
    }
    for user in ["root", "user"].repeat(30) {
        // The process may be the OOM victim.
        let exec = world
            .runtime
            .exec(&id, ExecSpec::argv(["/bin/true"]).user(user))
            .await;
        if let Ok(exec) = exec {
            exec.finish(b"", 10).await.unwrap();
        }
    }
    for eater in eaters {
        eater.kill().unwrap();
        let eaten = eater.finish(b"", 1000).await.unwrap();
        assert!(eaten.stdout.starts_with(b"killed"), "{eaten:?}");
    }
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_program_dies_before_pid_1() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    // PID 1 sets the score after the exec of the program.
    let wait = "until read -r score </proc/$$/oom_score_adj && [ $score = 300 ]; do :; done; cat /proc/1/oom_score_adj";
    for user in ["root", "user"] {
        let spec = ExecSpec::shell(wait).user(user).deadline(DEADLINE);
        assert_eq!(stdout_text(&world.exec(&id, spec).await), "0\n");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_processes_than_allowed_are_refused_by_name() {
    let world = World::open().await;
    let id = world
        .sandbox_spec(Kind::Static, |spec| spec.limits.pids = 12)
        .await;
    let crowd = probe_spec(&["tree-of-processes", "10", "300"]).deadline(DEADLINE);
    let exec = world.runtime.exec(&id, crowd).await.unwrap();
    wait_for("PID 1 and the crowd", DEADLINE, || {
        world.runtime.usage(&id).unwrap().pids >= 11
    });
    // One more process may fit.
    let mut running = vec![exec];
    let error = loop {
        let last = probe_spec(&["sleep", "300"]).deadline(DEADLINE);
        match world.runtime.exec(&id, last).await {
            Ok(exec) => running.push(exec),
            Err(error) => break error,
        }
        assert!(running.len() <= 2, "12 processes have room for no more");
    };
    assert_eq!(error.code, Code::QuotaExceeded, "{error:?}");
    for exec in running {
        exec.kill().unwrap();
        exec.wait().await;
    }
    stdout_text(&world.probe(&id, "user", &["true"]).await);
    world.close().await;
}

/// The error of a create, which leaves nothing behind.
async fn refused(world: &World, change: impl FnOnce(&mut SandboxSpec)) -> Error {
    let mut spec = SandboxSpec {
        template: template(Kind::Static),
        ..SandboxSpec::default()
    };
    change(&mut spec);
    let error = world.runtime.create(spec).await.unwrap_err();
    assert!(world.runtime.list().is_empty());
    let tag = world.runtime.tag();
    let names = |path: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap().flatten();
        let directories = entries.filter(|entry| entry.path().is_dir());
        directories
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    let sandboxes = data().join("runs").join(tag).join("sandboxes");
    assert!(
        names(&sandboxes).is_empty(),
        "{error:?}: {:?}",
        names(&sandboxes)
    );
    let cgroups = &world.runtime.facts().cgroups;
    for mount in cgroups.v1.values().chain(&cgroups.v2) {
        let mut left = names(&mount.join(format!("atoll-{tag}")));
        left.retain(|name| name != "keeper");
        assert!(left.is_empty(), "{error:?}: {left:?}");
    }
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn size_out_of_range_is_named_and_nothing_is_created() {
    let world = World::open().await;
    let least = Limits::MIN;
    let most = Limits::MAX;
    type Change = Box<dyn FnOnce(&mut Limits)>;
    let wrong: [(&str, Change); 9] = [
        ("cpus", Box::new(|limits| limits.cpus = Cpus(0))),
        (
            "cpus",
            Box::new(move |limits| limits.cpus = Cpus(most.cpus.0 + 1)),
        ),
        (
            "memory",
            Box::new(move |limits| limits.memory = Bytes(least.memory.0 - 1)),
        ),
        (
            "memory",
            Box::new(move |limits| limits.memory = Bytes(most.memory.0 + 1)),
        ),
        ("memory", Box::new(|limits| limits.memory = Bytes(u64::MAX))),
        ("pids", Box::new(|limits| limits.pids = 0)),
        ("pids", Box::new(move |limits| limits.pids = most.pids + 1)),
        (
            "disk",
            Box::new(move |limits| limits.disk = Bytes(least.disk.0 - 1)),
        ),
        (
            "disk",
            Box::new(move |limits| limits.disk = Bytes(most.disk.0 + 1)),
        ),
    ];
    for (field, change) in wrong {
        let error = refused(&world, |spec| change(&mut spec.limits)).await;
        assert_eq!(error.code, Code::InvalidRequest);
        assert_eq!(error.details["field"], field);
        assert!(error.remedy.unwrap().contains(field));
    }
    // Disk limits depend on the storage.
    let disk = Limits::default().disk;
    for limits in [
        Limits { disk, ..least },
        Limits {
            memory: Bytes(1 << 30),
            disk,
            ..most
        },
    ] {
        let id = world
            .sandbox_spec(Kind::Static, |spec| spec.limits = limits)
            .await;
        stdout_text(&world.probe(&id, "user", &["true"]).await);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_template_is_refused_with_the_known_ones() {
    let world = World::open().await;
    for name in ["no-such-template", "../base", "", ".lock"] {
        let error = refused(&world, |spec| spec.template = name.into()).await;
        assert_eq!(error.code, Code::UnknownTemplate, "{error:?}");
        assert!(error.message.contains(name), "{error:?}");
    }
    let error = refused(&world, |spec| spec.template = "no-such-template".into()).await;
    let text = format!("{error:?}");
    assert!(text.contains("base"), "{text}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_variable_is_named_and_nothing_is_created() {
    let world = World::open().await;
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")] {
        let set = |spec: &mut SandboxSpec| {
            spec.environment.insert(name.into(), value.into());
        };
        let error = refused(&world, set).await;
        assert_eq!(error.code, Code::InvalidRequest);
        assert_eq!(error.details["field"], "env");
    }
    world.close().await;
}

fn mount(source: &Path, target: &str) -> impl FnOnce(&mut SandboxSpec) {
    let mount = HostMount {
        source: source.to_owned(),
        target: target.to_owned(),
    };
    move |spec| spec.mounts.push(mount)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_and_a_file_of_the_host_are_shown_read_only() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("dir")).unwrap();
    std::fs::write(scratch.join("dir/file"), "of the host").unwrap();
    std::fs::write(scratch.join("single"), "alone").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(scratch.join("dir"), open).unwrap();
    let world = World::open().await;
    for kind in KINDS {
        let (dir, single) = (scratch.join("dir"), scratch.join("single"));
        let both = |spec: &mut SandboxSpec| {
            mount(&dir, "/shown/deep")(spec);
            mount(&single, "/etc/single")(spec);
        };
        let id = world.sandbox_spec(kind, both).await;
        let read = async |path| world.probe(&id, "user", &["read", path]).await;
        assert_eq!(stdout_text(&read("/shown/deep/file").await), "of the host");
        assert_eq!(stdout_text(&read("/etc/single").await), "alone");
        for user in ["root", "user"] {
            for path in ["/shown/deep/file", "/shown/deep/new", "/etc/single"] {
                let done = world.probe(&id, user, &["write", path, "changed"]).await;
                let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(complaint.contains("EROFS"), "{user} {path}: {complaint}");
            }
        }
        let options = atoll_model::WriteOptions::default();
        let write = world
            .runtime
            .write_file(&id, &RunAs::root(), b"/shown/deep/new", options)
            .await;
        let error = write.unwrap().commit().await.unwrap_err();
        assert_eq!(error.code, Code::PermissionDenied);
        assert!(error.message.contains("read-only"), "{error:?}");
    }
    assert_eq!(
        std::fs::read_to_string(scratch.join("dir/file")).unwrap(),
        "of the host"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_mount_is_refused_by_name() {
    let scratch = Scratch::new();
    let world = World::open().await;
    let missing = scratch.join("missing");
    let error = refused(&world, mount(&missing, "/shown")).await;
    assert_eq!(
        (error.code, error.details["field"].as_str()),
        (Code::InvalidRequest, "mount")
    );
    assert!(
        error.message.contains(missing.to_str().unwrap()),
        "{error:?}"
    );
    for target in ["relative", "/", "", "/up/../../out"] {
        let error = refused(&world, mount(scratch.path(), target)).await;
        assert_eq!(error.code, Code::InvalidRequest, "{target}");
        assert!(error.message.contains(target), "{error:?}");
    }
    // A path that exists in the template.
    let error = refused(&world, mount(scratch.path(), "/probe")).await;
    assert!(error.message.contains("/probe"), "{error:?}");
    world.close().await;
}
