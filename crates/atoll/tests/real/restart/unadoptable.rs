//! Sandboxes that a server cannot take over: it leaves them unchanged, and continues with the others.

use std::fs;
use std::path::{Path, PathBuf};

use atoll_model::{Code, SandboxId, SandboxState};
use atoll_testkit::{static_layer, wait_for};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};
use atoll_worker::{Config, LocalRuntime, Storage, orphans};

use super::{Place, keeper, spec};
use crate::harness::{DEADLINE, binary, probe_spec};

fn directory(place: &Place, id: &SandboxId) -> PathBuf {
    place.data().join("sandboxes").join(id.as_str())
}

async fn create_two(runtime: &LocalRuntime) -> [SandboxId; 2] {
    let (one, other) = tokio::join!(runtime.create(spec()), runtime.create(spec()));
    [one.unwrap().id, other.unwrap().id]
}

fn lives(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_record_stops_the_server_and_no_sandbox() {
    let place = Place::new();
    let runtime = place.open().await;
    let ids = create_two(&runtime).await;
    let pids = ids.clone().map(|id| runtime.host_pid(&id).unwrap());
    runtime.close().await.unwrap();
    // A directory in its place cannot be read as a record.
    let record = directory(&place, &ids[0]).join("record.json");
    let kept = record.with_extension("kept");
    fs::rename(&record, &kept).unwrap();
    fs::create_dir(&record).unwrap();
    let config = Config {
        binary: binary(),
        persistent: true,
        ..Config::new(place.data())
    };
    let error = LocalRuntime::open(config).await.unwrap_err();
    assert!(
        error.message.contains(record.to_str().unwrap()),
        "{error:?}"
    );
    assert!(error.remedy.unwrap().contains("nothing was changed"));
    assert!(pids.iter().all(|pid| lives(*pid)));
    assert!(
        ids.iter()
            .all(|id| directory(&place, id).join("upper").is_dir())
    );
    fs::remove_dir(&record).unwrap();
    fs::rename(&kept, &record).unwrap();
    let runtime = place.open().await;
    assert_eq!(ids.clone().map(|id| runtime.host_pid(&id).unwrap()), pids);
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_that_cannot_be_taken_over_blocks_no_other() {
    let place = Place::new();
    let store = TemplateStore::open(place.data().join("templates")).unwrap();
    let layer = place.file("other-layer");
    static_layer(&layer);
    let layer = Source::Directory(layer);
    store
        .add("two", &layer, &TemplateOptions::default(), &mut |_| {})
        .unwrap();
    let runtime = place.open().await;
    let good = runtime.create(spec()).await.unwrap().id;
    let mut other = spec();
    other.template = "two".into();
    let bad = runtime.create(other).await.unwrap().id;
    let pid = runtime.host_pid(&bad).unwrap();
    runtime.close().await.unwrap();
    // Its template was removed from outside.
    fs::rename(place.data().join("templates/two"), place.file("taken")).unwrap();
    for _ in 0..2 {
        let runtime = place.open().await;
        let done = runtime.exec(&good, probe_spec(&["true"])).await.unwrap();
        assert!(done.wait().await.success());
        assert_eq!(runtime.get(&bad).unwrap().state, SandboxState::Running);
        let error = runtime.exec(&bad, probe_spec(&["true"])).await.unwrap_err();
        assert!(error.message.contains("template"), "{error:?}");
        assert!(error.remedy.unwrap().contains("stop"));
        assert!(runtime.pause(&bad).await.is_err());
        assert!(lives(pid));
        runtime.close().await.unwrap();
    }
    let runtime = place.open().await;
    runtime.stop(&bad).await.unwrap();
    // The keeper reaps the process later.
    wait_for("it to be reaped", DEADLINE, || !lives(pid));
    let error = runtime.start(&bad).await.unwrap_err();
    assert_eq!(error.code, Code::UnknownTemplate, "{error:?}");
    fs::rename(place.file("taken"), place.data().join("templates/two")).unwrap();
    runtime.start(&bad).await.unwrap();
    let done = runtime.exec(&bad, probe_spec(&["true"])).await.unwrap();
    assert!(done.wait().await.success());
    place.close(runtime).await;
}

/// After its exit or deletion, no lock or record of the sandbox remains that others would wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantined_sandbox_can_exit_and_be_deleted() {
    let place = Place::new();
    let runtime = place.open().await;
    let ids = create_two(&runtime).await;
    let pids = ids.clone().map(|id| runtime.host_pid(&id).unwrap());
    runtime.close().await.unwrap();
    let template = place.data().join("templates/one");
    fs::rename(&template, place.file("taken")).unwrap();
    let runtime = place.open().await;
    let signal = rustix::process::Signal::KILL;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pids[0]).unwrap(), signal)
        .unwrap();
    wait_for("its end to be noticed", DEADLINE, || {
        runtime.get(&ids[0]).unwrap().state == SandboxState::Stopped
    });
    runtime.delete(&ids[1]).await.unwrap();
    wait_for("both to be reaped", DEADLINE, || {
        pids.iter().all(|pid| !lives(*pid))
    });
    assert!(!directory(&place, &ids[1]).exists());
    fs::rename(place.file("taken"), &template).unwrap();
    runtime.start(&ids[0]).await.unwrap();
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_directories_are_kept_for_a_week() {
    for storage in [Storage::Plain, Storage::Image] {
        let place = Place::new();
        let open = async || {
            let config = Config {
                binary: binary(),
                persistent: true,
                storage,
                ..Config::new(place.data())
            };
            LocalRuntime::open(config).await.unwrap()
        };
        let runtime = open().await;
        let ids = create_two(&runtime).await;
        for id in &ids {
            runtime.move_to_orphaned(id).await.unwrap();
            assert!(runtime.get(id).is_err());
        }
        let all = || orphans::list(&place.data());
        assert_eq!(all().len(), 2, "{storage}");
        let week = orphans::RETENTION.as_micros() as i64;
        let old = all()[0].clone();
        fs::write(
            old.directory.join("aside"),
            (old.orphaned_at - week).to_string(),
        )
        .unwrap();
        runtime.close().await.unwrap();
        let done = std::process::Command::new(binary())
            .args(["doctor", "--json"])
            .env("ATOLL_DATA_DIR", place.data())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            text.contains("lost sandboxes") && text.contains("2 set aside"),
            "{text}"
        );
        // The next start does not report them again.
        let runtime = open().await;
        assert_eq!(runtime.list(), []);
        assert_eq!(all().len(), 2, "an open removes nothing");
        runtime.remove_orphans(old.orphaned_at).await.unwrap();
        assert_eq!(all().len(), 1);
        assert_ne!(all()[0].id, old.id);
        let files = |id: &SandboxId| match storage {
            Storage::Plain => place
                .data()
                .join("orphaned")
                .join(id.as_str())
                .join("upper"),
            Storage::Image => place.data().join("storage").join(id.as_str()).join("upper"),
        };
        assert!(files(&all()[0].id).is_dir(), "{storage}");
        assert!(!files(&old.id).exists(), "{storage}");
        place.close(runtime).await;
    }
}

/// Root with it writes past quotas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_cannot_write_past_quotas() {
    const SYS_RESOURCE: u32 = 24;
    let place = Place::new();
    let runtime = place.open().await;
    let pid = keeper(runtime.tag()).unwrap();
    let sets = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let set = |line: &str| {
            let set = line
                .strip_prefix("Cap")?
                .split_once(':')?
                .1
                .trim()
                .to_owned();
            Some(u64::from_str_radix(&set, 16).unwrap())
        };
        status.lines().filter_map(set).collect::<Vec<_>>()
    };
    wait_for("the keeper to be one", DEADLINE, || {
        sets().iter().all(|set| set & (1 << SYS_RESOURCE) == 0)
    });
    place.close(runtime).await;
}
