//! The control API without an SDK: requests of older clients and of E2B's command line, and concurrent callers.

use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Agent;
use crate::api::{Answer, Client, Server};
use crate::harness::DEADLINE;

/// Creates a sandbox and returns its id.
async fn make(client: &Client, more: Value) -> String {
    let mut request = json!({ "templateID": "base", "timeout": 100 });
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    let made = client.post("/e2b/v2/sandboxes", &request).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["sandboxID"].as_str().unwrap().to_owned()
}

async fn act(client: &Client, id: &str, act: &str, body: Value) -> Answer {
    let path = format!("/e2b/sandboxes/{id}/{act}");
    client.post(&path, &body).await
}

async fn info(client: &Client, id: &str) -> Value {
    client.get(&format!("/e2b/sandboxes/{id}")).await.json()
}

/// In how many seconds it ends.
async fn left(client: &Client, id: &str) -> i64 {
    let end = info(client, id).await["endAt"].as_str().unwrap().to_owned();
    let end: jiff::Timestamp = end.parse().unwrap();
    end.as_second() - jiff::Timestamp::now().as_second()
}

#[track_caller]
fn refused(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.json()["code"], status);
    assert!(answer.json()["message"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refreshes_only_extend_the_lifetime() {
    let server = Server::start().await;
    let client = server.client();
    let id = make(&client, json!({})).await;
    let before = info(&client, &id).await["endAt"].clone();
    for request in [json!({}), json!({ "duration": 5 })] {
        let answer = act(&client, &id, "refreshes", request).await;
        assert_eq!(answer.status, 204, "{answer:?}");
        assert_eq!(info(&client, &id).await["endAt"], before);
    }
    let answer = act(&client, &id, "refreshes", json!({ "duration": 3600 })).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert!((3500..=3600).contains(&left(&client, &id).await));
    let answer = act(&client, &id, "refreshes", json!({ "duration": 3601 })).await;
    refused(&answer, 400);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_clients_resume_paused_and_list_running_sandboxes() {
    let server = Server::start().await;
    let client = server.client();
    let (id, other) = (
        make(&client, json!({})).await,
        make(&client, json!({})).await,
    );
    refused(&act(&client, &id, "resume", json!({})).await, 409);
    assert!(left(&client, &id).await > 50, "a refusal changes nothing");
    assert_eq!(act(&client, &id, "pause", json!({})).await.status, 204);
    let running = client.get("/e2b/sandboxes").await;
    let ids = |answer: &Answer| -> Vec<Value> {
        let all = answer.array().into_iter();
        all.map(|one| one["sandboxID"].clone()).collect()
    };
    assert_eq!(ids(&running), [json!(other)]);
    let resumed = act(&client, &id, "resume", json!({})).await;
    assert_eq!(resumed.status, 201, "{resumed:?}");
    assert_eq!(resumed.json()["sandboxID"], id);
    assert!((5..=15).contains(&left(&client, &id).await));
    // The action at the timeout can be changed.
    assert_eq!(info(&client, &id).await["lifecycle"]["onTimeout"], "kill");
    assert_eq!(act(&client, &id, "pause", json!({})).await.status, 204);
    let request = json!({ "timeout": 60, "autoPause": true });
    assert_eq!(act(&client, &id, "resume", request).await.status, 201);
    assert_eq!(info(&client, &id).await["lifecycle"]["onTimeout"], "pause");

    let both = client.get("/e2b/v2/sandboxes").await;
    assert_eq!(both.array().len(), 2);
    assert_eq!(both.headers["x-total-running"], "2");
    let page = client.get("/e2b/v2/sandboxes?limit=1&state=running").await;
    assert_eq!(
        (page.array().len(), &page.headers["x-total-running"]),
        (1, &"2".parse().unwrap())
    );
    assert!(page.headers.contains_key("x-next-token"));
    let paused = client.get("/e2b/v2/sandboxes?state=paused").await;
    assert_eq!(paused.array().len(), 0);
    assert!(!paused.headers.contains_key("x-total-running"));
    for wrong in [
        "template=base:tag",
        "limit=0",
        "limit=101",
        "limit=x",
        "order=up",
        "nextToken=x",
        "state=gone",
        "startedAfter=yesterday",
    ] {
        let answer = client.get(&format!("/e2b/v2/sandboxes?{wrong}")).await;
        refused(&answer, 400);
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_reports_kind_and_time_and_traffic_resumes_both_kinds() {
    let server = Server::start().await;
    let client = server.client();
    for (memory, mode) in [(true, "full"), (false, "filesystem")] {
        let request = json!({
            "autoPause": true, "autoPauseMemory": memory, "autoResume": { "enabled": true },
        });
        let made = json!({ "templateID": "base", "timeout": 100 });
        let mut made = made.as_object().unwrap().clone();
        made.extend(request.as_object().unwrap().clone());
        let made = client.post("/e2b/v2/sandboxes", &made.into()).await.json();
        let agent = Agent::new(&client, &made);
        assert!(info(&client, &agent.id).await.get("pauseMode").is_none());
        let kept = agent.ask(
            "POST",
            "/files?path=kept",
            &[("content-type", "application/octet-stream")],
            "kept",
        );
        assert_eq!(kept.await.status, 200);
        let before = jiff::Timestamp::now();
        let ends = act(&client, &agent.id, "timeout", json!({ "timeout": 0 })).await;
        assert_eq!(ends.status, 204, "{ends:?}");
        let paused = async {
            loop {
                let info = info(&client, &agent.id).await;
                if info["state"] == "paused" {
                    return info;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let paused = tokio::time::timeout(DEADLINE, paused).await.unwrap();
        assert_eq!(paused["pauseMode"], mode);
        let end: jiff::Timestamp = paused["endAt"].as_str().unwrap().parse().unwrap();
        assert!(before <= end && end <= jiff::Timestamp::now(), "{end}");
        let own = client.get(&format!("/sandboxes/{}", agent.id)).await.json();
        assert_eq!(own.get("stoppedAt").is_some(), !memory, "{own}");
        let kept = agent.ask("GET", "/files?path=kept", &[], "").await;
        assert_eq!((kept.status, &kept.body[..]), (200, &b"kept"[..]));
        let awake = info(&client, &agent.id).await;
        assert_eq!(awake["state"], "running");
        assert!(awake.get("pauseMode").is_none());
        // The sandbox runs again, with a new timeout rather than the remaining time.
        assert!(left(&client, &agent.id).await > 60);
    }
    server.close().await;
}

/// Whichever way each of them wants it paused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_concurrent_pause_reports_already_paused() {
    let server = Server::start().await;
    let client = server.client();
    let id = make(&client, json!({})).await;
    let kinds = [(true, true), (true, false), (false, true), (false, false)];
    for (one, other) in kinds.into_iter().cycle().take(24) {
        let (one, other) = tokio::join!(
            act(&client, &id, "pause", json!({ "memory": one })),
            act(&client, &id, "pause", json!({ "memory": other }))
        );
        let (paused, late) = if one.status == 204 {
            (one, other)
        } else {
            (other, one)
        };
        assert_eq!(paused.status, 204, "{paused:?}");
        refused(&late, 409);
        let message = late.json()["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with("is already paused"), "{message}");
        let woken = act(&client, &id, "connect", json!({ "timeout": 200 })).await;
        assert_eq!(woken.status, 201, "{woken:?}");
    }
    server.close().await;
}

/// A connect that runs beside something else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_uses_the_sandbox_state_at_its_turn() {
    let server = Server::start().await;
    let client = server.client();
    for round in 0..10 {
        // Concurrently with a pause: the sandbox runs after both, or the pause came last.
        let id = make(&client, json!({})).await;
        let connect = json!({ "timeout": 200 });
        let (paused, connected) = tokio::join!(
            act(&client, &id, "pause", json!({})),
            act(&client, &id, "connect", connect.clone())
        );
        assert_eq!(paused.status, 204, "{paused:?}");
        match connected.status {
            // The connect came second, and resumed the sandbox.
            201 => {
                assert_eq!(info(&client, &id).await["state"], "running");
                assert!(left(&client, &id).await > 150);
            }
            // The connect came first.
            200 => assert_eq!(info(&client, &id).await["state"], "paused", "round {round}"),
            _ => panic!("{connected:?}"),
        }
        // Concurrently: one request resumes it, and none shortens its lifetime.
        let _ = act(&client, &id, "pause", json!({})).await;
        let (short, long) = tokio::join!(
            act(&client, &id, "connect", json!({ "timeout": 50 })),
            act(&client, &id, "connect", json!({ "timeout": 500 }))
        );
        let mut both = [short.status, long.status];
        both.sort_unstable();
        assert_eq!(both, [200, 201], "{short:?} {long:?}");
        assert!(left(&client, &id).await > 400, "round {round}");
        // Concurrently with a kill: the connect fails or succeeds, and the sandbox is deleted.
        let path = format!("/e2b/sandboxes/{id}");
        let (killed, connected) = tokio::join!(
            client.delete(&path),
            act(&client, &id, "connect", connect.clone())
        );
        assert_eq!(killed.status, 204, "{killed:?}");
        assert!([200, 404, 409].contains(&connected.status), "{connected:?}");
        refused(&client.get(&path).await, 404);
        refused(&act(&client, &id, "connect", connect).await, 404);
    }
    assert_eq!(client.get("/sandboxes").await.array().len(), 0);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_fields_are_refused_and_unknown_ones_logged() {
    let server = Server::start().await;
    let client = server.client();
    for (field, value) in [
        ("iam", json!({ "tokens": { "x": { "audience": "y" } } })),
        ("volumeMounts", json!([{ "name": "v", "path": "/v" }])),
        (
            "network",
            json!({ "rules": { "example.com": [{ "transform": {} }] } }),
        ),
        (
            "network",
            json!({ "egressProxy": { "address": "1.1.1.1:1" } }),
        ),
        ("network", json!({ "dnsServers": ["1.1.1.1"] })),
        ("network", json!({ "maskRequestHost": "x:${PORT}" })),
        ("network", json!({ "httpsPorts": [443] })),
        (
            "network",
            json!({ "allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"] }),
        ),
        ("network", json!({ "denyOut": ["example.com"] })),
    ] {
        let request = json!({ "templateID": "base", field: value });
        for version in ["", "/v2"] {
            let answer = client
                .post(&format!("/e2b{version}/sandboxes"), &request)
                .await;
            refused(&answer, 400);
        }
    }
    assert_eq!(client.get("/sandboxes").await.array().len(), 0);
    let agent = Agent::make(&client).await;
    let id = agent.id.as_str();
    for change in [
        json!({ "rules": { "example.com": [] } }),
        json!({ "egressProxy": { "address": "1.1.1.1:1" } }),
        json!({ "dnsServers": ["1.1.1.1"] }),
        json!({ "maskRequestHost": "x" }),
        json!({ "httpsPorts": [443] }),
        json!({ "allowPublicTraffic": true }),
        json!({ "allowPublicTraffic": false }),
    ] {
        let path = format!("/e2b/sandboxes/{id}/network");
        let kind = [("content-type", "application/json")];
        let answer = client.send("PUT", &path, &kind, change.to_string()).await;
        refused(&answer, 400);
    }
    for key in ["", "Upper", "under_score", &"x".repeat(256)] {
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", key),
        ];
        let request = r#"{"templateID":"base"}"#;
        let answer = client
            .send("POST", "/e2b/v2/sandboxes", &headers, request)
            .await;
        refused(&answer, 400);
    }
    let paused = act(&client, id, "pause", json!({ "requireHealthyGuest": true })).await;
    assert_eq!(paused.status, 204, "{paused:?}");
    assert_eq!(act(&client, id, "connect", json!({})).await.status, 201);
    assert!(!server.log().contains("unknown fields"));

    // Only the names are logged, in the line of the request.
    let request = json!({ "timeout": 100, "odd-body": "s3cret" });
    assert_eq!(act(&client, id, "connect", request).await.status, 200);
    let listed = client.get("/e2b/v2/sandboxes?odd-query=s3cret").await;
    assert_eq!(listed.array().len(), 1);
    let request = json!({ "path": "/tmp", "odd-message": "s3cret" });
    let found = agent.call("filesystem.Filesystem/Stat", &request).await;
    assert_eq!(found.status, 200, "{found:?}");
    let path = "/files?path=/etc/hostname&odd-file=s3cret";
    assert_eq!(agent.ask("GET", path, &[], "").await.status, 200);
    let log = server.log();
    for name in ["odd-body", "odd-query", "odd-message", "odd-file"] {
        let mut lines = log.lines().filter(|line| line.contains("unknown fields"));
        let line = lines.find(|line| line.contains(name));
        let line: Value =
            serde_json::from_str(line.unwrap_or_else(|| panic!("{name}: {log}"))).unwrap();
        assert!(line["span"]["request"].is_string(), "{line}");
    }
    assert!(!log.contains("s3cret"), "{log}");
    server.close().await;
}

/// Methods and paths of routes that are not implemented.
const LATER: &[(&str, &str)] = &[
    ("POST", "/sandboxes/ID/fork"),
    ("POST", "/sandboxes/ID/snapshots"),
    ("GET", "/snapshots"),
    ("POST", "/v3/templates"),
    ("GET", "/templates"),
    ("GET", "/templates/aliases/x"),
    ("DELETE", "/templates/x"),
    ("GET", "/volumes"),
    ("POST", "/volumes"),
    ("GET", "/secrets"),
    ("DELETE", "/secrets/x"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_routes_return_501_to_authorized_callers() {
    let server = Server::start().await;
    let client = server.client();
    let invalid = client.with_key(Some(&format!("e2b_{}", "0".repeat(64))));
    for (method, path) in LATER {
        let path = format!("/e2b{path}");
        refused(&invalid.send(method, &path, &[], "").await, 401);
        let answer = client.send(method, &path, &[], "").await;
        refused(&answer, 501);
        let message = answer.json()["message"].to_string();
        assert!(message.contains("does not support"), "{message}");
    }
    let request = json!({ "templateID": "code-interpreter-v1" });
    let answer = client.post("/e2b/v2/sandboxes", &request).await;
    refused(&answer, 501);
    assert!(
        answer.json()["message"]
            .to_string()
            .contains("code interpreter")
    );
    refused(&client.get("/e2b/nothing").await, 404);
    refused(&client.delete("/e2b/sandboxes").await, 405);
    server.close().await;
}
