//! The static key: one more API key, from a file of the operator.

use std::os::unix::fs::PermissionsExt as _;

use atoll_testkit::Scratch;
use serde_json::json;

use super::Server;
use crate::harness::{binary, private};

const KEY: &str = "test-key";

/// Writes the file of the key and returns its path.
fn file(scratch: &Scratch, mode: u32) -> String {
    let file = scratch.join("static-key");
    std::fs::write(&file, format!("{KEY}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_key_belongs_to_its_org_and_is_no_admin() {
    let scratch = Scratch::new();
    let file = file(&scratch, 0o600);
    private(&scratch.join("data"));
    let flags = [
        "--static-key-file",
        file.as_str(),
        "--static-key-org",
        "test-org",
    ];
    let server = Server::start_in(scratch, &flags).await;
    let admin = server.client();
    let client = admin.with_key(Some(KEY));
    // Without its org the key is valid for nothing, and the error names the remedy.
    let early = client.get("/sandboxes").await;
    assert_eq!(early.status, 401, "{early:?}");
    let remedy = early.json()["remedy"].as_str().unwrap().to_owned();
    assert!(remedy.contains("atoll org create"), "{remedy}");
    let made = admin.post("/orgs", &json!({ "name": "test-org" })).await;
    assert_eq!(made.status, 201, "{made:?}");
    let id = client.sandbox(&json!({ "timeout": 60 })).await;
    assert_eq!(client.line(&id, "echo hello").await, "hello\n");
    assert_eq!(admin.get(&format!("/sandboxes/{id}")).await.status, 404);
    let other = client.post("/orgs", &json!({ "name": "other" })).await;
    assert_eq!(other.status, 403, "{other:?}");
    for other in ["test-ke", "test-keys", "", "Test-key"] {
        let refused = admin.with_key(Some(other)).get("/sandboxes").await;
        assert_eq!(refused.status, 401, "{other:?}");
    }
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    server.close().await;
}

#[test]
fn static_key_file_of_other_users_is_refused() {
    let scratch = Scratch::new();
    let readable = file(&scratch, 0o644);
    let serve = |file: &str, more: &[&str]| {
        let output = std::process::Command::new(binary())
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--static-key-file",
                file,
            ])
            .args(more)
            .arg("--data-dir")
            .arg(scratch.join("data"))
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = serve(&readable, &[]);
    assert!(refused.contains("chmod 600"), "{refused}");
    let missing = serve("/no/such/file", &[]);
    assert!(missing.contains("static-key-file"), "{missing}");
    // Problems are reported together.
    let both = serve(&readable, &["--ca-file", "/no/such.pem"]);
    for part in ["2 problems", "chmod 600", "/no/such.pem"] {
        assert!(both.contains(part), "{both}");
    }
    assert!(!scratch.join("data").exists());
}
