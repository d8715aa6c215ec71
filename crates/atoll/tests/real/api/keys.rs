//! Orgs and API keys, created over the API and by the command: each key sees only its org and has no more
//! permissions than its creator.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::sockets::{closed, open};
use super::{Client, Server};
use crate::harness::{DEADLINE, binary};

async fn key(client: &Client, body: Value) -> (Client, String) {
    let made = client.post("/keys", &body).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (client.with_key(Some(&text("key"))), text("keyID"))
}

/// Runs the command over the operator's socket; returns its output.
fn operator(server: &Server, words: &[&str]) -> String {
    let mut command = std::process::Command::new(binary());
    command
        .args(words)
        .env_remove("ATOLL_URL")
        .env_remove("ATOLL_API_KEY")
        .env("HOME", server.data())
        .env("ATOLL_DATA_DIR", server.data());
    let output = atoll_testkit::run(&mut command);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_creates_an_org_that_sees_only_its_own_data() {
    let server = Server::start().await;
    let admin = server.client();
    let request = json!({ "name": "team", "maxSandboxes": 1, "maxTimeout": 60 });
    let org = admin.post("/orgs", &request).await.json()["orgID"].clone();
    let (team, id) = key(&admin, json!({ "name": "theirs", "orgID": org })).await;
    let mine = admin
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let theirs = team
        .sandbox(&json!({ "alias": "web", "timeout": 60 }))
        .await;
    // The limits apply to this org only.
    let more = team.post("/sandboxes", &json!({ "timeout": 60 })).await;
    assert_eq!(more.refusal().1, "QUOTA_EXCEEDED");
    for timeout in [61, 0] {
        let long = team
            .post("/sandboxes", &json!({ "timeout": timeout }))
            .await;
        assert_eq!(
            long.refusal(),
            (400, "INVALID_REQUEST".into(), "timeout".into())
        );
        let path = format!("/sandboxes/{theirs}/timeout");
        let longer = team.post(&path, &json!({ "timeout": timeout })).await;
        assert_eq!(longer.refusal().2, "timeout");
    }
    assert_eq!(team.get("/sandboxes/web").await.json()["sandboxID"], theirs);
    assert_eq!(admin.get("/sandboxes/web").await.json()["sandboxID"], mine);
    // The org lists its own keys, and an admin lists them with `orgID`; neither list has keys of other orgs.
    let path = format!("/keys?orgID={}", org.as_str().unwrap());
    for listed in [
        team.get("/keys").await,
        admin.get(&path).await,
        team.get(&path).await,
    ] {
        let listed = listed.array();
        assert_eq!((listed.len(), &listed[0]["keyID"]), (1, &json!(id)));
    }
    let first = admin.get("/keys").await.array()[0]["orgID"].clone();
    for refused in [
        team.get(&format!("/keys?orgID={}", first.as_str().unwrap()))
            .await,
        team.post("/keys", &json!({ "name": "x", "orgID": first }))
            .await,
    ] {
        assert_eq!(refused.refusal().1, "ORG_NOT_FOUND");
    }
    // The time of the last use is stored.
    let listed = team.get("/keys").await.array();
    assert!(listed[0]["lastUsedAt"].is_string(), "{listed:?}");
    assert_eq!(
        team.delete(&format!("/sandboxes/{theirs}")).await.status,
        204
    );
    assert_eq!(
        admin.delete(&format!("/keys/{id}")).await.refusal().1,
        "KEY_NOT_FOUND"
    );
    let path = format!("/keys/{id}?orgID={}", org.as_str().unwrap());
    assert_eq!(admin.delete(&path).await.status, 204);
    assert_eq!(team.get("/sandboxes").await.status, 401);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_a_valid_key_gets_a_challenge() {
    let server = Server::start().await;
    let client = server.client();
    let unknown = format!("atl_{}", "0".repeat(64));
    let bearer = "Bearer realm=\"atoll\"";
    let invalid = format!("{bearer}, error=\"invalid_token\"");
    for (key, code, challenge) in [
        (None, "MISSING_API_KEY", bearer),
        (Some(unknown.as_str()), "INVALID_API_KEY", &invalid),
        (Some(""), "INVALID_API_KEY", &invalid),
    ] {
        let client = client.with_key(key);
        for path in ["/sandboxes", "/api/keys", "/sessions"] {
            let refused = client.get(path).await;
            assert_eq!(refused.headers["www-authenticate"], challenge, "{path}");
            let body = refused.json();
            assert_eq!(
                (refused.status, &body["code"], &body["category"]),
                (401, &json!(code), &json!("auth")),
                "{key:?} {path}"
            );
            assert!(body["remedy"].is_string(), "{body}");
        }
        // E2B's clients read the code in the body.
        let refused = client.get("/e2b/v2/sandboxes").await;
        assert!(refused.headers.contains_key("www-authenticate"));
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (401, &json!(401))
        );
    }
    // A valid key without the scope gets another error.
    let (reader, _) = key(&client, json!({ "name": "r", "scope": "sandbox:read" })).await;
    let refused = reader.post("/sandboxes", &json!({})).await;
    assert!(!refused.headers.contains_key("www-authenticate"));
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (403, &json!("PERMISSION_DENIED"))
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_cannot_create_or_revoke_keys_above_its_scope() {
    let server = Server::start().await;
    let admin = server.client();
    let end = "2099-01-01T00:00:00.000000Z";
    let (user, _) = key(&admin, json!({ "name": "u", "expiresAt": end })).await;
    let (_, above) = key(&admin, json!({ "name": "a", "scope": "admin" })).await;
    let refused = user.delete(&format!("/keys/{above}")).await;
    assert_eq!(
        (refused.status, refused.refusal().1.as_str()),
        (403, "PERMISSION_DENIED")
    );
    let listed = admin.get("/keys").await.array();
    assert!(
        listed.iter().all(|key| key["revokedAt"].is_null()),
        "{listed:?}"
    );
    // A key that it creates expires no later than itself.
    let made = user.post("/keys", &json!({ "name": "b" })).await.json();
    assert_eq!(made["expiresAt"], end);
    let later = json!({ "name": "c", "expiresAt": "2099-01-01T00:00:01Z" });
    let refused = user.post("/keys", &later).await;
    assert_eq!(
        refused.refusal(),
        (400, "INVALID_REQUEST".into(), "expiresAt".into())
    );
    let path = format!("/keys/{}", made["keyID"].as_str().unwrap());
    assert_eq!(user.delete(&path).await.status, 204);
    // Lists have pages, newest first.
    let mut seen = Vec::new();
    let mut next = "/keys?limit=3".to_owned();
    loop {
        let part = admin.get(&next).await;
        seen.extend(part.array().iter().map(|key| key["name"].clone()));
        let Some(cursor) = part.headers.get("x-next-cursor") else {
            break;
        };
        next = format!("/keys?limit=3&cursor={}", cursor.to_str().unwrap());
    }
    assert_eq!(seen, ["b", "a", "u", "admin"]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn org_key_limit_is_enforced() {
    let server = Server::start().await;
    let admin = server.client();
    let (user, _) = key(&admin, json!({ "name": "u" })).await;
    // Fills the quota except for two keys: rows of revoked keys, beside those of the admin and the user.
    server.sql(
        "WITH RECURSIVE some(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM some WHERE number < 9996) \
         INSERT INTO keys (id, org, name, hash, prefix, scope, created_at, revoked_at) \
         SELECT printf('key_%020d', number), org, 'old', 'hash-' || number, prefix, scope, created_at, created_at \
         FROM keys, some WHERE name = 'u';",
    );
    let more = json!({ "name": "more" });
    assert_eq!(user.count_created("/keys", &more, 10).await, 2);
    key(&admin, json!({ "name": "the admin's" })).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoking_a_key_ends_its_open_streams() {
    let server = Server::start().await;
    let admin = server.client();
    let (user, id) = key(&admin, json!({ "name": "u" })).await;
    let sandbox = user.sandbox(&json!({ "timeout": 0 })).await;
    let mut events = user
        .open("GET", "/events", &[], Bytes::new())
        .await
        .into_body();
    let mut socket = open(&user, &format!("/sandboxes/{sandbox}/pty")).await;
    let mut kept = admin
        .open("GET", "/events", &[], Bytes::new())
        .await
        .into_body();
    assert_eq!(admin.delete(&format!("/keys/{id}")).await.status, 204);
    assert_eq!(closed(&mut socket).await, 4008);
    let over = async { while let Some(Ok(_)) = events.frame().await {} };
    tokio::time::timeout(DEADLINE, over).await.unwrap();
    assert_eq!(user.get("/sandboxes").await.status, 401);
    // Streams of other keys continue.
    assert_eq!(
        admin.delete(&format!("/sandboxes/{sandbox}")).await.status,
        204
    );
    let reported = async {
        let mut text = String::new();
        while !text.contains("sandbox.deleted") {
            let frame = kept.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        }
    };
    tokio::time::timeout(DEADLINE, reported).await.unwrap();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn org_is_removable_only_without_sandboxes() {
    let server = Server::start().await;
    let admin = server.client();
    let org = admin.post("/orgs", &json!({ "name": "team" })).await.json()["orgID"].clone();
    let path = format!("/orgs/{}", org.as_str().unwrap());
    let (team, _) = key(&admin, json!({ "name": "theirs", "orgID": org })).await;
    let sandbox = team.sandbox(&json!({})).await;
    let mut events = team
        .open("GET", "/events", &[], Bytes::new())
        .await
        .into_body();
    let refused = admin.delete(&path).await;
    assert_eq!(
        (refused.status, refused.refusal().1.as_str()),
        (409, "CONFLICT")
    );
    assert!(refused.json()["remedy"].is_string(), "{refused:?}");
    assert_eq!(team.delete(&path).await.refusal().0, 403);
    let deleted = team.delete(&format!("/sandboxes/{sandbox}")).await;
    assert_eq!(deleted.status, 204);

    assert_eq!(admin.delete(&path).await.status, 204);
    // Its keys are refused, their streams end, and another org may take its name.
    assert_eq!(team.get("/sandboxes").await.refusal().1, "INVALID_API_KEY");
    let over = async { while let Some(Ok(_)) = events.frame().await {} };
    tokio::time::timeout(DEADLINE, over).await.unwrap();
    for answer in [admin.delete(&path).await, admin.get(&path).await] {
        assert_eq!(
            (answer.status, answer.refusal().1.as_str()),
            (404, "ORG_NOT_FOUND")
        );
    }
    let late = admin
        .post("/keys", &json!({ "name": "x", "orgID": org }))
        .await;
    assert_eq!(late.refusal().1, "ORG_NOT_FOUND");
    assert_eq!(
        admin.post("/orgs", &json!({ "name": "team" })).await.status,
        201
    );
    // The operator's own org remains.
    let orgs = admin.get("/orgs").await.array();
    let main = orgs.iter().find(|org| org["name"] == "main").unwrap();
    let path = format!("/orgs/{}", main["orgID"].as_str().unwrap());
    let refused = admin.delete(&path).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.json()["error"].as_str().unwrap().contains("own"));
    assert_eq!(admin.get("/keys").await.array().len(), 1);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_never_succeeds_for_a_removed_org() {
    let server = Server::start().await;
    let admin = server.client();
    for number in 0..6 {
        let request = json!({ "name": format!("team {number}") });
        let org = admin.post("/orgs", &request).await.json()["orgID"].clone();
        let path = format!("/orgs/{}", org.as_str().unwrap());
        let (team, _) = key(&admin, json!({ "name": "theirs", "orgID": org })).await;
        let body = json!({});
        let (created, removed) = tokio::join!(team.post("/sandboxes", &body), admin.delete(&path));
        match (created.status, removed.status) {
            (201, 409) => {
                let id = created.json()["sandboxID"].as_str().unwrap().to_owned();
                let deleted = team.delete(&format!("/sandboxes/{id}")).await;
                assert_eq!(deleted.status, 204, "{deleted:?}");
            }
            (401, 204) => assert_eq!(team.get("/sandboxes").await.status, 401),
            _ => panic!("{created:?} {removed:?}"),
        }
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_creates_orgs_and_keys_over_the_operators_socket() {
    let server = Server::start().await;
    let org = operator(&server, &["org", "create", "team", "--max-sandboxes", "7"]);
    assert!(org.starts_with("org_"), "{org}");
    let secret = operator(
        &server,
        &[
            "key",
            "create",
            "laptop",
            "--org",
            "team",
            "--expires",
            "24h",
        ],
    );
    let team = server.client().with_key(Some(&secret));
    let found = team.get("/orgs").await.array();
    assert_eq!(
        (&found[0]["name"], &found[0]["maxSandboxes"]),
        (&json!("team"), &json!(7))
    );
    assert!(team.get("/keys").await.array()[0]["expiresAt"].is_string());
    operator(
        &server,
        &[
            "org",
            "set",
            "team",
            "--max-sandboxes",
            "0",
            "--max-timeout",
            "2h",
        ],
    );
    let found = team.get(&format!("/orgs/{org}")).await.json();
    assert_eq!(
        (&found["maxSandboxes"], &found["maxTimeout"]),
        (&Value::Null, &json!(7200))
    );
    let shown = operator(&server, &["org", "ls"]);
    assert!(shown.contains("team") && shown.contains("main"), "{shown}");
    let keys = operator(&server, &["key", "ls", "--org", &org, "--json"]);
    let keys: Value = serde_json::from_str(&keys).unwrap();
    assert_eq!(keys[0]["name"], "laptop");
    assert!(!keys.to_string().contains(&secret), "{keys}");
    let id = keys[0]["keyID"].as_str().unwrap();
    assert_eq!(operator(&server, &["key", "rm", id, "--org", "team"]), id);
    assert_eq!(team.get("/orgs").await.status, 401);
    assert!(!operator(&server, &["key", "ls", "--org", "team"]).contains("laptop"));
    assert!(operator(&server, &["key", "ls", "--org", "team", "--all"]).contains("revoked"));
    assert_eq!(operator(&server, &["org", "rm", "team"]), org);
    assert!(!operator(&server, &["org", "ls"]).contains("team"));
    let other = operator(&server, &["org", "create", "other"]);
    assert_eq!(operator(&server, &["org", "delete", &other]), other);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_admin_key_is_created_once() {
    let mut server = Server::start().await;
    let admin = server.client();
    assert_eq!(admin.get("/keys").await.array().len(), 1);
    std::fs::remove_file(server.data().join("admin.key")).unwrap();
    server.end();
    server.kill_and_start();
    assert!(!server.data().join("admin.key").exists());
    let keys = operator(&server, &["key", "ls", "--json"]);
    let keys: Value = serde_json::from_str(&keys).unwrap();
    assert_eq!(keys.as_array().unwrap().len(), 1, "{keys}");
    // The operator's socket still works.
    let secret = operator(&server, &["key", "create", "again", "--scope", "admin"]);
    std::fs::write(server.data().join("admin.key"), secret).unwrap();
    assert_eq!(server.client().get("/orgs").await.status, 200);
    server.close().await;
}
