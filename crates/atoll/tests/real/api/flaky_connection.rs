//! A connection that breaks repeatedly: a client that resumes gets every byte exactly once.

use std::collections::BTreeMap;

use atoll_testkit::{Cutter, fnv64};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::restart::follow;
use super::{Client, Server};

/// Number of lines; a few megabytes.
const LINES: u64 = 200_000;

/// A server behind a bad line, and a sandbox.
async fn begin() -> (Server, Cutter, Client, Client, String) {
    begin_with(Cutter::new).await
}

/// The same, behind another kind of proxy.
async fn begin_with(
    line: impl Fn(&str, u64) -> Cutter,
) -> (Server, Cutter, Client, Client, String) {
    let server = Server::start().await;
    let direct = server.client();
    let cutter = line(&direct.address, 7);
    let client = Client {
        address: cutter.address(),
        key: direct.key.clone(),
    };
    let id = direct.sandbox(&json!({ "timeout": 0 })).await;
    (server, cutter, direct, client, id)
}

/// Starts a shell line with open standard input. Returns its path.
async fn start(direct: &Client, id: &str, line: &str) -> String {
    let path = format!("/sandboxes/{id}/commands");
    let begun = json!({ "cmd": line, "background": true, "openStdin": true });
    let begun = direct.post(&path, &begun).await.json();
    format!("{path}/{}", begun["execID"].as_str().unwrap())
}

/// Has both streams filled with numbers; where its output is.
async fn numbers(direct: &Client, id: &str) -> String {
    let line = format!("seq {LINES} & seq {LINES} >&2; wait");
    start(direct, id, &line).await + "/output"
}

