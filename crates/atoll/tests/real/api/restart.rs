//! A server that is killed loses nothing that a response has confirmed.

use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::{Client, Server};

/// Reads server-sent events until the command's end or until the server is gone: bytes, and the last position.
pub(super) async fn follow(
    client: &Client,
    path: &str,
    output: &mut Vec<u8>,
    after: &mut u64,
) -> bool {
    follow_until(client, path, output, after, |_| false).await
}

/// The same, until the output suffices.
pub(super) async fn follow_until(
    client: &Client,
    path: &str,
    output: &mut Vec<u8>,
    after: &mut u64,
    enough: impl Fn(&[u8]) -> bool,
) -> bool {
    let path = format!("{path}?encoding=base64&after={after}");
    let opened = client.try_open("GET", &path, &[], bytes::Bytes::new());
    let Ok(answer) = opened.await else {
        return false;
    };
    assert_eq!(answer.status(), 200);
    let mut body = answer.into_body();
    let mut text = String::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| {
                let line = event.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim().to_owned()
            };
            let kind = field("event:");
            if kind == "stdout" || kind == "stderr" {
                let data: Value = serde_json::from_str(&field("data:")).unwrap();
                assert_eq!(data["position"], *after, "neither a gap nor a repetition");
                output.extend(decode(data["base64"].as_str().unwrap()));
                *after = field("id:").parse().unwrap();
            }
            assert_ne!(kind, "gap");
            if kind == "exit" {
                return true;
            }
            if enough(output) {
                return false;
            }
            text = rest.to_owned();
        }
    }
    false
}

