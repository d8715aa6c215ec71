//! Authorization within a sandbox: only callers with its own token are allowed.

use std::process::Command;
use std::time::Duration;

use atoll_testkit::run;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::{Client, Server};
use crate::harness::DEADLINE;

/// Every route of E2B's daemon, but `/health`.
const ROUTES: &[(&str, &str)] = &[
    ("GET", "/files?path=/etc/hostname"),
    ("POST", "/files?path=x"),
    ("GET", "/envs"),
    ("GET", "/metrics"),
    ("POST", "/process.Process/List"),
    ("POST", "/process.Process/Start"),
    ("POST", "/process.Process/Connect"),
    ("POST", "/process.Process/Update"),
    ("POST", "/process.Process/SendInput"),
    ("POST", "/process.Process/StreamInput"),
    ("POST", "/process.Process/SendSignal"),
    ("POST", "/process.Process/CloseStdin"),
    ("POST", "/filesystem.Filesystem/Stat"),
    ("POST", "/filesystem.Filesystem/MakeDir"),
    ("POST", "/filesystem.Filesystem/Move"),
    ("POST", "/filesystem.Filesystem/ListDir"),
    ("POST", "/filesystem.Filesystem/Remove"),
    ("POST", "/filesystem.Filesystem/WatchDir"),
    ("POST", "/filesystem.Filesystem/CreateWatcher"),
    ("POST", "/filesystem.Filesystem/GetWatcherEvents"),
    ("POST", "/filesystem.Filesystem/RemoveWatcher"),
];

