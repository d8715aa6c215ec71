//! Authorization: every route, called with every credential that must be refused.

use serde_json::{Value, json};

use super::{Client, Server};

/// Whether a key that may only look may do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Signature,
    Read,
    All,
    Admin,
}

const DOWNLOAD: &str =
    "/sandboxes/ID/files/download?path=/etc/hostname&expires=99999999999&signature=00";
const UPLOAD: &str = "/sandboxes/ID/files/upload?path=f&expires=99999999999&signature=00";

/// Every route. `ID` is a sandbox, `EXEC` a command of it.
pub const ROUTES: &[(&str, &str, Needs)] = &[
    ("GET", "/health", Needs::Nothing),
    ("GET", "/healthz", Needs::Nothing),
    ("GET", "/readyz", Needs::Nothing),
    ("GET", "/openapi.json", Needs::Nothing),
    ("GET", "/docs", Needs::Nothing),
    ("GET", "/sandboxes", Needs::Read),
    ("POST", "/sandboxes", Needs::All),
    ("GET", "/sandboxes/ID", Needs::Read),
    ("PATCH", "/sandboxes/ID", Needs::All),
    ("POST", "/sandboxes/ID/timeout", Needs::All),
    ("POST", "/sandboxes/ID/keepalive", Needs::All),
    ("POST", "/sandboxes/ID/pause", Needs::All),
    ("POST", "/sandboxes/ID/resume", Needs::All),
    ("POST", "/sandboxes/ID/stop", Needs::All),
    ("POST", "/sandboxes/ID/start", Needs::All),
    ("POST", "/sandboxes/ID/restart", Needs::All),
    ("GET", "/sandboxes/ID/network", Needs::Read),
    ("PUT", "/sandboxes/ID/network", Needs::All),
    ("GET", "/sandboxes/ID/ports", Needs::Read),
    ("GET", "/sandboxes/ID/ports/7/tunnel", Needs::All),
    ("POST", "/sandboxes/ID/ports/7/url", Needs::All),
    ("GET", "/sandboxes/ID/metrics", Needs::Read),
    ("GET", "/sandboxes/ID/logs", Needs::Read),
    ("GET", "/sandboxes/ID/commands", Needs::Read),
    ("POST", "/sandboxes/ID/commands", Needs::All),
    ("GET", "/sandboxes/ID/commands/EXEC", Needs::Read),
    ("GET", "/sandboxes/ID/commands/EXEC/wait", Needs::Read),
    ("GET", "/sandboxes/ID/commands/EXEC/output", Needs::Read),
    ("POST", "/sandboxes/ID/commands/EXEC/signal", Needs::All),
    ("POST", "/sandboxes/ID/commands/EXEC/stdin", Needs::All),
    (
        "POST",
        "/sandboxes/ID/commands/EXEC/stdin/close",
        Needs::All,
    ),
    ("GET", "/sandboxes/ID/files?path=/etc/hostname", Needs::Read),
    ("PUT", "/sandboxes/ID/files?path=f", Needs::All),
    ("DELETE", "/sandboxes/ID/files?path=f", Needs::All),
    ("GET", "/sandboxes/ID/files/list?path=/etc", Needs::Read),
    ("GET", "/sandboxes/ID/files/stat?path=/etc", Needs::Read),
    (
        "GET",
        "/sandboxes/ID/files/search?path=/etc&query=*",
        Needs::Read,
    ),
    ("GET", "/sandboxes/ID/files/watch?path=/etc", Needs::Read),
    ("GET", "/sandboxes/ID/files/archive?path=/etc", Needs::Read),
    ("PUT", "/sandboxes/ID/files/archive?path=d", Needs::All),
    ("POST", "/sandboxes/ID/files/download-url", Needs::Read),
    ("POST", "/sandboxes/ID/files/upload-url", Needs::All),
    // These routes need only a signature.
    ("GET", DOWNLOAD, Needs::Signature),
    ("PUT", UPLOAD, Needs::Signature),
    ("POST", "/sandboxes/ID/files/mkdir", Needs::All),
    ("POST", "/sandboxes/ID/files/rename", Needs::All),
    ("POST", "/sandboxes/ID/files/move", Needs::All),
    ("POST", "/sandboxes/ID/files/copy", Needs::All),
    ("POST", "/sandboxes/ID/files/chmod", Needs::All),
    ("POST", "/sandboxes/ID/files/chown", Needs::All),
    ("GET", "/sandboxes/ID/pty", Needs::Read),
    ("POST", "/sandboxes/ID/pty", Needs::All),
    ("GET", "/sandboxes/ID/pty/PTY", Needs::All),
    ("POST", "/sandboxes/ID/pty/PTY/resize", Needs::All),
    ("DELETE", "/sandboxes/ID/pty/PTY", Needs::All),
    ("GET", "/sandboxes/ID/events", Needs::Read),
    ("GET", "/events?after=0", Needs::Read),
    ("GET", "/sessions", Needs::Read),
    ("POST", "/tickets", Needs::Read),
    ("GET", "/templates", Needs::Read),
    ("POST", "/templates?name=x", Needs::Admin),
    ("GET", "/templates/base", Needs::Read),
    ("DELETE", "/templates/no-such", Needs::Admin),
    ("GET", "/sessions/ID", Needs::Read),
    ("GET", "/sessions/ID/commands", Needs::Read),
    ("GET", "/sessions/ID/terminals", Needs::Read),
    ("GET", "/sessions/ID/events", Needs::Read),
    ("GET", "/keys", Needs::All),
    ("POST", "/keys", Needs::All),
    ("DELETE", "/keys/key_aaaaabbbbbcccccddddd", Needs::All),
    ("GET", "/orgs", Needs::Read),
    ("POST", "/orgs", Needs::Admin),
    ("GET", "/orgs/org_aaaaabbbbbcccccddddd", Needs::Read),
    ("PATCH", "/orgs/org_aaaaabbbbbcccccddddd", Needs::Admin),
    ("DELETE", "/orgs/org_aaaaabbbbbcccccddddd", Needs::Admin),
    // This route is last, because it deletes the sandbox.
    ("DELETE", "/sandboxes/ID", Needs::All),
];

