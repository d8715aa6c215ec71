//! Sandbox timeouts, and the action at the end of one.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, Server};
use crate::harness::DEADLINE;

pub async fn state(client: &Client, id: &str) -> Value {
    let answer = client.get(&format!("/sandboxes/{id}")).await;
    if answer.status == 404 {
        return "gone".into();
    }
    answer.json()["state"].clone()
}

/// Waits until a sandbox is in a state.
pub async fn becomes(client: &Client, id: &str, expected: &str) {
    let waiting = async {
        while state(client, id).await != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(DEADLINE, waiting).await;
    assert!(done.is_ok(), "{id} did not become {expected}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_sandbox_is_deleted_stopped_or_paused() {
    let server = Server::start().await;
    let client = server.client();
    let mut ids = Vec::new();
    for (ending, after) in [
        ("destroy", "gone"),
        ("stop", "stopped"),
        ("pause", "paused"),
    ] {
        let request = json!({ "timeout": 1, "onTimeout": ending });
        ids.push((client.sandbox(&request).await, after));
    }
    let long = client.sandbox(&json!({ "timeout": 0 })).await;
    for (id, after) in &ids {
        becomes(&client, id, after).await;
    }
    assert_eq!(state(&client, &long).await, "running");
    // Activity resumes the paused sandbox with an expired timeout: for a moment.
    let (paused, _) = &ids[2];
    let resumed = client
        .post(
            &format!("/sandboxes/{paused}/resume"),
            &json!({ "timeout": 600 }),
        )
        .await;
    assert_eq!(resumed.json()["state"], "running");
    assert!(resumed.json()["endAt"].is_string());
    assert_eq!(client.line(paused, "echo on").await, "on\n");
    // A timeout of 0 stays 0, and is not replaced by the remaining time.
    client
        .post(&format!("/sandboxes/{paused}/pause"), &json!({}))
        .await;
    let path = format!("/sandboxes/{paused}/resume");
    let resumed = client.post(&path, &json!({ "timeout": 0 })).await;
    assert!(resumed.json()["endAt"].is_null(), "{resumed:?}");
    // A restart is a stop and a start, in every state.
    let path = format!("/sandboxes/{paused}/restart");
    let restarted = client.post(&path, &json!({})).await;
    assert_eq!(restarted.json()["state"], "running", "{restarted:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_timeout_counts_from_now_and_holds_after_a_kill() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 600 })).await;
    let path = format!("/sandboxes/{id}");
    let before = client.get(&path).await.json()["endAt"].clone();
    let request = json!({ "timeout": 2 });
    let after = client
        .post(&format!("{path}/timeout"), &request)
        .await
        .json()["endAt"]
        .clone();
    assert!(after.as_str() < before.as_str(), "{before} {after}");
    server.kill_and_start();
    let client = server.client();
    assert!(
        ["running", "gone"]
            .map(Value::from)
            .contains(&state(&client, &id).await)
    );
    becomes(&client, &id, "gone").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn active_sandbox_does_not_become_idle() {
    let mut server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "idleTimeout": 3, "onIdle": "stop" });
    let (used, idle) = (
        client.sandbox(&request).await,
        client.sandbox(&request).await,
    );
    // A running command counts as activity.
    let begun = json!({ "cmd": "sleep 600", "background": true, "tag": "long" });
    let begun = client
        .post(&format!("/sandboxes/{used}/commands"), &begun)
        .await;
    assert_eq!(begun.status, 202);
    // This includes a command that an earlier server started.
    server.kill_and_start();
    let client = server.client();
    // Reading metadata does not count as activity.
    let asking = async {
        while state(&client, &idle).await != "stopped" {
            for what in ["commands", "metrics", "logs", "pty", "events"] {
                client.get(&format!("/sandboxes/{idle}/{what}")).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let stopped = tokio::time::timeout(DEADLINE, asking).await;
    assert!(stopped.is_ok(), "questions held it");
    assert_eq!(state(&client, &used).await, "running");
    let path = format!("/sandboxes/{used}/commands/tag:long/signal");
    assert_eq!(
        client.post(&path, &json!({ "signal": 9 })).await.status,
        204
    );
    becomes(&client, &used, "stopped").await;
    // Its files are kept.
    let started = client
        .post(&format!("/sandboxes/{idle}/start"), &json!({}))
        .await;
    assert_eq!(started.json()["state"], "running");
    server.close().await;
}

/// Microseconds of a time on the wire.
fn time(value: &Value) -> i64 {
    let time: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
    time.as_microsecond()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_end_resets_the_idle_timer() {
    let server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "idleTimeout": 2, "onIdle": "stop" });
    let id = client.sandbox(&request).await;
    // The command ends between two checks for running commands.
    let begun = json!({ "cmd": "sleep 3", "background": true });
    let begun = client
        .post(&format!("/sandboxes/{id}/commands"), &begun)
        .await;
    let exec = begun.json()["execID"].as_str().unwrap().to_owned();
    becomes(&client, &id, "stopped").await;
    let path = format!("/sandboxes/{id}/commands/{exec}");
    let ended = time(&client.get(&path).await.json()["endedAt"]);
    let stopped = time(&client.get(&format!("/sandboxes/{id}")).await.json()["stoppedAt"]);
    assert!(stopped - ended >= 2_000_000, "{}", stopped - ended);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keepalive_resets_the_idle_timer() {
    let server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "idleTimeout": 2, "onIdle": "stop" });
    let (kept, idle) = (
        client.sandbox(&request).await,
        client.sandbox(&request).await,
    );
    let keeping = async {
        while state(&client, &idle).await != "stopped" {
            let path = format!("/sandboxes/{kept}/keepalive");
            assert_eq!(client.post(&path, &json!({})).await.status, 200);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(DEADLINE, keeping).await.unwrap();
    assert_eq!(state(&client, &kept).await, "running");
    becomes(&client, &kept, "stopped").await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_restart_makes_no_sandbox_idle() {
    let mut server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "idleTimeout": 600, "onIdle": "destroy" });
    let used = client.sandbox(&request).await;
    server.end();
    // Started long ago, with activity until the server ended.
    server.sql("UPDATE sandboxes SET started_at = 1, created_at = 1");
    server.kill_and_start();
    let client = server.client();
    // Timeouts are checked together: when this sandbox is gone, all of them were checked.
    let other = client.sandbox(&json!({ "timeout": 1 })).await;
    becomes(&client, &other, "gone").await;
    assert_eq!(client.line(&used, "echo here").await, "here\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_sandbox_resumes_on_use_or_names_the_remedy() {
    let server = Server::start().await;
    let client = server.client();
    for (wakes, expected) in [(true, 200), (false, 409)] {
        let id = client.sandbox(&json!({ "autoResume": wakes })).await;
        let paused = client
            .post(&format!("/sandboxes/{id}/pause"), &json!({}))
            .await;
        assert_eq!(paused.json()["state"], "paused");
        assert!(paused.json()["endAt"].is_null());
        let path = format!("/sandboxes/{id}/commands");
        let run = client.post(&path, &json!({ "cmd": "echo on" })).await;
        assert_eq!(run.status, expected, "{run:?}");
        if !wakes {
            assert_eq!(run.refusal().1, "SANDBOX_PAUSED");
            assert!(run.json()["remedy"].as_str().unwrap().contains("resume"));
        }
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_deletes_succeeds() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let deletes: Vec<_> = (0..10)
        .map(|_| {
            let (client, path) = (client.clone(), format!("/sandboxes/{id}"));
            tokio::spawn(async move { client.delete(&path).await.status })
        })
        .collect();
    let mut statuses = Vec::new();
    for delete in deletes {
        statuses.push(delete.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses[0], 204, "{statuses:?}");
    assert!(
        statuses[1..].iter().all(|status| *status == 404),
        "{statuses:?}"
    );
    // The sandbox appears in the history.
    let history = client.get("/sessions").await.array();
    assert_eq!(history[0]["sandboxID"], id);
    assert!(history[0]["deletedAt"].is_string());
    server.close().await;
}
