//! Lists in parts.

use serde_json::{Value, json};

use super::{Client, Server};

/// Everything a list has, page by page.
pub(super) async fn all(client: &Client, path: &str, limit: usize) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("{path}?limit={limit}{cursor}")).await;
        let next = page.headers.get("x-next-cursor").cloned();
        let items = page.array();
        found.extend(items.clone());
        let Some(next) = next else { return found };
        assert_eq!(items.len(), limit, "a page before the last is full");
        cursor = format!("&cursor={}", next.to_str().unwrap());
    }
}

fn names<'a>(list: &'a [Value], name: &str) -> Vec<&'a str> {
    list.iter().map(|one| one[name].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_listed_in_parts_without_gap_or_repetition() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/commands");
    let run = async || {
        let done = client
            .post(&path, &json!({ "cmd": "true", "args": [] }))
            .await;
        done.json()["execID"].as_str().unwrap().to_owned()
    };
    let mut ran = Vec::new();
    for _ in 0..107 {
        ran.insert(0, run().await);
    }
    for limit in [7, 100] {
        let found = all(&client, &path, limit).await;
        assert_eq!(names(&found, "execID"), ran, "in parts of {limit}");
    }
    // Nothing that is said is a hundred; and what begins meanwhile moves nothing.
    let first = client.get(&path).await;
    let cursor = first.headers["x-next-cursor"].to_str().unwrap().to_owned();
    let later = run().await;
    let rest = client.get(&format!("{path}?cursor={cursor}")).await;
    assert_eq!(rest.headers.get("x-next-cursor"), None);
    assert_eq!(names(&first.array(), "execID"), ran[..100]);
    assert_eq!(names(&rest.array(), "execID"), ran[100..]);
    let newest = client.get(&format!("{path}?limit=1")).await.array();
    assert_eq!(names(&newest, "execID"), [later]);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_are_listed_in_parts_too() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/pty");
    let mut made = Vec::new();
    for cols in 81..86 {
        let asked = json!({ "shell": "/bin/sh", "cols": cols });
        let one = client.post(&path, &asked).await.json();
        made.insert(0, one["ptyID"].as_str().unwrap().to_owned());
        // A command that is no terminal takes no place among them.
        let other = json!({ "cmd": "sleep 600", "background": true });
        let commands = format!("/sandboxes/{id}/commands");
        assert_eq!(client.post(&commands, &other).await.status, 202);
    }
    for limit in [2, 5] {
        let found = all(&client, &path, limit).await;
        assert_eq!(names(&found, "ptyID"), made, "in parts of {limit}");
        assert_eq!(
            (&found[0]["cols"], &found[4]["cols"]),
            (&json!(85), &json!(81))
        );
    }
    server.close().await;
}
