//! State transitions: what clients see during one, and the result when a step fails.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use atoll_testkit::wait_for;
use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::lifetimes::{becomes, state};
use super::{Client, Server};
use crate::harness::DEADLINE;
use crate::restart::keeper;

const JSON: (&str, &str) = ("content-type", "application/json");

/// The events of a sandbox, in order.
async fn events(client: &Client, id: &str) -> Vec<String> {
    let response = client.get(&format!("/sessions/{id}/events")).await.array();
    let kind = |event: &Value| event["type"].as_str().unwrap().replace("sandbox.", "");
    response.iter().map(kind).collect()
}

/// Starts a request in the background.
fn begin(client: &Client, method: &'static str, path: String) -> tokio::task::JoinHandle<u16> {
    let client = client.clone();
    tokio::spawn(async move { client.send(method, &path, &[], Bytes::new()).await.status })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_a_sandbox_that_is_stopping() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo kept > ~/f").await;
    let tag = std::fs::read_to_string(server.data().join("tag")).unwrap();
    let keeper = Pid::from_raw(keeper(&tag).unwrap()).unwrap();
    // Its PID 1 is not reaped meanwhile.
    kill_process(keeper, Signal::STOP).unwrap();
    let stop = begin(&client, "POST", format!("/sandboxes/{id}/stop"));
    becomes(&client, &id, "stopping").await;
    for word in ["state", "status"] {
        let path = format!("/sandboxes?{word}=stopping");
        let listed = client.get(&path).await.array();
        assert_eq!((listed.len(), &listed[0]["sandboxID"]), (1, &json!(id)));
    }
    let path = format!("/sandboxes/{id}/commands");
    let used = client.post(&path, &json!({ "cmd": "true" })).await;
    assert_eq!(used.refusal().1, "SANDBOX_STOPPED");
    let starts: Vec<_> = (0..5)
        .map(|_| begin(&client, "POST", format!("/sandboxes/{id}/start")))
        .collect();
    kill_process(keeper, Signal::CONT).unwrap();
    assert_eq!(stop.await.unwrap(), 200);
    for start in starts {
        assert_eq!(start.await.unwrap(), 200);
    }
    assert_eq!(client.line(&id, "cat ~/f").await, "kept\n");
    // Exactly one of them took effect.
    assert_eq!(
        events(&client, &id).await,
        ["created", "running", "stopping", "stopped", "running"]
    );
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let kinds = events(&client, &id).await;
    assert_eq!(kinds[5..], ["stopping", "deleted"]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_queued_behind_a_delete_find_no_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let tag = std::fs::read_to_string(server.data().join("tag")).unwrap();
    let keeper = Pid::from_raw(keeper(&tag).unwrap()).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    // Holds the sandbox's lock, so that the following requests queue in this order.
    let stop = begin(&client, "POST", format!("/sandboxes/{id}/stop"));
    becomes(&client, &id, "stopping").await;
    let delete = begin(&client, "DELETE", format!("/sandboxes/{id}"));
    // Requests on different connections have no order, so wait until the delete is queued.
    let path = format!("/sandboxes/{id}");
    let mut waiting = Vec::new();
    for (method, place, body) in [
        ("PATCH", String::new(), json!({ "metadata": { "a": "b" } })),
        ("POST", "/timeout".into(), json!({ "timeout": 60 })),
        ("POST", "/start".into(), json!({})),
        ("POST", "/pause".into(), json!({})),
    ] {
        let (client, path) = (client.clone(), format!("{path}{place}"));
        waiting.push(tokio::spawn(async move {
            let answer = client.send(method, &path, &[JSON], body.to_string()).await;
            (answer.status, method, place)
        }));
    }
    kill_process(keeper, Signal::CONT).unwrap();
    assert_eq!(stop.await.unwrap(), 200);
    assert_eq!(delete.await.unwrap(), 204);
    for answer in waiting {
        let (status, method, place) = answer.await.unwrap();
        // Requests that were accepted before the delete completed as usual.
        assert!(
            matches!(status, 200 | 404 | 409),
            "{method} {place} {status}"
        );
    }
    let kinds = events(&client, &id).await;
    let deleted = kinds.iter().filter(|kind| *kind == "deleted").count();
    assert_eq!(deleted, 1, "{kinds:?}");
    assert_eq!(kinds.last().unwrap(), "deleted", "{kinds:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_all_apply_and_a_failed_one_does_not() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let other = client
        .sandbox(&json!({ "timeout": 0, "alias": "taken" }))
        .await;
    let path = format!("/sandboxes/{id}");
    let patch = |body: Value| {
        let (client, path) = (client.clone(), path.clone());
        tokio::spawn(async move {
            let answer = client.send("PATCH", &path, &[JSON], body.to_string()).await;
            (answer.status, answer.json())
        })
    };
    for round in 1..=10_u32 {
        let changes = [
            json!({ "onTimeout": if round % 2 == 0 { "stop" } else { "pause" } }),
            json!({ "idleTimeout": 1000 + round }),
            json!({ "memoryMB": 512 + round }),
            json!({ "pids": 100 + round }),
            json!({ "alias": format!("round-{round}") }),
        ];
        let changes = changes.map(&patch);
        for change in changes {
            let (status, body) = change.await.unwrap();
            assert_eq!(status, 200, "{body}");
        }
        let info = client.get(&path).await.json();
        let expected = if round % 2 == 0 { "stop" } else { "pause" };
        assert_eq!(info["onTimeout"], expected, "{info}");
        assert_eq!(info["idleTimeout"], 1000 + round, "{info}");
        assert_eq!(info["memoryMB"], 512 + round, "{info}");
        assert_eq!(info["pids"], 100 + round, "{info}");
        assert_eq!(info["alias"], format!("round-{round}"), "{info}");
    }
    // The alias is in use, so the size is not changed either.
    let before = client.get(&path).await.json();
    let (status, body) = patch(json!({ "alias": "taken", "pids": 77 }))
        .await
        .unwrap();
    assert_eq!((status, &body["code"]), (409, &json!("CONFLICT")));
    assert_eq!(client.get(&path).await.json(), before);
    let ceiling = client
        .line(&id, "cat /sys/fs/cgroup/pids.max 2>/dev/null || echo 110")
        .await;
    assert_eq!(ceiling.trim(), "110");
    assert_eq!(state(&client, &other).await, "running");
    server.close().await;
}

/// Locks the server's database, so that no write succeeds until this is dropped.
fn hold(server: &Server) -> impl Drop {
    struct Holder(std::process::Child);
    impl Drop for Holder {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            assert!(self.0.wait().unwrap().success());
        }
    }
    let program = "import sqlite3, sys
records = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
records.execute('BEGIN IMMEDIATE')
print(flush=True)
sys.stdin.read()";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", program]);
    python.arg(server.data().join("atoll.db"));
    let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
    let mut child = python.stdin(stdin).stdout(stdout).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    Holder(child)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_during_a_pause_resumes_the_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let record = server.data().join(format!("sandboxes/{id}/record.json"));
    let holder = hold(&server);
    let pause = begin(&client, "POST", format!("/sandboxes/{id}/pause"));
    wait_for("that it stands still", DEADLINE, || {
        std::fs::read_to_string(&record).is_ok_and(|record| record.contains("\"paused\""))
    });
    // The server has not updated the row yet.
    assert_eq!(state(&client, &id).await, "running");
    let mut look = begin(&client, "GET", format!("/sandboxes/{id}/files/stat?path=."));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut look).await;
    assert!(early.is_err(), "answered {early:?} before it was paused");
    drop(holder);
    assert_eq!(pause.await.unwrap(), 200);
    assert_eq!(look.await.unwrap(), 200);
    assert_eq!(state(&client, &id).await, "running");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_pause_write_leaves_the_sandbox_running() {
    let server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "autoResume": false });
    let id = client.sandbox(&request).await;
    server.sql(
        "CREATE TRIGGER no BEFORE UPDATE ON sandboxes WHEN NEW.state = 'paused' \
         BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    let path = format!("/sandboxes/{id}/pause");
    let refused = client.post(&path, &json!({})).await;
    assert_eq!(refused.refusal().1, "INTERNAL", "{refused:?}");
    assert_eq!(client.line(&id, "echo on").await, "on\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_with_a_failed_last_write_leaves_nothing() {
    let server = Server::start().await;
    let client = server.client();
    server.sql(
        "CREATE TRIGGER no BEFORE UPDATE ON sandboxes WHEN NEW.state = 'running' \
         BEGIN SELECT RAISE(ABORT, 'not now'); END",
    );
    let again = [JSON, ("idempotency-key", "once")];
    let body = json!({ "timeout": 0 }).to_string();
    let create = || client.send("POST", "/sandboxes", &again, body.clone());
    for _ in 0..2 {
        let refused = tokio::time::timeout(DEADLINE, create()).await.unwrap();
        assert_eq!(refused.refusal().1, "INTERNAL", "{refused:?}");
        assert_eq!(client.get("/sandboxes").await.array(), Vec::<Value>::new());
    }
    server.sql("DROP TRIGGER no");
    let made = create().await;
    assert_eq!(made.status, 201, "{made:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_create_is_reported_as_failed() {
    let server = Server::start().await;
    let client = server.client();
    let tag = std::fs::read_to_string(server.data().join("tag")).unwrap();
    // The keeper creates sandboxes; there is no warm one for a template that no request has used yet.
    let keeper = Pid::from_raw(keeper(&tag).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    let failed = async {
        loop {
            client.post("/sandboxes", &json!({})).await;
            let failed = client.get("/sessions?state=failed").await.array();
            if let Some(session) = failed.into_iter().next() {
                return session;
            }
        }
    };
    let session = tokio::time::timeout(DEADLINE, failed).await.unwrap();
    let id = session["sandboxID"].as_str().unwrap();
    let kinds = events(&client, id).await;
    assert_eq!(kinds, ["created", "failed", "deleted"]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_interrupted_by_a_kill_gets_the_full_timeout() {
    let mut server = Server::start_with(&["--stopped-retention", "1h"]).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 600 })).await;
    // State of a start that has claimed its quota and runs, before the row is updated.
    server.end();
    server
        .sql("UPDATE sandboxes SET state = 'creating', started_at = 5, stopped_at = 6, end_at = 7");
    server.kill_and_start();
    let client = server.client();
    let info = client.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(info["state"], "running", "{info}");
    assert!(info["stoppedAt"].is_null(), "{info}");
    assert!(info["startedAt"].as_str().unwrap() > "2000", "{info}");
    assert!(
        info["endAt"].as_str() > info["startedAt"].as_str(),
        "{info}"
    );
    assert_eq!(client.line(&id, "echo on").await, "on\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alias_is_unique_per_org() {
    let server = Server::start().await;
    let (one, two) = (server.client(), server.stranger().await);
    // Which of the two is found first differs from alias to alias.
    let mut both = Vec::new();
    for round in 0..8 {
        let request = json!({ "timeout": 0, "alias": format!("web-{round}") });
        both.push((one.sandbox(&request).await, two.sandbox(&request).await));
    }
    for (round, (mine, theirs)) in both.iter().enumerate() {
        let path = format!("/sandboxes/web-{round}");
        assert_eq!(one.get(&path).await.json()["sandboxID"], **mine);
        assert_eq!(two.get(&path).await.json()["sandboxID"], **theirs);
    }
    for (_, theirs) in &both {
        assert_eq!(
            two.delete(&format!("/sandboxes/{theirs}")).await.status,
            204
        );
    }
    server.close().await;
}
