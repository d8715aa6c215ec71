//! Routes that only E2B's command line and dashboard use: logs, and metrics of several sandboxes.

use serde_json::{Value, json};

use super::sandbox;
use crate::api::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_several_sandboxes_cover_only_visible_ones() {
    let server = Server::start().await;
    let client = server.client();
    let ((one, _), (two, _)) = (sandbox(&client).await, sandbox(&client).await);
    let path = format!(
        "/e2b/sandboxes/metrics?sandbox_ids={one},{two},i{}",
        "0".repeat(20)
    );
    let found = client.get(&path).await.json();
    let found = found["sandboxes"].as_object().unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    for name in [
        "cpuCount",
        "memUsed",
        "memTotal",
        "diskTotal",
        "timestampUnix",
    ] {
        assert!(found[&one][name].as_u64().unwrap() > 0, "{name} {found:?}");
    }
    for name in ["cpuUsedPct", "memCache", "diskUsed"] {
        assert!(found[&one][name].is_number(), "{name} {found:?}");
    }
    let stranger = server.stranger().await;
    assert_eq!(stranger.get(&path).await.json(), json!({ "sandboxes": {} }));
    let alone = stranger.get(&format!("/e2b/sandboxes/{one}/metrics")).await;
    assert_eq!((alone.status, &alone.json()["code"]), (404, &json!(404)));
    let wrong = client.get("/e2b/sandboxes/metrics").await;
    assert_eq!((wrong.status, &wrong.json()["code"]), (400, &json!(400)));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_lines_with_a_level() {
    let server = Server::start().await;
    let client = server.client();
    let (id, _) = sandbox(&client).await;
    client.line(&id, "echo one; echo two; echo wrong >&2").await;
    let ask = async |version: &str, query: &str| {
        let path = format!("/e2b{version}/sandboxes/{id}/logs{query}");
        client.get(&path).await.json()
    };
    let messages = |lines: &Value| -> Vec<String> {
        let mut messages: Vec<String> = lines["logs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect();
        // Two streams have no order.
        messages.sort();
        messages
    };
    let old = ask("", "").await;
    assert_eq!(old["logs"].as_array().unwrap().len(), 3, "{old}");
    assert!(old["logs"][0]["line"].is_string() && old["logs"][0]["timestamp"].is_string());
    assert_eq!(old["logEntries"].as_array().unwrap().len(), 3, "{old}");
    let new = ask("/v2", "").await;
    assert_eq!(messages(&new), ["one", "two", "wrong"]);
    let errors = ask("/v2", "?level=error").await;
    assert_eq!(messages(&errors), ["wrong"]);
    assert_eq!(errors["logs"][0]["level"], "error");
    assert_eq!(errors["logs"][0]["fields"]["stream"], "stderr");
    assert_eq!(messages(&ask("/v2", "?search=tw").await), ["two"]);
    let last = ask("/v2", "?search=o&direction=backward&limit=1&level=info").await;
    assert_eq!(last["logs"].as_array().unwrap().len(), 1, "{last}");
    assert_eq!(
        messages(&ask("/v2", "?cursor=99999999999999").await).len(),
        0
    );
    let too_many = ask("/v2", "?limit=1001").await;
    assert_eq!(too_many["code"], 400, "{too_many}");
    let stranger = server.stranger().await;
    let foreign = stranger.get(&format!("/e2b/v2/sandboxes/{id}/logs")).await;
    assert_eq!(foreign.status, 404, "{foreign:?}");
    server.close().await;
}
