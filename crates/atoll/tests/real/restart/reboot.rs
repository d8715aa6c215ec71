//! After a reboot of the host only files remain: no process, mount, cgroup or registration, and the records have
//! another boot id.

use std::path::Path;
use std::time::Duration;

use atoll_model::{ExecId, RunAs, SandboxId, SandboxState, StopReason, WriteOptions};
use atoll_testkit::{mounts, run, wait_for};
use atoll_worker::{Config, LocalRuntime, Storage};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::{Place, config, keeper, kill, serve as start, spec, word};
use crate::harness::{DEADLINE, probe_spec};

const SIZE: usize = 300_000;

/// Bytes that identify the sandbox.
fn contents(id: &SandboxId) -> Vec<u8> {
    id.as_str().bytes().cycle().take(SIZE).collect()
}

async fn write(runtime: &LocalRuntime, id: &SandboxId) {
    let root = RunAs::root();
    let options = WriteOptions {
        parents: true,
        mode: Some(0o640),
        ..WriteOptions::default()
    };
    let file = runtime.write_file(id, &root, b"/kept/file", options).await;
    let mut file = file.unwrap();
    file.write(&contents(id)).await.unwrap();
    file.commit().await.unwrap();
}

async fn intact(runtime: &LocalRuntime, id: &SandboxId) {
    let root = RunAs::root();
    let file = runtime.read_file(id, &root, b"/kept/file").await.unwrap();
    let bytes = file.read_to_end(2 * SIZE).await.unwrap();
    assert!(bytes == contents(id), "{} bytes", bytes.len());
    let found = runtime.stat(id, &root, b"/kept/file", false).await.unwrap();
    assert_eq!(found.mode & 0o777, 0o640);
}

/// Removes the objects that a restart of the host removes.
pub fn restart(data: &Path, tag: &str) {
    let keeper = keeper(tag).unwrap();
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::KILL).unwrap();
    let cgroups = atoll_jail::facts::Facts::read().cgroups;
    for root in cgroups.v1.values().chain(&cgroups.v2) {
        let group = root.join(format!("atoll-{tag}"));
        assert!(group.exists(), "{}", group.display());
        wait_for("a control group to be empty", DEADLINE, || empty(&group));
    }
    wait_for("its keeper to be gone", DEADLINE, || {
        !Path::new(&format!("/proc/{keeper}")).exists()
    });
    std::fs::remove_file(Path::new("/run/atoll/instances").join(tag)).unwrap();
    for mount in mounts()
        .iter()
        .filter(|mount| mount.point.starts_with(data))
    {
        let undone = run(std::process::Command::new("umount").arg(&mount.point));
        assert!(undone.status.success(), "{undone:?}");
    }
    forget_boot(data);
}

/// Changes the boot id in records. Records without one are not changed.
pub fn forget_boot(data: &Path) {
    for entry in std::fs::read_dir(data.join("sandboxes")).unwrap().flatten() {
        let path = entry.path().join("record.json");
        let text = std::fs::read(&path).unwrap_or_default();
        let Ok(mut record) = serde_json::from_slice::<serde_json::Value>(&text) else {
            continue;
        };
        let boot = record["boot"].as_str().unwrap();
        assert_eq!(boot.len(), 36, "{record}");
        record["boot"] = "11111111-2222-3333-4444-555555555555".into();
        std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    }
}

/// Removes a cgroup and its descendants, if they have no processes.
fn empty(group: &Path) -> bool {
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    for entry in below {
        if entry.path().is_dir() {
            empty(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
    !group.exists()
}

/// Objects that the server created before the reboot.
#[derive(Serialize, Deserialize)]
struct Made {
    tag: String,
    /// A running, a paused and a stopped sandbox.
    ids: [SandboxId; 3],
    /// Commands of the first sandbox: one that printed output, one that runs.
    short: ExecId,
    long: ExecId,
}

fn configured(data: &Path, storage: &str) -> Config {
    let storage = match storage {
        "image" => Storage::Image,
        _ => Storage::Plain,
    };
    Config {
        storage,
        warm_count: 2,
        ..config(data)
    }
}

/// The server before the restart.
pub(super) async fn serve(data: &Path) {
    let runtime = LocalRuntime::open(configured(data, &word("STORAGE"))).await;
    let runtime = runtime.unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = runtime.create(spec()).await.unwrap().id;
        write(&runtime, &id).await;
        ids.push(id);
    }
    let run = async |words: &[&str]| runtime.exec(&ids[0], probe_spec(words)).await.unwrap();
    let short = run(&["echo", "before"]).await.handle;
    assert!(short.wait().await.success());
    let long = run(&["sleep", "600"]).await.handle;
    runtime.pause(&ids[1]).await.unwrap();
    runtime.stop(&ids[2]).await.unwrap();
    let file = word("FILE");
    let made = Made {
        tag: runtime.tag().to_owned(),
        ids: ids.clone().try_into().unwrap(),
        short: short.id().clone(),
        long: long.id().clone(),
    };
    while runtime.pool_sizes().0 == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let new = format!("{file}.new");
    std::fs::write(&new, serde_json::to_vec(&made).unwrap()).unwrap();
    std::fs::rename(new, file).unwrap();
    std::future::pending::<()>().await;
}

async fn a_restart_with(storage: &str) {
    let place = Place::new();
    let file = place.file("made");
    let words = [("FILE", &*file.to_string_lossy()), ("STORAGE", storage)];
    let mut server = start("reboot", &place, &words);
    wait_for("the sandboxes", DEADLINE, || file.exists());
    kill(&mut server);
    let made: Made = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    restart(&place.data(), &made.tag);
    let runtime = LocalRuntime::open(configured(&place.data(), storage)).await;
    let runtime = runtime.unwrap();
    assert_eq!(runtime.list().len(), 3);
    let reasons = [
        Some(StopReason::HostRestart),
        Some(StopReason::HostRestart),
        None,
    ];
    for (id, reason) in made.ids.iter().zip(reasons) {
        let info = runtime.get(id).unwrap();
        assert_eq!((info.state, info.reason), (SandboxState::Stopped, reason));
    }
    // Recorded results are available; the end of the other command is unknown.
    let find = |exec| runtime.find_exec(&made.ids[0], exec).unwrap();
    let result = find(&made.short)
        .into_streams()
        .finish(b"", 100)
        .await
        .unwrap();
    assert_eq!(result.stdout, b"before\n");
    assert!(find(&made.long).is_status_unknown());
    for id in &made.ids {
        let info = runtime.start(id).await.unwrap();
        assert_eq!((info.state, info.reason), (SandboxState::Running, None));
        intact(&runtime, id).await;
    }
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_host_sandboxes_are_stopped_and_intact() {
    a_restart_with("plain").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_on_an_image_are_intact_after_a_host_restart() {
    a_restart_with("image").await;
}
