//! Changes of the system clock do not end sandboxes. The clock of the test's machine is left alone: the records of
//! the stopped server are changed as if another clock had written them.

use std::time::Duration;

use serde_json::{Value, json};

use super::database::doctor;
use super::lifetimes::{becomes, state};
use super::{Client, Server};

const HOUR: i64 = 3_600_000_000;
const YEAR: i64 = 365 * 24 * HOUR;

/// Rewrites the recorded time as if the clock had been behind by `by`.
fn behind(by: i64) -> String {
    let moved = |table: &str, columns: &[&str]| {
        let set = columns
            .iter()
            .map(|column| format!("{column} = {column} - {by}"));
        format!("UPDATE {table} SET {};", set.collect::<Vec<_>>().join(", "))
    };
    [
        moved("clock", &["at"]),
        moved("events", &["at"]),
        moved("commands", &["started_at", "ended_at"]),
        moved(
            "sandboxes",
            &[
                "created_at",
                "started_at",
                "end_at",
                "stopped_at",
                "deleted_at",
            ],
        ),
    ]
    .concat()
}

/// Waits until a time of the server is over by this machine's clock, and as long again as the server takes to look.
async fn pass(until: &Value) {
    let until: jiff::Timestamp = until.as_str().unwrap().parse().unwrap();
    let until = until + Duration::from_secs(3);
    while jiff::Timestamp::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn events(client: &Client, id: &str) -> Vec<Value> {
    client.get(&format!("/sessions/{id}/events")).await.array()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_change_while_the_server_is_down_expires_nothing() {
    let other_boot = "UPDATE clock SET boot = 'another', boottime = 1;";
    for (by, boot) in [(HOUR, ""), (10 * YEAR, ""), (10 * YEAR, other_boot)] {
        let mut server = Server::start().await;
        let client = server.client();
        let request = json!({ "timeout": 600, "idleTimeout": 600, "onIdle": "destroy" });
        let runs = client.sandbox(&request).await;
        let stopped = client.sandbox(&json!({ "timeout": 600 })).await;
        let path = format!("/sandboxes/{stopped}/stop");
        assert_eq!(client.post(&path, &json!({})).await.status, 200);
        let gone = client.sandbox(&json!({})).await;
        client.line(&gone, "echo gone").await;
        assert_eq!(
            client.delete(&format!("/sandboxes/{gone}")).await.status,
            204
        );
        server.end();
        server.sql(&(behind(by) + boot));
        server.kill_and_start();
        let client = server.client();

        let held = events(&client, &runs).await;
        let held = held.iter().find(|event| event["type"] == "sandbox.held");
        let difference = held.unwrap()["data"]["clockDifference"].as_i64().unwrap();
        assert!(difference > by / 2_000_000, "{difference}");
        assert!(
            server.log().contains("the system clock differs"),
            "{}",
            server.log()
        );
        let found = doctor(&server.data(), "clock");
        assert_eq!(found["ok"], false, "{found}");
        assert!(
            found["found"].as_str().unwrap().contains("15 minutes"),
            "{found}"
        );

        // A sandbox that times out meanwhile remains too.
        let short = client.sandbox(&json!({ "timeout": 1 })).await;
        let end = jiff::Timestamp::now() + Duration::from_secs(1);
        pass(&json!(end.to_string())).await;
        for id in [&runs, &short] {
            assert_eq!(state(&client, id).await, "running");
        }
        assert_eq!(state(&client, &stopped).await, "stopped");
        // History is not deleted either.
        let session = client.get(&format!("/sessions/{gone}")).await;
        assert_eq!(session.json()["commandCount"], 1, "{session:?}");
        server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_clock_extends_no_timeout() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 600 })).await;
    let end = client.get(&format!("/sandboxes/{id}")).await.json()["endAt"].clone();
    server.kill_and_start();
    let client = server.client();
    let short = client.sandbox(&json!({ "timeout": 1 })).await;
    becomes(&client, &short, "gone").await;
    assert_eq!(
        client.get(&format!("/sandboxes/{id}")).await.json()["endAt"],
        end
    );
    let held = events(&client, &id).await;
    assert!(
        held.iter().all(|event| event["type"] != "sandbox.held"),
        "{held:?}"
    );
    assert_eq!(doctor(&server.data(), "clock"), Value::Null);
    server.close().await;
}
