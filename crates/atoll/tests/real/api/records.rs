//! Records that a power cut left empty, truncated or stale. The row of a sandbox is enough to recover it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use atoll_testkit::{Scratch, run_within};
use serde_json::{Value, json};

use super::{Client, Server};
use crate::cli::{atoll, output_text};
use crate::harness::DEADLINE;
use crate::restart::reboot;

/// Waits until everything that was acknowledged is on the disk.
async fn settle(server: &Server) {
    let is_synced = |metrics: &str| {
        let mut ages = metrics
            .lines()
            .filter(|line| line.starts_with("atoll_unsynced_seconds{"));
        ages.all(|age| age.ends_with(" 0.0"))
    };
    let settled = async {
        while !is_synced(&server.metrics().await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, settled).await.unwrap();
}

/// Replaces a file by a new one: what has another name of the old file keeps it.
fn replace(directory: &Path, name: &str, text: &[u8]) {
    let (path, new) = (directory.join(name), directory.join("new"));
    fs::write(&new, text).unwrap();
    fs::rename(&new, &path).unwrap();
}

/// Kinds of damage that a power cut may do to a record.
const DAMAGES: [&str; 4] = ["empty", "both empty", "warm", "missing"];

fn damage(directory: &Path, damage: &str) {
    let text = fs::read(directory.join("record.json")).unwrap();
    let mut record: Value = serde_json::from_slice(&text).unwrap();
    record["pooled"] = true.into();
    record["spec"]["environment"] = json!({});
    let warm = serde_json::to_vec(&record).unwrap();
    let names: &[&str] = match damage {
        "empty" => &["record.json"],
        _ => &["record.json", "record.synced"],
    };
    for name in names {
        match damage {
            "missing" => fs::remove_file(directory.join(name)).unwrap(),
            "warm" => replace(directory, name, &warm),
            _ => replace(directory, name, b""),
        }
    }
}

async fn damaged_records(processes_live: bool) {
    let mut server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "envs": { "SECRET": "sesame" } });
    let mut ids = Vec::new();
    for _ in DAMAGES {
        let id = client.sandbox(&request).await;
        client.line(&id, "echo kept > ~/f").await;
        ids.push(id);
    }
    settle(&server).await;
    server.kill();
    let data = server.data();
    if !processes_live {
        let tag = fs::read_to_string(data.join("tag")).unwrap();
        reboot::restart(&data, &tag);
    }
    for (id, kind) in ids.iter().zip(DAMAGES) {
        damage(&data.join("sandboxes").join(id), kind);
    }
    server.kill_and_start();
    let client = server.client();
    for (id, kind) in ids.iter().zip(DAMAGES) {
        let path = format!("/sandboxes/{id}");
        let info = client.get(&path).await.json();
        // The last synced record replaces the emptied one.
        let has_record = kind == "empty";
        if has_record && processes_live {
            assert_eq!(info["state"], "running", "{kind}: {info}");
        } else {
            assert_eq!(info["state"], "stopped", "{kind}: {info}");
            assert_eq!(info["reason"], "host_restart", "{kind}: {info}");
            let started = client.post(&format!("{path}/start"), &json!({})).await;
            assert_eq!(started.status, 200, "{kind}: {started:?}");
        }
        let expected = if has_record {
            "kept sesame\n"
        } else {
            "kept\n"
        };
        let line = "echo $(cat ~/f) $SECRET";
        assert_eq!(client.line(id, line).await, expected, "{kind}");
        assert!(!data.join("orphaned").join(id).exists(), "{kind}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_are_recovered_after_a_restart_of_the_host() {
    damaged_records(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_are_recovered_while_the_processes_live() {
    damaged_records(true).await;
}

/// Moves the database with its log from one directory to another.
fn move_database(from: &Path, to: &Path) {
    for name in ["atoll.db", "atoll.db-wal", "atoll.db-shm"] {
        let _ = fs::remove_file(to.join(name));
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name)).unwrap();
            fs::remove_file(from.join(name)).unwrap();
        }
    }
}

/// The record's layer and variables.
fn recorded(directory: &Path) -> (Value, Value) {
    let text = fs::read(directory.join("record.json")).unwrap();
    let record: Value = serde_json::from_slice(&text).unwrap();
    (
        record["layer"].clone(),
        record["spec"]["environment"].clone(),
    )
}

async fn started(client: &Client, id: &str) -> Value {
    let path = format!("/sandboxes/{id}");
    let info = client.get(&path).await.json();
    assert_eq!(info["state"], "stopped", "{info}");
    let started = client.post(&format!("{path}/start"), &json!({})).await;
    assert_eq!(started.status, 200, "{started:?}");
    info
}

/// An older backup lacks the newest sandboxes: a server restored from it quarantines them. With the newer database
/// they return unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_missing_from_a_backup_return_unchanged() {
    let mut server = Server::start().await;
    let client = server.client();
    let scratch = Scratch::new();
    let (data, backup) = (server.data(), scratch.join("backup"));
    let newer = scratch.join("newer");
    fs::create_dir(&newer).unwrap();
    let run = |words: &[&str]| {
        let mut command = atoll(words);
        command.arg(&backup).arg("--data-dir").arg(&data);
        let output = tokio::task::block_in_place(|| run_within(&mut command, DEADLINE, b""));
        assert!(output.status.success(), "{}", output_text(&output));
    };
    run(&["backup"]);
    let request = json!({ "timeout": 0, "envs": { "SECRET": "sesame" } });
    let id = client.sandbox(&request).await;
    client.line(&id, "echo kept > ~/f").await;
    let before = recorded(&data.join("sandboxes").join(&id));
    assert_eq!(before.1["SECRET"], "sesame");
    server.end();
    move_database(&data, &newer);
    run(&["backup", "restore"]);
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.status, 404);
    assert!(data.join("orphaned").join(&id).exists());
    server.end();
    move_database(&newer, &data);
    server.kill_and_start();
    let client = server.client();
    let directory = data.join("sandboxes").join(&id);
    assert_eq!(recorded(&directory), before);
    let info = started(&client, &id).await;
    assert_eq!(info["reason"], "exited", "{info}");
    let line = "echo $(cat ~/f) $SECRET";
    assert_eq!(client.line(&id, line).await, "kept sesame\n");
    server.close().await;
}
