//! Backups are taken while the server runs, and a server can be restored from one.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_testkit::{Scratch, run_within};
use serde_json::json;

use super::Server;
use crate::cli::{atoll, output_text};
use crate::harness::{DEADLINE, private};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_taken_under_load_restores_a_complete_server() {
    let server = Server::start().await;
    let client = server.client();
    let kept = client
        .sandbox(&json!({ "timeout": 0, "alias": "kept" }))
        .await;
    let made = client
        .post("/keys", &json!({ "name": "ours" }))
        .await
        .json();
    // Sandboxes are created and deleted meanwhile.
    let (done, busy) = (Arc::new(AtomicBool::new(false)), client.clone());
    let load = {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let mut count = 0;
            while !done.load(Ordering::Acquire) {
                let id = busy.sandbox(&json!({})).await;
                assert_eq!(busy.delete(&format!("/sandboxes/{id}")).await.status, 204);
                count += 1;
            }
            count
        })
    };
    let scratch = Scratch::new();
    let (data, target) = (server.data(), scratch.join("backup"));
    let words = [
        "backup",
        target.to_str().unwrap(),
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let backup = || run_within(&mut atoll(&words), DEADLINE, b"");
    for round in 0..5 {
        let output = tokio::task::block_in_place(backup);
        assert!(output.status.success(), "{}", output_text(&output));
        assert!(
            output_text(&output).contains("1 orgs with 2 keys"),
            "{}",
            output_text(&output)
        );
        if round < 4 {
            std::fs::remove_dir_all(&target).unwrap();
        }
    }
    done.store(true, Ordering::Release);
    assert!(load.await.unwrap() > 0);
    // A backup is readable by root only, and never overwrites a directory.
    let mode = std::fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let again = backup();
    assert_eq!(again.status.code(), Some(5));
    let left: Vec<_> = std::fs::read_dir(scratch.path())
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");

    // On another machine, only the backup exists.
    let elsewhere = Scratch::new();
    private(&elsewhere.join("data"));
    let signs = |data: &std::path::Path| std::fs::read(data.join("signing.key")).unwrap();
    assert_eq!(signs(&target), signs(&server.data()));
    for file in ["atoll.db", "admin.key", "signing.key"] {
        std::fs::copy(target.join(file), elsewhere.join("data").join(file)).unwrap();
    }
    let other = Server::start_in(elsewhere, &[]).await;
    let client = other.client();
    let history = client.get("/sessions?limit=100").await.array();
    assert!(
        history
            .iter()
            .any(|session| session["sandboxID"] == kept.as_str())
    );
    let info = client.get("/sandboxes/kept").await.json();
    assert_eq!(
        (&info["state"], &info["error"]),
        (&json!("failed"), &json!("its files are gone"))
    );
    // The sandbox can only be read and deleted; other calls fail with an explanation.
    for verb in ["start", "stop", "pause", "resume", "restart"] {
        let path = format!("/sandboxes/kept/{verb}");
        let refused = client.post(&path, &json!({})).await;
        assert_eq!(refused.refusal().1, "CONFLICT", "{verb}: {refused:?}");
        assert_eq!(refused.json()["details"]["state"], "failed");
    }
    let key = client.with_key(made["key"].as_str());
    let id = key.sandbox(&json!({})).await;
    assert_eq!(key.line(&id, "echo on").await, "on\n");
    other.close().await;
    server.close().await;
}

#[test]
fn backup_of_a_missing_data_directory_is_refused() {
    let scratch = Scratch::new();
    let (data, target) = (scratch.join("data"), scratch.join("backup"));
    let words = [
        "backup",
        target.to_str().unwrap(),
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let output = run_within(&mut atoll(&words), DEADLINE, b"");
    assert_eq!(output.status.code(), Some(4));
    assert!(!target.exists());
}