/// A body that every check but that of the caller lets through.
fn body(path: &str) -> Value {
    let last = path.split('?').next().unwrap().rsplit('/').next().unwrap();
    match last {
        "timeout" => json!({ "timeout": 300 }),
        "resize" => json!({ "cols": 80, "rows": 24 }),
        "commands" => json!({ "cmd": "true" }),
        "signal" => json!({ "signal": 15 }),
        "download-url" | "upload-url" => json!({ "path": "f" }),
        "mkdir" => json!({ "path": "d" }),
        "rename" | "move" | "copy" => json!({ "from": "a", "to": "b" }),
        "chmod" => json!({ "path": "a", "mode": "600" }),
        "chown" => json!({ "path": "a", "owner": "user", "group": "user" }),
        "keys" | "orgs" => json!({ "name": "x" }),
        _ => json!({}),
    }
}

async fn ask(client: &Client, method: &str, path: &str) -> (u16, String) {
    let headers = [("content-type", "application/json")];
    let text = if path.contains("/stdin") || method == "GET" || path.contains("path=") {
        String::new()
    } else {
        body(path).to_string()
    };
    let answer = client.send(method, path, &headers, text).await;
    let code = if answer.status >= 400 {
        answer.refusal().1
    } else {
        String::new()
    };
    (answer.status, code)
}

