//! Streams: keepalive messages, and every way in which a stream ends.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::calls::{Agent, Stream};
use crate::api::{Client, Server};
use crate::harness::DEADLINE;

/// Shorter than the server's timeout for a silent sandbox.
const AT_ONCE: Duration = Duration::from_secs(15);

/// The error of a stream: one envelope, the last, without an `end` before it.
async fn failure(stream: &mut Stream) -> (String, String) {
    let rest = stream.rest().await;
    let [(true, end)] = &rest[..] else {
        panic!("{rest:?}");
    };
    let text = |name: &str| end["error"][name].as_str().unwrap().to_owned();
    (text("code"), text("message"))
}

fn over() -> (String, String) {
    ("unavailable".into(), "The sandbox was not found".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_stream_sends_keepalives_at_the_requested_interval() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let often = [("keepalive-ping-interval", "1")];
    let (started, pid) = agent.start("exec sleep 600", &often).await;
    let process = json!({ "process": { "pid": pid } });
    let mut joined = agent
        .open("process.Process/Connect", &process, &often)
        .await;
    let (_, first) = joined.next().await.unwrap();
    assert_eq!(first, json!({ "event": { "start": { "pid": pid } } }));
    let place = json!({ "path": "/tmp" });
    let watch = agent.open("filesystem.Filesystem/WatchDir", &place, &often);
    let mut watch = watch.await;
    assert_eq!(watch.next().await.unwrap().1, json!({ "start": {} }));
    let event = json!({ "event": { "keepalive": {} } });
    for (mut stream, sign) in [
        (started, event.clone()),
        (joined, event),
        (watch, json!({ "keepalive": {} })),
    ] {
        for _ in 0..2 {
            let begin = Instant::now();
            assert_eq!(stream.next().await.unwrap(), (false, sign.clone()));
            // Buffered output arrives at once, without delay.
            assert!(begin.elapsed() < Duration::from_secs(10));
        }
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_at_its_deadline_fails_without_an_end_event() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let soon = [("connect-timeout-ms", "300")];
    let (mut stream, pid) = agent.start("exec sleep 600", &soon).await;
    let (code, message) = failure(&mut stream).await;
    assert_eq!(
        (code.as_str(), message.as_str()),
        ("deadline_exceeded", "context deadline exceeded")
    );
    // The process ended all the same, and its exit status is available for a while.
    let process = json!({ "process": { "pid": pid } });
    let mut again = agent.open("process.Process/Connect", &process, &[]).await;
    assert_eq!(again.next().await.unwrap().1["event"]["start"]["pid"], pid);
    assert_eq!(failure(&mut again).await.0, "deadline_exceeded");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_to_an_ended_process_returns_its_exit_status() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let (mut stream, pid) = agent.start("echo said; exit 3", &[]).await;
    let end = json!({ "exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3" });
    let ended = [
        (false, json!({ "event": { "end": end } })),
        (true, json!({})),
    ];
    assert_eq!(stream.rest().await, ended);
    let process = json!({ "process": { "pid": pid } });
    let mut again = agent.open("process.Process/Connect", &process, &[]).await;
    assert_eq!(again.next().await.unwrap().1["event"]["start"]["pid"], pid);
    assert_eq!(again.rest().await, ended);
    server.close().await;
}

/// Ends a sandbox in a way, while a command and a watch are listened to. Their connections break off: only then do E2B's
/// clients ask `/health`, and say that the sandbox was killed or reached its end of life.
async fn ends(client: &Client, act: impl AsyncFnOnce(&str)) {
    let agent = Agent::make(client).await;
    let (mut command, _) = agent.start("echo last words; exec sleep 600", &[]).await;
    let place = json!({ "path": "/tmp" });
    let watch = agent.open("filesystem.Filesystem/WatchDir", &place, &[]);
    let mut watch = watch.await;
    watch.next().await.unwrap();
    act(&agent.id).await;
    let words = json!({ "event": { "data": { "stdout": "bGFzdCB3b3Jkcwo=" } } });
    assert_eq!(command.until_broken_off().await, [(false, words)]);
    assert_eq!(watch.until_broken_off().await, []);
    let gone =
        json!({ "sandboxId": agent.id, "message": "The sandbox was not found", "code": 502 });
    let path = json!({ "path": "/tmp" });
    for answer in [
        agent.call("filesystem.Filesystem/Stat", &path).await,
        agent.ask("GET", "/health", &[], "").await,
    ] {
        assert_eq!((answer.status, answer.json()), (502, gone.clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_streams_are_aborted_when_their_sandbox_ends() {
    let server = Server::start().await;
    let client = server.client();
    let post = async |path: String, body: Value| {
        let answer = client.post(&path, &body).await;
        assert_eq!(answer.status, 204, "{answer:?}");
    };
    ends(&client, async |id| {
        client.delete(&format!("/e2b/sandboxes/{id}")).await;
    })
    .await;
    ends(&client, async |id| {
        post(
            format!("/e2b/sandboxes/{id}/timeout"),
            json!({ "timeout": 0 }),
        )
        .await;
    })
    .await;
    ends(&client, async |id| {
        post(
            format!("/e2b/sandboxes/{id}/pause"),
            json!({ "memory": false }),
        )
        .await;
    })
    .await;
    // A sandbox that resumes on the next request is not deleted, and `/health` reports that: its streams end with
    // an error.
    let lifecycle = json!({ "autoPause": true, "autoResume": { "enabled": true } });
    let agent = Agent::make_with(&client, lifecycle).await;
    let (mut stream, _) = agent.start("exec sleep 600", &[]).await;
    let path = format!("/e2b/sandboxes/{}/pause", agent.id);
    post(path, json!({ "memory": false })).await;
    assert_eq!(failure(&mut stream).await, over());
    assert_eq!(agent.ask("GET", "/health", &[], "").await.status, 204);
    // A process that is killed without its sandbox ends with the signal.
    let agent = Agent::make(&client).await;
    let (mut stream, _) = agent.start("kill -9 $$", &[]).await;
    let rest = stream.rest().await;
    assert_eq!(rest[0].1["event"]["end"]["status"], "signal: killed");
    assert_eq!(rest[1], (true, json!({})));
    server.close().await;
}

/// Sends requests in a loop until the sandbox is deleted, and reports each response. `slow` requests are in flight
/// most of the time.
async fn ask_until_gone(agent: &Agent, slow: bool, answered: &Notify) {
    loop {
        let answer = if slow {
            let request = json!({ "path": "/usr", "depth": 3 });
            agent.call("filesystem.Filesystem/ListDir", &request).await
        } else {
            let octets = [("content-type", "application/octet-stream")];
            agent.ask("POST", "/files?path=x", &octets, "x").await
        };
        if answer.status != 200 {
            let gone = (answer.status, answer.json()["message"].clone());
            assert_eq!(gone, (502, json!("The sandbox was not found")));
            return;
        }
        answered.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_calls_fail_as_not_found_when_their_sandbox_ends() {
    let server = Server::start().await;
    let client = server.client();
    for act in ["kill", "stop", "pause"] {
        let agent = Agent::make(&client).await;
        let answered = Notify::new();
        let askers = (0..6).map(|n| ask_until_gone(&agent, n % 2 == 0, &answered));
        let acting = async {
            answered.notified().await;
            let path = format!("/e2b/sandboxes/{}", agent.id);
            if act == "kill" {
                return client.delete(&path).await;
            }
            let memory = json!({ "memory": act == "pause" });
            client.post(&format!("{path}/pause"), &memory).await
        };
        let both = async { tokio::join!(join_all(askers), acting) };
        let (_, acted) = tokio::time::timeout(AT_ONCE, both).await.unwrap();
        assert_eq!(acted.status, 204, "{acted:?}");
    }
    server.close().await;
}

/// A response that has begun can only be aborted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_is_aborted_when_its_sandbox_is_paused() {
    const SIZE: usize = 1 << 30;
    let server = Server::start().await;
    let client = server.client();
    let agent = Agent::make(&client).await;
    let line = format!("truncate -s {SIZE} /tmp/large");
    agent.start(&line, &[]).await.0.rest().await;
    let mut body = agent.get("/files?path=/tmp/large").await.into_body();
    let path = format!("/e2b/sandboxes/{}/pause", agent.id);
    let paused = client.post(&path, &json!({})).await;
    assert_eq!(paused.status, 204, "{paused:?}");
    let broken = async {
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return read };
            read += frame.data_ref().map_or(0, Bytes::len);
        }
        panic!("it ended after {read} bytes");
    };
    let read = tokio::time::timeout(AT_ONCE, broken).await.unwrap();
    assert!(read < SIZE, "{read}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_output_fails_the_stream_with_data_loss() {
    let server = Server::start().await;
    let client = server.client();
    let agent = Agent::make(&client).await;
    // More than the retained output; a client that does not read blocks the command for a limited time only.
    let line = "head -c 150000000 /dev/zero; touch /tmp/written; exec sleep 600";
    let (mut stream, _) = agent.start(line, &[]).await;
    let written = async {
        let path = json!({ "path": "/tmp/written" });
        while agent.call("filesystem.Filesystem/Stat", &path).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let deadline = DEADLINE + Duration::from_mins(1);
    tokio::time::timeout(deadline, written).await.unwrap();
    let (code, message) = failure(&mut stream).await;
    assert_eq!(code, "data_loss");
    assert!(message.contains("bytes of output"), "{message}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_errors_use_the_format_of_the_called_api() {
    let mut server = Server::start_with(&["--rate-limit", "5"]).await;
    let client = server.client();
    let agent = Agent::make(&client).await;
    let mut refused = None;
    for _ in 0..1000 {
        let answer = agent.call("process.Process/List", &json!({})).await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &json!("resource_exhausted"))
    );
    let mut limited = Vec::new();
    for _ in 0..1000 {
        let request = json!({ "process": { "pid": 1 } });
        let mut stream = agent.open("process.Process/Connect", &request, &[]).await;
        assert_eq!(stream.status, 200);
        limited.push(failure(&mut stream).await.0);
        if limited.last().unwrap() == "resource_exhausted" {
            break;
        }
    }
    assert_eq!(limited.last().unwrap(), "resource_exhausted");
    // The same for requests with an API key.
    let mut refused = None;
    for _ in 0..1000 {
        let answer = client.get("/e2b/v2/sandboxes").await;
        if answer.status != 200 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &json!(429))
    );
    assert_eq!(refused.headers["retry-after"], "1");
    // An invalid key gets 401, however often it is sent.
    let invalid = client.with_key(Some("e2b_00"));
    assert_eq!(invalid.get("/e2b/v2/sandboxes").await.status, 401);
    // The cleanup must not be refused.
    server.kill_and_start_with(&[]);
    server.close().await;
}
