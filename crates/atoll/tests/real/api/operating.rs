//! The operator's configuration takes effect: settings, retention, values left to the host and permissions of keys.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use atoll_testkit::{Scratch, run, wait_for};
use serde_json::json;

use super::{Client, Server};
use crate::cli::atoll;
use crate::harness::{DEADLINE, binary};

fn stdout_of(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Microseconds between two timestamps of a response.
fn between(earlier: &serde_json::Value, later: &serde_json::Value) -> i64 {
    let time = |value: &serde_json::Value| -> i64 {
        let mut date = std::process::Command::new("date");
        let date = run(date.args(["-u", "+%s%6N", "-d", value.as_str().unwrap()]));
        stdout_of(&date).trim().parse().unwrap()
    };
    time(later) - time(earlier)
}

async fn gone(client: &Client, id: &str) {
    let path = format!("/sandboxes/{id}");
    let waiting = async {
        while client.get(&path).await.status != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(DEADLINE, waiting).await;
    assert!(done.is_ok(), "{id} stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn config_file_sets_options_missing_on_the_command_line() {
    let scratch = Scratch::new();
    let file = scratch.join("atoll.toml");
    std::fs::write(&file, "listen = \"127.0.0.1:1\"\ndev = true\n").unwrap();
    let server = Server::start_with(&["--config", file.to_str().unwrap()]).await;
    let client = server.client();
    assert_eq!(client.with_key(None).get("/keys").await.status, 200);
    server.close().await;
    let file = file.to_str().unwrap();
    let shown = run(&mut atoll(&[
        "serve",
        "--config",
        file,
        "--on-exit",
        "destroy",
        "--print-config",
    ]));
    let shown = stdout_of(&shown);
    for line in [
        "listen = \"127.0.0.1:1\"",
        "dev = true",
        "on-exit = \"destroy\"",
        "stopped-retention = \"30d\"",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    std::fs::write(file, "listen = \"127.0.0.1:1\"\nlissten = 3\n").unwrap();
    let refused = atoll(&["serve", "--config", file]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        text.contains("line 2") && text.contains("lissten"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_on_exit_destroy_leaves_nothing() {
    let server = Server::start_with(&["--on-exit", "destroy"]).await;
    let client = server.client();
    let running = client.sandbox(&json!({ "timeout": 0 })).await;
    let stopped = client.sandbox(&json!({ "timeout": 0 })).await;
    client
        .post(&format!("/sandboxes/{stopped}/stop"), &json!({}))
        .await;
    let begun = json!({ "cmd": "sleep 600", "background": true });
    client
        .post(&format!("/sandboxes/{running}/commands"), &begun)
        .await;
    let sandboxes = server.data().join("sandboxes");
    let left = || std::fs::read_dir(&sandboxes).unwrap().count();
    assert!(left() >= 2);
    let mut server = server;
    server.end();
    assert_eq!(left(), 0);
    // The history has the commands.
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.get("/sandboxes").await.array().len(), 0);
    let history = client.get("/sessions").await.array();
    assert_eq!(history.len(), 2);
    assert!(
        history
            .iter()
            .all(|session| session["deletedAt"].is_string()),
        "{history:?}"
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_shutdown_completes_pending_requests() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/commands");
    let (asking, place) = (client.clone(), path.clone());
    let line = json!({ "cmd": "touch ~/begun; sleep 2; echo answered" });
    let waiting = tokio::spawn(async move { asking.post(&place, &line).await });
    client
        .line(&id, "until [ -e ~/begun ]; do sleep 0.01; done")
        .await;
    let begin = std::time::Instant::now();
    tokio::task::block_in_place(|| server.end());
    // The shutdown waited for the response.
    let answer = tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer.json()["stdout"], "answered\n", "{answer:?}");
    assert!(begin.elapsed() < DEADLINE, "{:?}", begin.elapsed());
    server.kill_and_start();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_database_stops_the_start_without_changes() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo kept > ~/f").await;
    server.end();
    let records = server.data().join("atoll.db");
    let good = std::fs::read(&records).unwrap();
    let broken = vec![b'x'; good.len()];
    std::fs::write(&records, &broken).unwrap();
    let mut serve = std::process::Command::new(binary());
    serve
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            "off",
        ])
        .arg("--data-dir")
        .arg(server.data())
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::harness::data().join("templates"),
        );
    let refused =
        tokio::task::block_in_place(|| atoll_testkit::run_within(&mut serve, DEADLINE, b""));
    assert!(!refused.status.success(), "{refused:?}");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(stderr.contains("database"), "{stderr}");
    assert!(std::fs::read(&records).unwrap() == broken);
    // After the records were put back, the sandbox is available and continues.
    std::fs::write(&records, &good).unwrap();
    server.kill_and_start();
    server.assert_continues(&id).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_start_logs_no_key_and_warns_off_loopback() {
    let server = Server::start().await;
    let secret = server.client().key.unwrap();
    // The log of test servers goes to a pipe and to a file.
    assert!(!server.log().contains(&secret));
    assert!(!server.log().contains("unencrypted"), "{}", server.log());
    server.close().await;
    let scratch = Scratch::new();
    let file = scratch.join("atoll.toml");
    std::fs::write(&file, "listen = \"0.0.0.0:0\"\nmetrics-listen = \"off\"\n").unwrap();
    crate::harness::private(&scratch.join("data"));
    let mut serve = std::process::Command::new(binary());
    serve
        .args(["serve", "--config", file.to_str().unwrap(), "--data-dir"])
        .arg(scratch.join("data"))
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::harness::data().join("templates"),
        )
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut stdout = String::new();
    while !stdout.contains("try ") {
        stdout += &lines.next().unwrap().unwrap();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("unencrypted"), "{stderr}");
    let secret = std::fs::read_to_string(scratch.join("data/admin.key")).unwrap();
    assert!(
        !stdout.contains(secret.trim()) && !stdout.contains("atl_"),
        "{stdout}"
    );
    assert!(!stderr.contains(secret.trim()), "{stderr}");
    let facts = atoll_jail::facts::Facts::read();
    let data = scratch.join("data");
    let tag = std::fs::read_to_string(data.join("tag")).unwrap();
    wait_for("the instance to be dead", DEADLINE, || {
        let below = atoll_worker::instance::Scope::Below(&data);
        let collected = atoll_worker::instance::collect(below, &facts).unwrap();
        collected.instances.contains(&tag)
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_sandboxes_are_deleted_after_their_retention() {
    let mut server = Server::start().await;
    let client = server.client();
    let old = client.sandbox(&json!({ "timeout": 0 })).await;
    let other = client.sandbox(&json!({ "timeout": 0 })).await;
    let running = client.get(&format!("/sandboxes/{old}")).await.json();
    assert!(running["deleteAt"].is_null());
    for id in [&old, &other] {
        let stopped = client
            .post(&format!("/sandboxes/{id}/stop"), &json!({}))
            .await
            .json();
        let month = 30 * 24 * 3_600_000_000;
        assert_eq!(between(&stopped["stoppedAt"], &stopped["deleteAt"]), month);
        assert!(stopped["endAt"].is_null());
    }
    // A restarted sandbox is excluded.
    let started = client
        .post(&format!("/sandboxes/{other}/start"), &json!({}))
        .await
        .json();
    assert!(started["deleteAt"].is_null());
    // The new setting also applies to sandboxes that were stopped before; unchanged sandboxes get no event.
    server.kill_and_start();
    let client = server.client();
    let last = |events: Vec<serde_json::Value>| events.last().unwrap()["type"].clone();
    let events = client
        .get(&format!("/sandboxes/{old}/events"))
        .await
        .array();
    assert_eq!(last(events), "sandbox.stopped");
    server.kill_and_start_with(&["--stopped-retention", "1s"]);
    let client = server.client();
    gone(&client, &old).await;
    let files = server.data().join("sandboxes").join(&old);
    wait_for("its files to be gone", DEADLINE, || !files.exists());
    assert_eq!(client.line(&other, "echo on").await, "on\n");
    client
        .post(&format!("/sandboxes/{other}/stop"), &json!({}))
        .await;
    gone(&client, &other).await;
    // A retention of 0 disables deletion.
    server.kill_and_start_with(&["--stopped-retention", "0"]);
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let stopped = client
        .post(&format!("/sandboxes/{id}/stop"), &json!({}))
        .await;
    assert!(stopped.json()["deleteAt"].is_null());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_memory_and_disk_reserves_refuse_creates() {
    let mut server = Server::start().await;
    let client = server.client();
    let stopped = client.sandbox(&json!({ "timeout": 0 })).await;
    let running = client.sandbox(&json!({ "timeout": 0 })).await;
    client
        .post(&format!("/sandboxes/{stopped}/stop"), &json!({}))
        .await;
    for (flag, status, code, wait) in [
        ("--memory-reserve", 503, "NO_CAPACITY", Some("5")),
        ("--disk-reserve", 507, "DISK_FULL", None),
    ] {
        server.kill_and_start_with(&[flag, "1000T"]);
        let client = server.client();
        for path in [
            "/sandboxes".to_owned(),
            format!("/sandboxes/{stopped}/start"),
        ] {
            let refused = client.post(&path, &json!({})).await;
            assert_eq!(
                (refused.status, refused.refusal().1.as_str()),
                (status, code)
            );
            assert!(refused.json()["remedy"].is_string(), "{refused:?}");
            let header = refused.headers.get("retry-after");
            assert_eq!(header.map(|header| header.to_str().unwrap()), wait);
        }
        // Refused requests leave nothing behind, and existing sandboxes continue.
        assert_eq!(client.get("/sandboxes").await.array().len(), 2);
        let path = format!("/sandboxes/{stopped}");
        assert_eq!(client.get(&path).await.json()["state"], "stopped");
        assert_eq!(client.line(&running, "echo on").await, "on\n");
    }
    server.kill_and_start_with(&[]);
    let client = server.client();
    let started = client
        .post(&format!("/sandboxes/{stopped}/start"), &json!({}))
        .await;
    assert_eq!(started.status, 200, "{started:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_applies_per_key() {
    let mut server = Server::start_with(&["--rate-limit", "5"]).await;
    let client = server.client();
    let made = client
        .post("/keys", &json!({ "name": "other" }))
        .await
        .json();
    let other = client.with_key(made["key"].as_str());
    let asking = (0..40).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { client.get("/sandboxes").await })
    });
    let mut refused = 0;
    for answer in asking.collect::<Vec<_>>() {
        let answer = answer.await.unwrap();
        if answer.status == 200 {
            continue;
        }
        refused += 1;
        assert_eq!(
            (answer.status, answer.refusal().1.as_str()),
            (429, "RATE_LIMITED")
        );
        assert_eq!(answer.headers["retry-after"], "1");
        assert!(answer.json()["remedy"].is_string());
    }
    assert!(refused > 0);
    assert_eq!(other.get("/sandboxes").await.status, 200);
    assert_eq!(client.get("/health").await.status, 200);
    let waiting = async {
        while client.get("/sandboxes").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap();
    server.kill_and_start_with(&[]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_open_at_most_twenty_terminals() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/pty");
    let created = client.count_created(&path, &json!({}), 40).await;
    assert_eq!(created, 20);
    let all = client.get(&path).await.array();
    assert_eq!(all.len(), 20);
    // A deleted terminal frees its place.
    let first = format!("{path}/{}", all[0]["ptyID"].as_str().unwrap());
    assert_eq!(client.delete(&first).await.status, 204);
    assert_eq!(client.post(&path, &json!({})).await.status, 201);
    // Commands do not count against the limit of terminals.
    assert_eq!(client.line(&id, "echo on").await, "on\n");
    server.close().await;
}

/// As systemd does with `KillMode=control-group`: every process in the unit's cgroup is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_service_cgroup_spares_sandboxes() {
    let cgroups = atoll_jail::facts::Facts::read().cgroups.v2.unwrap();
    let unit = cgroups.join(format!("test-unit-{}", std::process::id()));
    std::fs::create_dir(&unit).unwrap();
    let mut server = Server::start_in_group(&unit).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let begun = json!({ "cmd": "sleep 600", "background": true, "tag": "long" });
    client
        .post(&format!("/sandboxes/{id}/commands"), &begun)
        .await;
    let members = || std::fs::read_to_string(unit.join("cgroup.procs")).unwrap();
    wait_for("the server to be alone", DEADLINE, || {
        members() == format!("{}\n", server.pid())
    });
    std::fs::write(unit.join("cgroup.kill"), "1").unwrap();
    server.kill_and_start();
    let client = server.client();
    let command = client
        .get(&format!("/sandboxes/{id}/commands/tag:long"))
        .await;
    assert_eq!(command.json()["state"], "running");
    server.close().await;
    std::fs::remove_dir(&unit).unwrap();
}

#[test]
fn install_script_is_complete_and_keeps_edited_config() {
    let scratch = Scratch::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/install");
    let prefix = scratch.join("usr");
    let staged = scratch.join("staged");
    let install = || {
        let mut install = std::process::Command::new(&script);
        stdout_of(&run(install.args([&binary(), &staged, &prefix])))
    };
    let first = install();
    for path in first.lines() {
        assert!(Path::new(path).is_file(), "{path}");
    }
    let at = |path: &str| staged.join(path.trim_start_matches('/'));
    let placed = at(prefix.join("bin/atoll").to_str().unwrap());
    let config = at("/etc/atoll/atoll.toml");
    // The server accepts the example configuration.
    let mut show = std::process::Command::new(&placed);
    show.args(["serve", "--print-config", "--config"])
        .arg(&config);
    assert!(stdout_of(&run(&mut show)).contains("listen"));
    std::fs::write(&config, "dev = true\n").unwrap();
    install();
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "dev = true\n");
    assert!(at("/etc/atoll/atoll.toml.example").is_file());
    // systemd accepts the unit, and its command exists at the installed path.
    std::os::unix::fs::symlink(at(prefix.to_str().unwrap()), &prefix).unwrap();
    let unit = at("/etc/systemd/system/atoll.service");
    let mut verify = std::process::Command::new("systemd-analyze");
    let verified = verify
        .args(["verify", "--man=no"])
        .arg(&unit)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(
        verified.status.success() && !text.contains("atoll"),
        "{text}"
    );
}
