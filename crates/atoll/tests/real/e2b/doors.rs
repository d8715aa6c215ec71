//! Who may do what in a sandbox: whoever shows its own token, and nobody else.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::api::{Client, Server};

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

/// A sandbox made as E2B's clients do; its id and its token.
pub async fn sandbox(client: &Client) -> (String, String) {
    let asked = json!({ "templateID": "base", "timeout": 60 });
    let made = client.post("/e2b/v2/sandboxes", &asked).await;
    assert_eq!(made.status, 201, "{made:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let made = made.json();
    (text(&made["sandboxID"]), text(&made["envdAccessToken"]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_of_a_sandbox_wants_its_own_token() {
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
async fn a_watch_that_is_kept_ends_with_its_sandbox_and_there_are_only_so_many() {
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