async fn key(client: &Client, body: Value) -> String {
    let made = client.post("/keys", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()["key"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_refuses_unauthorized_callers() {
    let server = Server::start().await;
    let admin = server.client();
    let id = admin.sandbox(&json!({ "timeout": 0 })).await;
    let begun = json!({ "cmd": "sleep 600", "background": true, "openStdin": true });
    let begun = admin
        .post(&format!("/sandboxes/{id}/commands"), &begun)
        .await;
    let exec = begun.json()["execID"].as_str().unwrap().to_owned();

    let reader = admin.with_key(Some(
        &key(&admin, json!({ "name": "r", "scope": "sandbox:read" })).await,
    ));
    let user = admin.with_key(Some(&key(&admin, json!({ "name": "u" })).await));
    let revoked = key(&admin, json!({ "name": "gone" })).await;
    let listed = admin.get("/keys").await.array();
    let gone = listed.iter().find(|key| key["name"] == "gone").unwrap();
    let path = format!("/keys/{}", gone["keyID"].as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    assert_eq!(admin.delete(&path).await.status, 404);
    let mut soon = std::process::Command::new("date");
    let soon = atoll_testkit::run(soon.args(["-u", "-d", "2 seconds", "+%FT%TZ"])).stdout;
    let soon = String::from_utf8(soon).unwrap();
    let expired = json!({ "name": "old", "expiresAt": soon.trim() });
    let expired = admin.with_key(Some(&key(&admin, expired).await));
    let over = async {
        while expired.get("/sandboxes").await.status == 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::harness::DEADLINE, over)
        .await
        .unwrap();
    let foreign = server.stranger().await;
    let strangers = [
        ("no key", admin.with_key(None), (401, "MISSING_API_KEY")),
        ("an expired key", expired, (401, "INVALID_API_KEY")),
        (
            "a revoked key",
            admin.with_key(Some(&revoked)),
            (401, "INVALID_API_KEY"),
        ),
        (
            "a made-up key",
            admin.with_key(Some(&format!("atl_{}", "0".repeat(64)))),
            (401, "INVALID_API_KEY"),
        ),
        (
            "nonsense",
            admin.with_key(Some("x")),
            (401, "INVALID_API_KEY"),
        ),
    ];
    for (method, path, needs) in ROUTES {
        let path = path.replace("PTY", "pty_aaaaabbbbbcccccddddd");
        // A resource of another org gives the same response as an unknown id.
        let never = path.replace("ID", "iaaaaabbbbbcccccddddd");
        let path = path.replace("ID", &id).replace("EXEC", &exec);
        if path.contains(&id) && *needs != Needs::Signature {
            let never = never.replace("EXEC", &exec);
            let found = ask(&foreign, method, &path).await;
            assert_eq!(
                found,
                ask(&foreign, method, &never).await,
                "{method} {path}"
            );
            assert_eq!(found.0, 404, "{method} {path} {found:?}");
            // The bodies are identical except for the request id.
            let text = async |path: &str| {
                let mut body = foreign.get(path).await.json();
                body["request_id"] = Value::Null;
                body
            };
            if *method == "GET" {
                assert_eq!(text(&path).await, text(&never).await, "{path}");
            }
        }
        for (who, client, expected) in &strangers {
            let (status, code) = ask(client, method, &path).await;
            let refused = (status, code.as_str());
            match needs {
                Needs::Nothing => assert_eq!(status, 200, "{who}: {method} {path}"),
                Needs::Signature => {
                    assert_eq!(
                        refused,
                        (403, "PERMISSION_DENIED"),
                        "{who}: {method} {path}"
                    );
                }
                _ => assert_eq!(refused, *expected, "{who}: {method} {path}"),
            }
        }
        if matches!(needs, Needs::All | Needs::Admin) {
            let (status, code) = ask(&reader, method, &path).await;
            assert_eq!(
                (status, code.as_str()),
                (403, "PERMISSION_DENIED"),
                "a reader: {method} {path}"
            );
        }
        if *needs == Needs::Admin {
            let (status, code) = ask(&user, method, &path).await;
            assert_eq!(
                (status, code.as_str()),
                (403, "PERMISSION_DENIED"),
                "a user: {method} {path}"
            );
        }
    }
    // None of the refused requests had an effect.
    let info = admin.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(info["state"], "running");
    // Read-only keys can read.
    for (method, path, needs) in ROUTES {
        let endless = ["output", "wait", "watch", "/events?"];
        if *needs == Needs::Read && !endless.iter().any(|word| path.contains(word)) {
            let path = path.replace("ID", &id).replace("EXEC", &exec);
            let (status, code) = ask(&reader, method, &path).await;
            assert!(
                matches!(status, 200 | 201) || code == "ORG_NOT_FOUND",
                "a reader: {method} {path} {status} {code}"
            );
        }
    }
    // A key cannot have a wider scope than the key that creates it.
    let made = user
        .post("/keys", &json!({ "name": "a", "scope": "admin" }))
        .await;
    assert_eq!(made.refusal().0, 403);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_socket_needs_no_key_and_belongs_to_root() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Server::start().await;
    for name in ["run/api.sock", "admin.key"] {
        let path = server.data().join(name);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let mut ask = std::process::Command::new("curl");
    ask.args(["-s", "--unix-socket"])
        .arg(server.data().join("run/api.sock"))
        .arg("http://localhost/keys");
    let output = atoll_testkit::run(&mut ask);
    let keys: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(keys[0]["name"], "admin");
    assert!(keys[0]["key"].is_null());
    server.close().await;
}
