//! Expired records are deleted and no others. Tests do not wait for days: they backdate the records.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Client, Server};
use crate::harness::DEADLINE;

const HOUR: i64 = 3_600_000_000;
const DAY: i64 = 24 * HOUR;

/// Creates a sandbox, runs a command in it, and returns its id.
async fn used(client: &Client, line: &str) -> String {
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, line).await;
    // A read moves it from the journal to the database.
    assert_eq!(session(client, &id).await["commandCount"], 1);
    id
}

async fn session(client: &Client, id: &str) -> Value {
    let answer = client.get(&format!("/sessions/{id}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn lines(client: &Client, id: &str) -> Vec<String> {
    let all = client
        .get(&format!("/sessions/{id}/commands?limit=9"))
        .await;
    let line = |one: &Value| one["cmd"].as_str().unwrap().to_owned();
    all.array().iter().map(line).collect()
}

/// Creates and revokes a key; returns its id.
async fn revoked(client: &Client) -> String {
    let made = client.post("/keys", &json!({ "name": "x" })).await.json();
    let id = made["keyID"].as_str().unwrap().to_owned();
    assert_eq!(client.delete(&format!("/keys/{id}")).await.status, 204);
    id
}

/// Events without their times, which the test changes.
async fn events(client: &Client, id: &str) -> Vec<Value> {
    let mut all = client.get(&format!("/sessions/{id}/events")).await.array();
    for event in &mut all {
        event["at"] = Value::Null;
    }
    all
}

/// Creates a sandbox with an idempotency key. Returns the status.
async fn create_status(client: &Client, key: &str, body: &Value) -> u16 {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ];
    let answer = client.send("POST", "/sandboxes", &headers, body.to_string());
    answer.await.status
}

/// Waits until expired records are deleted.
async fn swept(client: &Client, living: &str, gone: &str) {
    let swept = async {
        while session(client, living).await["commandCount"] != 2
            || client.get(&format!("/sessions/{gone}")).await.status != 404
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(DEADLINE, swept).await;
    assert!(done.is_ok(), "{}", session(client, living).await);
}

/// Changes times of records to earlier ones.
fn earlier(table: &str, column: &str, time: i64, which: &str) -> String {
    format!("UPDATE {table} SET {column} = {column} - {time} WHERE {which};")
}

/// Changes times of commands to earlier ones, selected by their line.
fn older(line: &str, time: i64) -> String {
    let which = format!("command = '{line}'");
    ["started_at", "ended_at"]
        .map(|column| earlier("commands", column, time, &which))
        .concat()
}

/// More command records than one cleanup batch deletes.
fn copies(line: &str) -> String {
    let rest = "session, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, \
        oom_killed, timed_out, output_bytes";
    format!(
        "WITH RECURSIVE some(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM some WHERE number < 1100) \
         INSERT INTO commands (id, {rest}) SELECT printf('exec_%020d', number), {rest} FROM commands, some \
         WHERE command = '{line}';"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_deletes_old_history_but_nothing_running() {
    let mut server = Server::start().await;
    let client = server.client();
    let (gone, recent) = (
        used(&client, "echo gone").await,
        used(&client, "echo recent").await,
    );
    for id in [&gone, &recent] {
        assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    }
    let living = used(&client, "echo old").await;
    client.line(&living, "echo young").await;
    let commands = format!("/sandboxes/{living}/commands");
    let runs = json!({ "cmd": "sleep 6000", "background": true });
    assert_eq!(client.post(&commands, &runs).await.status, 202);
    assert_eq!(session(&client, &living).await["commandCount"], 3);
    for key in ["first", "second"] {
        let body = json!({ "timeout": 0, "memoryMB": 512 });
        assert_eq!(create_status(&client, key, &body).await, 201);
    }
    let (late, of_late) = (revoked(&client).await, revoked(&client).await);
    let happened = events(&client, &recent).await;
    assert!(happened.len() > 1, "{happened:?}");
    let first = happened[0]["number"].as_i64().unwrap();
    server.sql(
        &[
            older("echo gone", 31 * DAY),
            older("echo recent", 29 * DAY),
            older("echo old", 31 * DAY),
            older("echo young", 29 * DAY),
            older("sleep 6000", 31 * DAY),
            copies("echo old"),
            earlier(
                "sandboxes",
                "deleted_at",
                31 * DAY,
                &format!("id = '{gone}'"),
            ),
            earlier(
                "sandboxes",
                "deleted_at",
                29 * DAY,
                &format!("id = '{recent}'"),
            ),
            earlier("events", "at", 8 * DAY, &format!("number = {first}")),
            earlier("events", "at", 6 * DAY, &format!("number != {first}")),
            earlier("keys", "revoked_at", 31 * DAY, &format!("id = '{late}'")),
            earlier("keys", "revoked_at", 29 * DAY, &format!("id = '{of_late}'")),
            earlier("idempotency", "created_at", 25 * HOUR, "key = 'first'"),
            earlier("idempotency", "created_at", 23 * HOUR, "key = 'second'"),
        ]
        .concat(),
    );
    assert_eq!(session(&client, &living).await["commandCount"], 1103);
    server.kill_and_start();

    let client = server.client();
    swept(&client, &living, &gone).await;
    assert_eq!(lines(&client, &living).await, ["echo young", "sleep 6000"]);
    assert_eq!(lines(&client, &recent).await, ["echo recent"]);
    assert_eq!(events(&client, &recent).await, happened[1..]);
    let keys = client.get("/keys").await.array();
    let keys: Vec<&Value> = keys.iter().map(|key| &key["keyID"]).collect();
    assert!(
        !keys.contains(&&json!(late)) && keys.contains(&&json!(of_late)),
        "{keys:?}"
    );
    let other = json!({ "timeout": 0, "memoryMB": 256 });
    assert_eq!(create_status(&client, "first", &other).await, 201);
    assert_eq!(create_status(&client, "second", &other).await, 409);
    // Entries that were copied from the sandbox's journal are not copied again.
    server.kill_and_start();
    let client = server.client();
    assert_eq!(lines(&client, &living).await, ["echo young", "sleep 6000"]);
    server.close().await;
}
