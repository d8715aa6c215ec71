//! Pagination of lists.

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
async fn commands_are_paginated_without_gap_or_repetition() {
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
    // The default limit is 100; and new entries do not shift the pages.
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
async fn sandboxes_are_filtered_within_their_org_with_a_total() {
    let server = Server::start().await;
    let (client, foreign) = (server.client(), server.stranger().await);
    for (alias, team) in [("web-1", "red"), ("web-2", "blue"), ("ci-3", "red")] {
        let request = json!({ "alias": alias, "metadata": { "team": team, "a b": "c=d&e" } });
        client.sandbox(&request).await;
    }
    let theirs = foreign
        .sandbox(&json!({ "metadata": { "team": "red" } }))
        .await;
    for (query, expected) in [
        ("", vec!["ci-3", "web-2", "web-1"]),
        ("metadata.team=red", vec!["ci-3", "web-1"]),
        ("metadata.team=red&q=WEB", vec!["web-1"]),
        (
            "metadata.team=red&metadata.a%20b=c%3Dd%26e&state=running",
            vec!["ci-3", "web-1"],
        ),
        ("metadata.team=re", vec![]),
        ("template=base&q=-2", vec!["web-2"]),
        ("template=none", vec![]),
        ("state=paused", vec![]),
        (&*format!("q={theirs}"), vec![]),
    ] {
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = client
                .get(&format!("/sandboxes?{query}&limit=1{cursor}"))
                .await;
            assert_eq!(
                page.headers["x-total-count"],
                expected.len().to_string(),
                "{query}"
            );
            let next = page.headers.get("x-next-cursor").cloned();
            seen.extend(page.array());
            let Some(next) = next else { break };
            cursor = format!("&cursor={}", next.to_str().unwrap());
        }
        assert_eq!(names(&seen, "alias"), expected, "{query}");
    }
    for (query, field) in [
        ("metadata.team=red&metadata.team=blue", "metadata.team"),
        ("metadata=red", "metadata"),
        ("template=base&template=base", "template"),
        (&*format!("q={}", "x".repeat(101)), "q"),
    ] {
        let refused = client.get(&format!("/sandboxes?{query}")).await.refusal();
        assert_eq!(
            refused,
            (400, "INVALID_REQUEST".into(), field.into()),
            "{query}"
        );
    }
    assert_eq!(
        foreign.delete(&format!("/sandboxes/{theirs}")).await.status,
        204
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_are_paginated() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/pty");
    let mut made = Vec::new();
    for cols in 81..86 {
        let request = json!({ "shell": "/bin/sh", "cols": cols });
        let one = client.post(&path, &request).await.json();
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