fn decode(text: &str) -> Vec<u8> {
    let digit = |letter: u8| -> u32 {
        match letter {
            b'A'..=b'Z' => u32::from(letter - b'A'),
            b'a'..=b'z' => u32::from(letter - b'a') + 26,
            b'0'..=b'9' => u32::from(letter - b'0') + 52,
            b'+' => 62,
            _ => 63,
        }
    };
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let known = four.iter().filter(|letter| **letter != b'=').count();
        let value = four
            .iter()
            .fold(0, |value, letter| value << 6 | digit(*letter));
        bytes.extend_from_slice(&value.to_be_bytes()[1..known]);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_resumes_after_kills_without_gap_or_repetition() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let line = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.05; done";
    let begun = json!({ "cmd": line, "background": true, "tag": "lines" });
    let begun = client
        .post(&format!("/sandboxes/{id}/commands"), &begun)
        .await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let path = "/sandboxes/web/commands/tag:lines/output";
    let (mut output, mut after) = (Vec::new(), 0);
    for _ in 0..4 {
        let client = server.client();
        let reading = follow(&client, path, &mut output, &mut after);
        // The command is running.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(300), reading).await;
        server.kill_and_start();
    }
    let client = server.client();
    assert!(follow(&client, path, &mut output, &mut after).await);
    let expected: Vec<String> = (0..3000).map(|number| format!("line {number}\n")).collect();
    let expected = expected.concat();
    assert!(
        output == expected.as_bytes(),
        "{} bytes of {}",
        output.len(),
        expected.len()
    );
    // All other fields are unchanged.
    let info = client.get("/sandboxes/web").await.json();
    assert_eq!(
        (&info["sandboxID"], &info["state"]),
        (&json!(id), &json!("running"))
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_shutdown_leaves_sandboxes_running() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo here > ~/f").await;
    server.end();
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.line(&id, "cat ~/f").await, "here\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_sandbox_is_reported_as_stopped_with_a_reason() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo here > ~/f").await;
    // The pid of PID 1 on the host.
    let host = std::fs::read_dir("/proc").unwrap().flatten().find(|entry| {
        let read =
            |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let first = read("status")
            .lines()
            .any(|line| line.starts_with("NSpid:") && line.split_whitespace().nth(2) == Some("1"));
        first && read("cgroup").contains(&id)
    });
    let pid: i32 = host.unwrap().file_name().to_str().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let path = format!("/sandboxes/{id}");
    let stopped = async {
        loop {
            let info = client.get(&path).await.json();
            if info["state"] == "stopped" {
                return info;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let info = tokio::time::timeout(crate::harness::DEADLINE, stopped)
        .await
        .unwrap();
    assert_eq!(info["reason"], "exited");
    let started = client.post(&format!("{path}/start"), &json!({})).await;
    assert_eq!(started.status, 200, "{started:?}");
    assert_eq!(client.line(&id, "cat ~/f").await, "here\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_create_returns_the_same_sandbox_after_a_kill() {
    let mut server = Server::start().await;
    let client = server.client();
    let body = json!({ "timeout": 0 }).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "one"),
    ];
    // A hundred concurrent requests create one sandbox.
    let creates: Vec<_> = (0..100)
        .map(|_| {
            let (client, body) = (client.clone(), body.clone());
            tokio::spawn(async move { client.send("POST", "/sandboxes", &headers, body).await })
        })
        .collect();
    let mut ids = std::collections::BTreeSet::new();
    for create in creates {
        let answer = create.await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        ids.insert(answer.json()["sandboxID"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), 1);
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    server.kill_and_start();
    let client = server.client();
    let answer = client.send("POST", "/sandboxes", &headers, body).await;
    assert!(ids.contains(answer.json()["sandboxID"].as_str().unwrap()));
    // A different request with the same key is rejected.
    let other = json!({ "timeout": 5 }).to_string();
    let refused = client.send("POST", "/sandboxes", &headers, other).await;
    assert_eq!(refused.refusal().1, "IDEMPOTENCY_MISMATCH");
    // A failed create stores no idempotent result.
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "two"),
    ];
    for _ in 0..2 {
        let wrong = json!({ "template": "no-such" }).to_string();
        let refused = client.send("POST", "/sandboxes", &headers, wrong).await;
        assert_eq!(refused.refusal().1, "UNKNOWN_TEMPLATE");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_command_runs_once_after_a_kill() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/commands");
    let cmd = "echo ran >> ~/runs; cat; until [ -e ~/go ]; do sleep 0.01; done; wc -l < ~/runs";
    let body = json!({ "cmd": cmd, "stdin": "in ", "timeout": 0 }).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "one"),
    ];
    let ask = |client: &Client| {
        let (client, path, body) = (client.clone(), path.clone(), body.clone());
        tokio::spawn(async move { client.try_send("POST", &path, &headers, body.into()).await })
    };
    // Many concurrent requests with the same key start one command.
    let first: Vec<_> = (0..20).map(|_| ask(&client)).collect();
    // A command is listed once its record is written; a command without a record would be started again.
    while client.get(&path).await.array().is_empty() {}
    server.kill_and_start();
    for one in first {
        assert!(one.await.unwrap().is_err());
    }
    let client = server.client();
    let later: Vec<_> = (0..20).map(|_| ask(&client)).collect();
    client.line(&id, "touch ~/go").await;
    let mut ids = std::collections::BTreeSet::new();
    for one in later {
        let answer = one.await.unwrap().unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["stdout"], "in 1\n");
        ids.insert(answer.json()["execID"].to_string());
    }
    assert_eq!(ids.len(), 1);
    // A different request with the same key is rejected.
    let other = json!({ "cmd": "true" }).to_string();
    let refused = client.send("POST", &path, &headers, other).await;
    assert_eq!(refused.refusal().1, "IDEMPOTENCY_MISMATCH");
    // A command that did not start stores no idempotent result.
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "two"),
    ];
    let wrong = json!({ "cmd": "/no/such", "args": [] }).to_string();
    for _ in 0..2 {
        let refused = client.send("POST", &path, &headers, wrong.clone()).await;
        assert_eq!(refused.refusal().1, "PROGRAM_NOT_FOUND");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_stay_ordered_after_a_kill() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    for verb in ["pause", "resume", "stop"] {
        let done = client
            .post(&format!("/sandboxes/{id}/{verb}"), &json!({}))
            .await;
        assert_eq!(done.status, 200, "{done:?}");
    }
    server.kill_and_start();
    let client = server.client();
    client
        .post(&format!("/sandboxes/{id}/start"), &json!({}))
        .await;
    let listed = client.get(&format!("/sandboxes/{id}/events")).await.array();
    let kinds: Vec<&str> = listed
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    let expected = [
        "created", "running", "paused", "running", "stopping", "stopped", "running",
    ];
    assert_eq!(kinds, expected.map(|kind| format!("sandbox.{kind}")));
    // The events as a stream, from the third one on, followed by new ones.
    let after = listed[1]["number"].as_i64().unwrap();
    let path = format!("/events?after={after}");
    let mut body = client
        .open("GET", &path, &[], bytes::Bytes::new())
        .await
        .into_body();
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let mut text = String::new();
    let reading = async {
        while !text.contains("sandbox.deleted") {
            let frame = body.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(crate::harness::DEADLINE, reading)
        .await
        .unwrap();
    let events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("event: sandbox."))
        .collect();
    let expected = [
        "paused", "running", "stopping", "stopped", "running", "stopping", "deleted",
    ];
    assert_eq!(events, expected);
    server.close().await;
}