/// Creates a sandbox as E2B's clients do; returns its id and access token.
pub async fn sandbox(client: &Client) -> (String, String) {
    let request = json!({ "templateID": "base", "timeout": 60 });
    let made = client.post("/e2b/v2/sandboxes", &request).await;
    assert_eq!(made.status, 201, "{made:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let made = made.json();
    (text(&made["sandboxID"]), text(&made["envdAccessToken"]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sandbox_route_requires_its_own_token() {
    let server = Server::start().await;
    let client = server.client();
    let ((id, token), (_, other)) = (sandbox(&client).await, sandbox(&client).await);
    let key = client.key.clone().unwrap();
    for (method, path) in ROUTES {
        for shown in [None, Some(&other), Some(&key)] {
            let mut headers = vec![("e2b-sandbox-id", id.as_str())];
            headers.extend(shown.map(|shown| ("x-access-token", shown.as_str())));
            let answer = client.send(method, path, &headers, Bytes::new()).await;
            assert_eq!(answer.status, 401, "{method} {path} {shown:?} {answer:?}");
            assert_eq!(answer.json()["code"], 401);
        }
    }
    let headers = [("e2b-sandbox-id", id.as_str()), ("x-access-token", &token)];
    let answer = client.send("GET", "/envs", &headers, Bytes::new()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_limited_and_end_with_their_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let (id, token) = sandbox(&client).await;
    let headers = [
        ("e2b-sandbox-id", id.as_str()),
        ("x-access-token", &token),
        ("content-type", "application/json"),
    ];
    let call = async |name: &str, body: Value| {
        let path = format!("/filesystem.Filesystem/{name}");
        client.send("POST", &path, &headers, body.to_string()).await
    };
    let mut last = Value::Null;
    for _ in 0..64 {
        let made = call("CreateWatcher", json!({ "path": "/tmp" })).await;
        assert_eq!(made.status, 200, "{made:?}");
        last = made.json()["watcherId"].clone();
    }
    let refused = call("CreateWatcher", json!({ "path": "/tmp" })).await;
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &json!("resource_exhausted"))
    );
    let removed = call("RemoveWatcher", json!({ "watcher_id": last })).await;
    assert_eq!(removed.status, 200, "{removed:?}");
    let unknown = call("GetWatcherEvents", json!({ "watcherId": last })).await;
    assert_eq!(
        (unknown.status, &unknown.json()["code"]),
        (404, &json!("not_found"))
    );
    let made = call("CreateWatcher", json!({ "path": "/tmp" })).await;
    let kept = made.json()["watcherId"].clone();
    for act in ["stop", "start"] {
        let path = format!("/sandboxes/{id}/{act}");
        let done = client.post(&path, &json!({})).await;
        assert!(done.status < 300, "{done:?}");
    }
    let unknown = call("GetWatcherEvents", json!({ "watcherId": kept })).await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    let made = call("CreateWatcher", json!({ "path": "/tmp" })).await;
    assert_eq!(made.status, 200, "{made:?}");
    server.close().await;
}

/// Every route of the control API for sandboxes, with a request body. `ID` is a sandbox of the caller.
const CONTROL: &[(&str, &str, &str)] = &[
    ("GET", "/sandboxes", ""),
    ("GET", "/v2/sandboxes", ""),
    ("POST", "/sandboxes", r#"{"templateID":"base"}"#),
    ("POST", "/v2/sandboxes", r#"{"templateID":"base"}"#),
    ("GET", "/sandboxes/metrics?sandbox_ids=ID", ""),
    ("GET", "/sandboxes/ID", ""),
    ("GET", "/sandboxes/ID/metrics", ""),
    ("GET", "/sandboxes/ID/logs", ""),
    ("GET", "/v2/sandboxes/ID/logs", ""),
    ("POST", "/sandboxes/ID/timeout", r#"{"timeout":100}"#),
    ("POST", "/sandboxes/ID/refreshes", r#"{"duration":100}"#),
    ("POST", "/sandboxes/ID/connect", r#"{"timeout":100}"#),
    ("POST", "/v2/sandboxes/ID/connect", r#"{"timeout":100}"#),
    ("PUT", "/sandboxes/ID/network", "{}"),
    ("POST", "/sandboxes/ID/pause", "{}"),
    ("POST", "/sandboxes/ID/resume", r#"{"timeout":100}"#),
    ("DELETE", "/sandboxes/ID", ""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_control_route_requires_a_key_of_the_org() {
    let server = Server::start().await;
    let client = server.client();
    let (id, _) = sandbox(&client).await;
    let key = async |request: Value| {
        let made = client.post("/keys", &request).await;
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.json();
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        (text("key"), text("keyID"))
    };
    let (revoked, revoked_id) = key(json!({ "name": "revoked" })).await;
    client.delete(&format!("/keys/{revoked_id}")).await;
    let mut soon = Command::new("date");
    let soon = run(soon.args(["-u", "-d", "2 seconds", "+%FT%TZ"])).stdout;
    let soon = String::from_utf8(soon).unwrap();
    let (expired, _) = key(json!({ "name": "old", "expiresAt": soon.trim() })).await;
    let expired = client.with_key(Some(&expired.replace("atl_", "e2b_")));
    let over = async {
        while expired.get("/e2b/v2/sandboxes").await.status != 401 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, over).await.unwrap();
    let (reader, _) = key(json!({ "name": "reader", "scope": "sandbox:read" })).await;
    let reader = client.with_key(Some(&reader));
    let stranger = server.stranger().await;
    let made_up = format!("e2b_{}", "0".repeat(64));
    let unauthenticated = [
        client.with_key(None),
        client.with_key(Some(&made_up)),
        client.with_key(Some(&revoked)),
        expired,
    ];
    let headers = [("content-type", "application/json")];
    for (method, path, body) in CONTROL {
        let about_it = path.starts_with("/sandboxes/ID") || path.starts_with("/v2/sandboxes/ID");
        let path = format!("/e2b{}", path.replace("ID", &id));
        for who in &unauthenticated {
            let refused = who.send(method, &path, &headers, *body).await;
            assert_eq!(refused.status, 401, "{method} {path} {refused:?}");
            assert_eq!(refused.json()["code"], 401);
        }
        if about_it {
            let refused = stranger.send(method, &path, &headers, *body).await;
            assert_eq!(refused.status, 404, "{method} {path} {refused:?}");
            assert_eq!(refused.json()["code"], 404);
        } else if *method == "GET" {
            let found = stranger.send(method, &path, &headers, *body).await;
            assert!(
                !String::from_utf8_lossy(&found.body).contains(&id),
                "{path}"
            );
        }
        let looked = reader.send(method, &path, &headers, *body).await;
        if *method == "GET" {
            assert_eq!(looked.status, 200, "{method} {path} {looked:?}");
        } else {
            assert!(
                [403, 409].contains(&looked.status),
                "{method} {path} {looked:?}"
            );
        }
    }
    // None of the refused requests had an effect.
    let info = client.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(info["state"], "running");
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    server.close().await;
}
