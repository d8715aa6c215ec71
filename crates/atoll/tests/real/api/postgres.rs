//! A server whose rows are in PostgreSQL, while PostgreSQL is away and after it was killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_testkit::{Durability, Postgres, Scratch};
use serde_json::json;

use super::{Client, Server};
use crate::harness::{DEADLINE, binary, private};

async fn start(database: &Postgres) -> Server {
    let scratch = Scratch::new();
    private(&scratch.join("data"));
    let url = database.database();
    Server::start_in(scratch, &["--database-url", &url]).await
}

/// Waits until the server can use its database again.
async fn becomes_ready(client: &Client) {
    let ready = async {
        while client.get("/readyz").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ready = tokio::time::timeout(DEADLINE, ready).await;
    assert!(ready.is_ok(), "the server did not become ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_continue_while_postgresql_is_away() {
    let mut database = Postgres::start(Durability::Synced, &[]);
    let server = start(&database).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo kept > ~/f").await;
    database.kill();
    assert_eq!(client.get("/health").await.status, 200);
    let ready = client.get("/readyz").await;
    assert_eq!(ready.status, 503, "{ready:?}");
    let refused = client.post("/sandboxes", &json!({})).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    let remedy = refused.json()["remedy"].as_str().unwrap().to_owned();
    assert!(remedy.contains("existing sandboxes"), "{refused:?}");
    // The key's row cannot be read either, for longer than it is cached.
    let later = tokio::time::Instant::now() + Duration::from_secs(12);
    while tokio::time::Instant::now() < later {
        assert_eq!(client.line(&id, "cat ~/f").await, "kept\n");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    database.ensure_running();
    becomes_ready(&client).await;
    let other = client.sandbox(&json!({ "timeout": 60 })).await;
    assert_eq!(client.line(&other, "echo on").await, "on\n");
    assert_eq!(client.line(&id, "cat ~/f").await, "kept\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_postgresql_loses_no_acknowledged_sandbox() {
    let mut database = Postgres::start(Durability::Synced, &[]);
    let mut server = start(&database).await;
    let client = server.client();
    let is_over = Arc::new(AtomicBool::new(false));
    let creating = {
        let (client, is_over) = (client.clone(), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut acknowledged = BTreeSet::new();
            while !is_over.load(Ordering::Relaxed) && acknowledged.len() < 60 {
                let made = client.post("/sandboxes", &json!({ "timeout": 0 })).await;
                match made.status {
                    201 => {
                        let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
                        acknowledged.insert(id);
                    }
                    503 => tokio::time::sleep(Duration::from_millis(50)).await,
                    other => panic!("{other}: {made:?}"),
                }
            }
            acknowledged
        })
    };
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        database.kill();
        database.ensure_running();
        becomes_ready(&client).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let acknowledged = creating.await.unwrap();
    assert!(!acknowledged.is_empty());
    // Neither the running server nor the next one has lost one, or has one that was not acknowledged.
    for _ in 0..2 {
        let client = server.client();
        becomes_ready(&client).await;
        let listed = async || {
            let all = client.get("/sandboxes?limit=100").await.array();
            let id = |row: &serde_json::Value| row["sandboxID"].as_str().unwrap().to_owned();
            all.iter().map(id).collect::<BTreeSet<_>>()
        };
        // Rows of creates that failed are removed every 5 s.
        let same = async {
            while listed().await != acknowledged {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let same = tokio::time::timeout(DEADLINE, same).await;
        assert!(same.is_ok(), "{:?} {acknowledged:?}", listed().await);
        for id in &acknowledged {
            assert_eq!(client.line(id, "echo here").await, "here\n");
        }
        server.kill_and_start();
    }
    server.close().await;
}

/// Runs `atoll serve` with a database that it cannot use, and returns its message.
fn refused(scratch: &Scratch, url: &str) -> String {
    let output = std::process::Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--database-url", url])
        .args(["--metrics-listen", "off", "--data-dir"])
        .arg(scratch.join("data"))
        .output()
        .unwrap();
    assert!(!output.status.success(), "{url}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_database_is_refused_with_a_remedy() {
    let database = Postgres::start(Durability::Unsynced, &[]);
    let first = start(&database).await;
    let scratch = Scratch::new();
    private(&scratch.join("data"));
    let server = database.url();
    let address = server.rsplit('@').next().unwrap().to_owned();
    for (url, part) in [
        ("mysql://localhost/atoll".to_owned(), "postgres://"),
        (format!("{server}/no-such-database"), "no-such-database"),
        (
            format!("postgres://other:wrong@{address}/postgres"),
            "password",
        ),
        (
            "postgres://atoll@127.0.0.1:1/atoll".to_owned(),
            "127.0.0.1:1",
        ),
    ] {
        let message = refused(&scratch, &url);
        assert!(message.contains(part), "{url}: {message}");
        assert!(!message.contains("wrong@"), "{message}");
        // One line with the problem and one with the remedy.
        assert!(message.lines().count() <= 3, "{message}");
    }
    // Nothing was created.
    assert!(!scratch.join("data/sandboxes").exists());
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_of_another_instance_is_refused() {
    let database = Postgres::start(Durability::Unsynced, &[]);
    let url = database.database();
    let scratch = Scratch::new();
    private(&scratch.join("data"));
    let server = Server::start_in(scratch, &["--database-url", &url]).await;
    let other = Scratch::new();
    private(&other.join("data"));
    // It has a sandbox of its own, whose row is in another database.
    let theirs = Server::start_in(other, &[]).await;
    let client = theirs.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let mut theirs = theirs;
    theirs.kill();
    let output = std::process::Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--database-url", &url])
        .args(["--metrics-listen", "off", "--data-dir"])
        .arg(theirs.data())
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{message}");
    assert!(message.contains("belongs to instance"), "{message}");
    theirs.kill_and_start();
    let client = theirs.client();
    assert_eq!(client.line(&id, "echo here").await, "here\n");
    theirs.close().await;
    server.close().await;
}
