//! Quotas hold under concurrent requests, and only callers with the permission can change a setting.

use serde_json::json;

use super::{Client, Server};

async fn limit(client: &Client, most: u32) {
    let org = client.get("/orgs").await.array()[0]["orgID"].clone();
    let path = format!("/orgs/{}", org.as_str().unwrap());
    let headers = [("content-type", "application/json")];
    let body = json!({ "maxSandboxes": most }).to_string();
    let changed = client.send("PATCH", &path, &headers, body).await;
    assert_eq!(changed.status, 200, "{changed:?}");
}

/// Sends concurrent creates. Returns how many succeeded.
async fn rush(client: &Client, count: usize) -> usize {
    let request = json!({ "timeout": 0 });
    let mut made = 0;
    for answer in client.post_at_once("/sandboxes", &request, count).await {
        if answer.status == 201 {
            made += 1;
            continue;
        }
        assert_eq!(
            (answer.status, answer.refusal().1.as_str()),
            (429, "QUOTA_EXCEEDED")
        );
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_creates_stop_at_the_quota_and_deletes_free_slots() {
    let server = Server::start().await;
    let client = server.client();
    limit(&client, 10).await;
    assert_eq!(rush(&client, 200).await, 10);
    let all = client.get("/sandboxes").await.array();
    assert_eq!(all.len(), 10);
    for sandbox in &all[..4] {
        let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
        assert_eq!(client.delete(&path).await.status, 204);
    }
    assert_eq!(rush(&client, 40).await, 4);
    // A stopped sandbox does not count, and cannot be started while the quota is used up.
    let all = client.get("/sandboxes").await.array();
    let path = format!("/sandboxes/{}", all[0]["sandboxID"].as_str().unwrap());
    client.post(&format!("{path}/stop"), &json!({})).await;
    assert_eq!(rush(&client, 20).await, 1);
    let refused = client.post(&format!("{path}/start"), &json!({})).await;
    assert_eq!(refused.refusal().1, "QUOTA_EXCEEDED");
    assert_eq!(client.get(&path).await.json()["state"], "stopped");
    server.close().await;
}

/// F10: sandboxes that are deleted and created concurrently at the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_create_delete_loops_never_exceed_the_quota() {
    let server = Server::start().await;
    let client = server.client();
    limit(&client, 5).await;
    let flap = |client: Client| async move {
        let mut made = 0;
        for _ in 0..8 {
            let answer = client.post("/sandboxes", &json!({ "timeout": 0 })).await;
            if answer.status != 201 {
                assert_eq!(answer.refusal().1, "QUOTA_EXCEEDED");
                continue;
            }
            made += 1;
            let path = answer.json()["sandboxID"].as_str().unwrap().to_owned();
            let path = format!("/sandboxes/{path}");
            assert_eq!(client.delete(&path).await.status, 204);
        }
        made
    };
    let mut flapping: tokio::task::JoinSet<u32> = (0..20).map(|_| flap(client.clone())).collect();
    let mut made = 0;
    while !flapping.is_empty() {
        let there = client.get("/sandboxes").await.array();
        assert!(there.len() <= 5, "{there:?}");
        while let Some(done) = flapping.try_join_next() {
            made += done.unwrap();
        }
    }
    assert!(made > 5, "{made} were made");
    // Deleted sandboxes do not count.
    assert_eq!(rush(&client, 20).await, 5);
    server.close().await;
}

/// F10: no number is so large, so small or so odd that it is taken for another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_numbers_out_of_range_are_refused_by_name() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}");
    let before = client.get(&path).await.json();
    let sizes = ["cpuCount", "memoryMB", "diskMB", "pids", "idleTimeout"];
    let (commands, pty) = (format!("{path}/commands"), format!("{path}/pty"));
    let timeout = format!("{path}/timeout");
    let mut requests: Vec<(&str, &str, &str)> = Vec::new();
    for field in sizes {
        requests.extend([("POST", "/sandboxes", field), ("PATCH", &path, field)]);
    }
    requests.extend([
        ("POST", "/sandboxes", "timeout"),
        ("POST", &timeout, "timeout"),
        ("POST", &commands, "timeout"),
        ("POST", &pty, "cols"),
        ("POST", &pty, "rows"),
    ]);
    let headers = [("content-type", "application/json")];
    for number in [
        "-1",
        "-9223372036854775809",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "1e308",
        "1e400",
        "NaN",
        "Infinity",
        "\"1\"",
        "true",
        "[1]",
    ] {
        for (method, path, field) in &requests {
            // The body of a command also needs `cmd`.
            let more = match path.strip_suffix("/commands") {
                Some(_) => "\"cmd\": \"true\", ",
                None => "",
            };
            let body = format!("{{{more}\"{field}\": {number}}}");
            let refused = client.send(method, path, &headers, body).await.refusal();
            // A number that is not valid JSON is an error of the body.
            let named = [*field, "body"].contains(&refused.2.as_str());
            assert!(
                refused.0 == 400 && refused.1 == "INVALID_REQUEST" && named,
                "{method} {path} {field} {number}: {refused:?}"
            );
        }
    }
    assert_eq!(client.get(&path).await.json(), before);
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    assert!(client.get(&commands).await.array().is_empty());
    server.close().await;
}

/// F03.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_fields_are_refused_by_name() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let before = client.get(&format!("/sandboxes/{id}")).await.json();
    let headers = [("content-type", "application/json")];
    for field in [
        "sandboxID",
        "sessionID",
        "org",
        "orgID",
        "state",
        "status",
        "reason",
        "createdAt",
        "endAt",
        "deleteAt",
        "uid",
        "ids",
        "mounts",
        "cgroup",
        "node",
        "worker",
        "timings",
        "__proto__",
    ] {
        let body = json!({ field: "x" });
        let made = client.post("/sandboxes", &body).await;
        assert_eq!(
            made.refusal(),
            (400, "INVALID_REQUEST".into(), field.into())
        );
        let path = format!("/sandboxes/{id}");
        let changed = client
            .send("PATCH", &path, &headers, body.to_string())
            .await;
        assert_eq!(
            changed.refusal(),
            (400, "INVALID_REQUEST".into(), field.into())
        );
    }
    assert_eq!(client.get(&format!("/sandboxes/{id}")).await.json(), before);
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    server.close().await;
}
