//! The command history of a sandbox survives its deletion and every kind of server exit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_testkit::wait_for;
use serde_json::{Value, json};

use super::pages::all;
use super::{Client, Server};
use crate::harness::DEADLINE;

async fn session(client: &Client, sandbox: &str) -> String {
    let info = client.get(&format!("/sandboxes/{sandbox}")).await.json();
    info["sessionID"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_history_outlives_the_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let envs = json!({ "TOKEN": "sesame-of-the-sandbox" });
    let id = client.sandbox(&json!({ "timeout": 0, "envs": envs })).await;
    let session = session(&client, &id).await;
    let commands = format!("/sandboxes/{id}/commands");
    for body in [
        json!({ "cmd": "echo out; exit 3", "cwd": "/tmp", "user": "root", "tag": "first" }),
        json!({ "cmd": "cat", "stdin": "sesame-of-the-input", "envs": { "A": "sesame-of-the-command" } }),
        json!({ "cmd": "sleep", "args": ["600"], "timeout": 0.2 }),
        json!({ "cmd": "kill -TERM $$" }),
        json!({ "cmd": format!(": {}", "x".repeat(100_000)) }),
    ] {
        assert_eq!(client.post(&commands, &body).await.status, 200);
    }
    let runs = json!({ "cmd": "sleep 600", "background": true });
    assert_eq!(client.post(&commands, &runs).await.status, 202);
    let pty = client
        .post(&format!("/sandboxes/{id}/pty"), &json!({}))
        .await;
    let pty = pty.json()["ptyID"].clone();

    let path = format!("/sessions/{session}/commands");
    let living = client.get(&path).await.array();
    assert_eq!(living[0]["state"], "running", "{living:?}");
    assert_eq!(living[0].get("exitCode"), None);
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);

    let info = client.get(&format!("/sessions/{session}")).await.json();
    assert_eq!(
        (
            &info["sandboxID"],
            &info["commandCount"],
            &info["terminalCount"]
        ),
        (&json!(id), &json!(6), &json!(1))
    );
    assert!(info["deletedAt"].is_string());
    // The id of the sandbox stands for its session.
    let same = client.get(&format!("/sessions/{id}")).await.json();
    assert_eq!(same, info);
    let listed = all(&client, &path, 4).await;
    let seen: Vec<(i64, Option<i64>, bool)> = listed
        .iter()
        .map(|one| {
            assert_eq!(one["state"], "exited", "{one}");
            assert!(
                one["endedAt"].as_str() >= one["startedAt"].as_str(),
                "{one}"
            );
            (
                one["exitCode"].as_i64().unwrap(),
                one["signal"].as_i64(),
                one["timedOut"] == true,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            // The command ended with its sandbox.
            (137, Some(9), false),
            (0, None, false),
            (143, Some(15), false),
            (124, Some(9), true),
            (0, None, false),
            (3, None, false)
        ]
    );
    assert_eq!(listed[1]["cut"], true);
    assert!(listed[1]["cmd"].as_str().unwrap().len() < 10_000);
    assert_eq!(listed[3]["args"], json!(["600"]));
    let first = &listed[5];
    assert_eq!(
        (
            &first["cmd"],
            &first["cwd"],
            &first["user"],
            &first["tag"],
            &first["outputBytes"]
        ),
        (
            &json!("echo out; exit 3"),
            &json!("/tmp"),
            &json!("root"),
            &json!("first"),
            &json!(4)
        )
    );
    let terminals = all(&client, &format!("/sessions/{session}/terminals"), 4).await;
    assert_eq!(terminals.len(), 1);
    assert_eq!(
        (&terminals[0]["ptyID"], &terminals[0]["state"]),
        (&pty, &json!("exited"))
    );
    let events = client
        .get(&format!("/sessions/{session}/events"))
        .await
        .array();
    assert_eq!(events.last().unwrap()["type"], "sandbox.deleted");
    // Neither variables nor input are kept anywhere.
    for name in ["atoll.db", "atoll.db-wal"] {
        let kept = std::fs::read(server.data().join(name)).unwrap();
        assert!(!kept.windows(7).any(|bytes| bytes == b"sesame-"), "{name}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_of_another_org_is_not_found() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client.line(&id, "true").await;
    let session = session(&client, &id).await;
    let other = server.stranger().await;
    assert_eq!(other.get("/sessions").await.array(), Vec::<Value>::new());
    for when in ["living", "deleted"] {
        for name in [&session, &id, "sess_aaaaabbbbbcccccddddd", "x"] {
            for rest in ["", "/commands", "/terminals", "/events"] {
                let refused = other.get(&format!("/sessions/{name}{rest}")).await;
                let expected = (404, "SESSION_NOT_FOUND".to_owned(), String::new());
                assert_eq!(refused.refusal(), expected, "{when} {name}{rest}");
            }
        }
        client.delete(&format!("/sandboxes/{id}")).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_commands_are_listed_at_once_despite_kills() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sessions/{}/commands", session(&client, &id).await);
    for number in 1..=20 {
        let body = json!({ "cmd": format!("exit {number}") });
        client
            .post(&format!("/sandboxes/{id}/commands"), &body)
            .await;
        let commands = client.get(&path).await.array();
        assert_eq!(commands.len(), number, "{commands:?}");
        assert_eq!(commands[0]["exitCode"], json!(number), "{commands:?}");
    }
    client.line(&id, "printf not-read-by-a-client").await;
    server.kill_and_start();
    let client = server.client();
    let commands = client.get(&path).await.array();
    assert_eq!(
        (commands.len(), &commands[0]["outputBytes"]),
        (21, &json!(20))
    );
    // A stop ends running commands, and their end is reported at once too.
    let runs = json!({ "cmd": "sleep 600", "background": true });
    client
        .post(&format!("/sandboxes/{id}/commands"), &runs)
        .await;
    let stop = client
        .post(&format!("/sandboxes/{id}/stop"), &json!({}))
        .await;
    assert_eq!(stop.status, 200);
    let commands = client.get(&path).await.array();
    assert_eq!(
        (commands.len(), &commands[0]["exitCode"]),
        (22, &json!(137))
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_a_thousand_commands_is_fully_recorded() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let session = session(&client, &id).await;
    let bursts: Vec<_> = (0..8)
        .map(|worker| {
            let (client, path) = (client.clone(), format!("/sandboxes/{id}/commands"));
            tokio::spawn(async move {
                for number in 0..125 {
                    let code = number % 7;
                    let tag = format!("{worker}-{number}-{code}");
                    let body = json!({ "cmd": format!("exit {code}"), "tag": tag });
                    let answer = client.post(&path, &body).await;
                    assert_eq!(answer.json()["exitCode"], code, "{answer:?}");
                }
            })
        })
        .collect();
    for burst in bursts {
        burst.await.unwrap();
    }
    let path = format!("/sessions/{session}/commands");
    let living = all(&client, &path, 100).await;
    // The store has all of them, so most are evicted from the sandbox's table.
    let remembered = format!("/sandboxes/{id}/commands");
    let forgotten = async { while all(&client, &remembered, 100).await.len() != 256 {} };
    let forgotten = tokio::time::timeout(DEADLINE, forgotten);
    forgotten.await.expect("the others are forgotten");
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let commands = all(&client, &path, 100).await;
    assert_eq!(commands, living);
    let mut tags = std::collections::BTreeSet::new();
    for one in &commands {
        let tag = one["tag"].as_str().unwrap();
        let code: i64 = tag.rsplit('-').next().unwrap().parse().unwrap();
        assert_eq!(one["exitCode"], code, "{one}");
        assert!(tags.insert(tag.to_owned()), "{tag} twice");
    }
    assert_eq!((commands.len(), tags.len()), (1000, 1000));
    assert!(
        commands.is_sorted_by(|one, two| one["startedAt"].as_str() >= two["startedAt"].as_str())
    );
    let journals = client.get("/readyz").await.json()["journals"].clone();
    assert_eq!(
        (&journals["failures"], &journals["lost"]),
        (&json!(0), &json!(0))
    );
    server.close().await;
}

/// Exit codes that clients received: by session, each command's exit code by its id.
type ExitCodes = Arc<Mutex<BTreeMap<String, BTreeMap<String, i64>>>>;

/// Runs commands in a sandbox, and in others that it creates and deletes, until the server is killed.
async fn work(client: Client, steady: String, session: String, worker: usize, received: ExitCodes) {
    let note = |session: &str, exec: &Value, code: i64| {
        let mut received = received.lock().unwrap();
        let exec = exec.as_str().unwrap().to_owned();
        received
            .entry(session.to_owned())
            .or_default()
            .insert(exec, code);
    };
    for number in 0.. {
        let code = i64::try_from((number + worker) % 5).unwrap();
        let body = json!({ "cmd": format!("exit {code}") });
        let path = format!("/sandboxes/{steady}/commands");
        let Some(answer) = client.attempt("POST", &path, body.to_string()).await else {
            return;
        };
        assert_eq!(answer.status, 200, "{answer:?}");
        note(&session, &answer.json()["execID"], code);
        let Some(made) = client
            .attempt("POST", "/sandboxes", json!({}).to_string())
            .await
        else {
            return;
        };
        assert_eq!(made.status, 201, "{made:?}");
        let (id, other) = (
            made.json()["sandboxID"].clone(),
            made.json()["sessionID"].clone(),
        );
        let (id, other) = (id.as_str().unwrap(), other.as_str().unwrap());
        let commands = format!("/sandboxes/{id}/commands");
        let Some(answer) = client.attempt("POST", &commands, body.to_string()).await else {
            return;
        };
        note(other, &answer.json()["execID"], code);
        // A command that runs until it is killed with its sandbox.
        let runs = json!({ "cmd": "sleep 600", "background": true });
        let Some(answer) = client.attempt("POST", &commands, runs.to_string()).await else {
            return;
        };
        let exec = answer.json()["execID"].clone();
        let path = format!("/sandboxes/{id}");
        let Some(deleted) = client.attempt("DELETE", &path, "").await else {
            return;
        };
        assert_eq!(deleted.status, 204, "{deleted:?}");
        note(other, &exec, 137);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listed_commands_stay_listed_once_after_kills_heavy() {
    let mut server = Server::start().await;
    let client = server.client();
    let steady = client.sandbox(&json!({ "timeout": 0 })).await;
    let session = session(&client, &steady).await;
    let received = ExitCodes::default();
    // Pseudo-random kill points, the same in every run of the test.
    for moment in [130_u64, 470, 890, 1310, 1730, 2210] {
        let client = server.client();
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (steady, session) = (steady.clone(), session.clone());
                tokio::spawn(work(
                    client.clone(),
                    steady,
                    session,
                    worker,
                    Arc::clone(&received),
                ))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(moment)).await;
        server.kill_and_start();
        for worker in workers {
            worker.await.unwrap();
        }
    }
    let client = server.client();
    let path = format!("/sandboxes/{steady}");
    assert_eq!(client.delete(&path).await.status, 204);
    let received = std::mem::take(&mut *received.lock().unwrap());
    assert!(received.len() > 5, "{received:?}");
    for (session, expected) in received {
        let found = all(&client, &format!("/sessions/{session}/commands"), 100).await;
        let mut codes = BTreeMap::new();
        for one in &found {
            let exec = one["execID"].as_str().unwrap().to_owned();
            let code = one["exitCode"].as_i64();
            assert!(codes.insert(exec, code).is_none(), "twice: {one}");
        }
        for (exec, code) in expected {
            assert_eq!(codes.get(&exec), Some(&Some(code)), "{session} {exec}");
        }
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_journal_is_set_aside_without_blocking_commands() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sessions/{}/commands", session(&client, &id).await);
    client.line(&id, "echo before").await;
    assert_eq!(client.get(&path).await.array().len(), 1);
    let journal = server.data().join(format!("sandboxes/{id}/journal.db"));
    assert!(journal.exists());
    for garbage in [vec![b'x'; 20_000], b"SQLite format 3\0".repeat(1000)] {
        server.end();
        std::fs::write(&journal, &garbage).unwrap();
        server.kill_and_start();
        let client = server.client();
        client.line(&id, "echo after").await;
        let broken = journal.with_file_name("broken.db");
        wait_for("the journal to be renamed", DEADLINE, || {
            std::fs::read(&broken).is_ok_and(|bytes| bytes == garbage)
        });
    }
    let client = server.client();
    assert_eq!(client.get(&path).await.array().len(), 3);
    let health = client.get("/readyz").await.json();
    assert!(
        health["journals"]["failures"].as_u64() > Some(0),
        "{health}"
    );
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(client.get(&path).await.array().len(), 3);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwritable_journal_blocks_no_command_and_catches_up() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sessions/{}/commands", session(&client, &id).await);
    let journal = server.data().join(format!("sandboxes/{id}/journal.db"));
    std::fs::create_dir(&journal).unwrap();
    for _ in 0..300 {
        client.line(&id, "true").await;
    }
    let health = || async { client.get("/readyz").await.json()["journals"].clone() };
    assert_eq!(client.get(&path).await.array(), Vec::<Value>::new());
    assert_ne!(health().await["failures"], 0);
    std::fs::remove_dir(&journal).unwrap();
    assert_eq!(all(&client, &path, 100).await.len(), 300);
    assert_eq!(health().await["lost"], 0);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filtered_pages_are_full_and_the_last_has_no_cursor() {
    let server = Server::start().await;
    let client = server.client();
    let mut stopped = Vec::new();
    for number in 0..6 {
        let id = client.sandbox(&json!({ "timeout": 0 })).await;
        if number % 2 == 0 {
            let path = format!("/sandboxes/{id}/stop");
            assert_eq!(client.post(&path, &json!({})).await.status, 200);
            stopped.insert(0, id);
        }
    }
    for word in ["state", "status"] {
        let page = client
            .get(&format!("/sandboxes?{word}=stopped&limit=2"))
            .await;
        let cursor = page.headers["x-next-cursor"].to_str().unwrap().to_owned();
        let path = format!("/sandboxes?{word}=stopped&limit=2&cursor={cursor}");
        let last = client.get(&path).await;
        assert_eq!(last.headers.get("x-next-cursor"), None);
        let both = [page.array(), last.array()].concat();
        let ids: Vec<&str> = both
            .iter()
            .map(|one| one["sandboxID"].as_str().unwrap())
            .collect();
        assert_eq!(ids, stopped);
    }
    // A list of exactly one page has no cursor.
    let all = client.get("/sandboxes?limit=6").await;
    assert_eq!(all.array().len(), 6);
    assert_eq!(all.headers.get("x-next-cursor"), None);
    server.close().await;
}
