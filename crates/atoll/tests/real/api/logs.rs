//! The combined output log of all commands of a sandbox.

use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::{Client, Server};
use crate::harness::DEADLINE;

/// Streams and texts of lines.
fn streams_and_texts(lines: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |line: &Value| (text(&line["stream"]), text(&line["text"]));
    lines.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_page_through_all_output_across_restarts() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}");
    client.line(&id, "echo one; echo two").await;
    client.line(&id, "echo bad >&2").await;
    client.post(&format!("{path}/pty"), &json!({})).await;
    server.kill_and_start();
    let client = server.client();
    client
        .line(&id, "head -c 40000 /dev/zero | tr '\\0' x")
        .await;
    for step in ["stop", "start"] {
        client.post(&format!("{path}/{step}"), &json!({})).await;
    }
    client.line(&id, "printf end").await;

    let all = client.get(&format!("{path}/logs")).await;
    assert!(!all.headers.contains_key("x-next-cursor"));
    let all = all.array();
    let expected = [
        ("stdout", "one\n".to_owned()),
        ("stdout", "two\n".to_owned()),
        ("stderr", "bad\n".to_owned()),
        ("stdout", "x".repeat(16 << 10)),
        ("stdout", "x".repeat(16 << 10)),
        ("stdout", "x".repeat(40_000 - (32 << 10))),
        ("stdout", "end".to_owned()),
    ];
    let expected = expected.map(|(stream, text)| (stream.to_owned(), text));
    assert_eq!(streams_and_texts(&all), expected);
    assert_eq!(all[0]["execID"], all[1]["execID"]);
    assert_ne!(all[1]["execID"], all[2]["execID"]);
    assert!(all[0]["startedAt"].as_str() < all[2]["startedAt"].as_str());
    // Each command is listed once.
    assert_eq!(
        client.get(&format!("{path}/commands")).await.array().len(),
        5
    );

    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client
            .get(&format!("{path}/logs?limit=2&after={cursor}"))
            .await;
        pages.extend(page.array());
        match page.headers.get("x-next-cursor") {
            Some(next) => cursor = next.to_str().unwrap().to_owned(),
            None => break,
        }
    }
    assert_eq!(pages, all);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followed_logs_resume_and_end_with_the_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}");
    let begun = json!({ "cmd": "echo begun; cat", "background": true, "openStdin": true });
    let begun = client.post(&format!("{path}/commands"), &begun).await;
    let slow = begun.json()["execID"].as_str().unwrap().to_owned();
    let mut events = Events::open(&client, &format!("{path}/logs?follow=true"), None).await;
    assert_eq!(events.next().await.unwrap().1, "begun\n");
    // Output of a later command appears although the first still runs.
    client.line(&id, "echo second").await;
    assert_eq!(events.next().await.unwrap().1, "second\n");
    let stdin = format!("{path}/commands/{slow}/stdin");
    client.send("POST", &stdin, &[], "more\n").await;
    let (cursor, text) = events.next().await.unwrap();
    assert_eq!(text, "more\n");
    drop(events);
    // Output written without a follower, without duplicates.
    client
        .send("POST", &format!("{stdin}?offset=5"), &[], "later\n")
        .await;
    client.line(&id, "echo third").await;
    let path_of_logs = format!("{path}/logs?follow=true");
    let mut events = Events::open(&client, &path_of_logs, Some(&cursor)).await;
    let mut rest = [
        events.next().await.unwrap().1,
        events.next().await.unwrap().1,
    ];
    rest.sort();
    assert_eq!(rest, ["later\n", "third\n"]);
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(events.next().await, None);
    server.close().await;
}

/// Server-sent events of a log.
struct Events {
    body: hyper::body::Incoming,
    text: String,
}

impl Events {
    async fn open(client: &Client, path: &str, last: Option<&str>) -> Self {
        let headers: Vec<_> = last
            .map(|last| ("last-event-id", last))
            .into_iter()
            .collect();
        let response = client.open("GET", path, &headers, "".into()).await;
        assert_eq!(response.status(), 200);
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// Returns the cursor and the line; `None` at the end.
    async fn next(&mut self) -> Option<(String, String)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().to_owned()
                };
                let (cursor, data) = (field("id: "), field("data: "));
                self.text = self.text.split_off(self.text.len() - rest.len());
                let data: Value = serde_json::from_str(&data).unwrap();
                if let Some(text) = data["text"].as_str() {
                    return Some((cursor, text.to_owned()));
                }
                continue;
            }
            let frame = tokio::time::timeout(DEADLINE, self.body.frame());
            let frame = frame.await.expect("an event, or the end")?;
            let bytes = frame.unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }
}