/// Expected contents of each stream.
fn expected() -> Vec<u8> {
    let all: Vec<String> = (1..=LINES).map(|number| format!("{number}\n")).collect();
    all.concat().into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_sent_events_resume_after_disconnects() {
    let (server, cutter, direct, client, id) = begin().await;
    let path = numbers(&direct, &id).await;
    let (mut broken, mut after) = (Vec::new(), 0);
    while !follow(&client, &path, &mut broken, &mut after).await {}
    let (mut whole, mut after) = (Vec::new(), 0);
    assert!(follow(&direct, &path, &mut whole, &mut after).await);
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    assert_eq!(whole.len(), 2 * expected().len());
    assert_eq!(hash(&broken), hash(&whole));
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_frames_resume_after_disconnects() {
    let (server, cutter, direct, client, id) = begin().await;
    let path = numbers(&direct, &id).await;
    let mut streams = [Vec::new(), Vec::new()];
    let mut over = false;
    while !over {
        let after = streams[0].len() + streams[1].len();
        let (address, key) = (&client.address, client.key.clone().unwrap());
        let url = format!("ws://{address}{path}?after={after}&api_key={key}");
        let Ok((mut socket, _)) = tokio_tungstenite::connect_async(url).await else {
            continue;
        };
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(frame) = message else {
                continue;
            };
            let (kind, rest) = frame.split_first().unwrap();
            match kind {
                1 | 2 => streams[usize::from(kind - 1)].extend_from_slice(rest),
                kind => over |= *kind == 3,
            }
        }
    }
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    for stream in streams {
        assert_eq!(hash(&stream), hash(&expected()));
    }
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_stdin_writes_are_applied_once() {
    let (server, cutter, direct, client, id) = begin().await;
    let path = start(&direct, &id, "cat > ~/taken").await;
    let input = Bytes::from(expected());
    let mut taken = 0;
    while taken < input.len() {
        let part = input.slice(taken..input.len().min(taken + 20_000));
        let end = taken + part.len();
        let sent = format!("{path}/stdin?offset={taken}");
        // After a lost response the outcome is unknown: the request is repeated.
        if let Ok(answer) = client.try_send("POST", &sent, &[], part).await {
            assert_eq!(answer.status, 200, "{answer:?}");
            taken = answer.json()["taken"].as_u64().unwrap() as usize;
            assert!(taken <= end);
        }
    }
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    let closed = format!("{path}/stdin/close");
    assert_eq!(direct.post(&closed, &json!({})).await.status, 204);
    let done = direct.get(&format!("{path}/wait")).await.json();
    assert_eq!(done["exitCode"], 0, "{done}");
    let file = format!("/sandboxes/{id}/files?path=taken");
    assert_eq!(hash(&direct.get(&file).await.body), hash(&input));
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_create_makes_one_sandbox() {
    let (server, cutter, direct, client, _) = begin().await;
    for number in 0..30 {
        let key = format!("create-{number}");
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", key.as_str()),
        ];
        let body = Bytes::from_static(b"{\"timeout\":0}");
        loop {
            let sent = client.try_send("POST", "/sandboxes", &headers, body.clone());
            if let Ok(answer) = sent.await {
                assert_eq!(answer.status, 201, "{answer:?}");
                break;
            }
        }
    }
    assert!(cutter.cuts() > 1, "{} cuts", cutter.cuts());
    assert_eq!(direct.get("/sandboxes").await.array().len(), 31);
    drop(cutter);
    server.close().await;
}

/// Takes server-sent events, those behind a cursor, until the line breaks or one is the last: whether it was.
async fn listen(
    client: &Client,
    path: &str,
    cursor: &mut String,
    mut take: impl FnMut(&Value) -> bool,
) -> bool {
    let headers = [("last-event-id", cursor.clone())];
    let headers = headers
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let opened = client.try_open("GET", path, &headers, Bytes::new()).await;
    let Ok(answer) = opened else { return false };
    assert_eq!(answer.status(), 200);
    let (mut body, mut text) = (answer.into_body(), String::new());
    while let Some(Ok(frame)) = body.frame().await {
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            // Not a ping.
            if let Some(id) = field("id: ") {
                id.clone_into(cursor);
                if take(&serde_json::from_str(field("data: ").unwrap()).unwrap()) {
                    return true;
                }
            }
            text = rest.to_owned();
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_delivered_exactly_once() {
    let (server, cutter, direct, client, id) = begin_with(Cutter::hasty).await;
    // The events occur with and without a connected listener.
    let happening = tokio::spawn({
        let (direct, id) = (direct.clone(), id.clone());
        async move {
            for _ in 0..100 {
                for step in ["pause", "resume"] {
                    let path = format!("/sandboxes/{id}/{step}");
                    assert_eq!(direct.post(&path, &json!({})).await.status, 200);
                }
            }
            let path = format!("/sandboxes/{id}");
            assert_eq!(direct.delete(&path).await.status, 204);
        }
    });
    // All events arrive, however often the connection breaks.
    let all = async |client: &Client| {
        let (mut heard, mut cursor) = (Vec::new(), "0".to_owned());
        let mut take = |event: &Value| {
            heard.push(event.clone());
            event["type"] == "sandbox.deleted"
        };
        while !listen(client, "/events", &mut cursor, &mut take).await {}
        heard
    };
    let mut heard = vec![all(&client).await];
    happening.await.unwrap();
    while cutter.cuts() <= 10 {
        heard.push(all(&client).await);
    }
    let whole = all(&direct).await;
    assert!(whole.len() > 200, "{} events", whole.len());
    assert!(heard.iter().all(|heard| *heard == whole));
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followed_logs_resume_after_disconnects() {
    const FEW: u64 = 10_000;
    let (server, cutter, direct, client, id) = begin().await;
    let mut written = BTreeMap::new();
    for first in [1, FEW + 1] {
        let last = first + FEW - 1;
        let begun = start(&direct, &id, &format!("seq {first} {last}")).await;
        let exec = begun.rsplit('/').next().unwrap().to_owned();
        let lines: Vec<String> = (first..=last).map(|line| format!("{line}\n")).collect();
        written.insert(exec, (lines.concat(), String::new()));
    }
    let path = format!("/sandboxes/{id}/logs?follow=true");
    let mut cursor = String::new();
    let mut take = |line: &Value| {
        let exec = line["execID"].as_str().unwrap();
        let (_, text) = written.get_mut(exec).unwrap();
        assert_eq!(
            line["position"],
            text.len(),
            "neither a gap nor a repetition"
        );
        text.push_str(line["text"].as_str().unwrap());
        written.values().all(|(all, text)| text.len() >= all.len())
    };
    while !listen(&client, &path, &mut cursor, &mut take).await {}
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    for (all, text) in written.values() {
        assert_eq!(hash(text.as_bytes()), hash(all.as_bytes()));
    }
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranged_downloads_reassemble_the_file() {
    let (server, cutter, direct, client, id) = begin().await;
    let line = format!("seq {} > ~/numbers", 3 * LINES);
    direct.line(&id, &line).await;
    let path = format!("/sandboxes/{id}/files?path=numbers");
    let whole = direct.get(&path).await.body;
    let mut parts = Vec::new();
    while parts.len() < whole.len() {
        let range = format!("bytes={}-", parts.len());
        let headers = [("range", range.as_str())];
        let opened = client.try_open("GET", &path, &headers, Bytes::new()).await;
        let Ok(answer) = opened else { continue };
        assert_eq!(answer.status(), 206);
        let expected = format!("bytes {}-{}/{}", parts.len(), whole.len() - 1, whole.len());
        assert_eq!(answer.headers()["content-range"], expected);
        let mut body = answer.into_body();
        while let Some(Ok(frame)) = body.frame().await {
            parts.extend_from_slice(&frame.into_data().unwrap());
        }
    }
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    assert_eq!(hash(&parts), hash(&whole));
    drop(cutter);
    server.close().await;
}

/// In short, so that a failure can be read.
fn hash(bytes: &[u8]) -> (usize, u64) {
    (bytes.len(), fnv64(bytes))
}
