//! However many ask at once, an org has no more than it may have; and nobody sets what is not theirs to set.

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

/// Everybody at once: how many got one.
async fn rush(client: &Client, count: usize) -> usize {
    let asking: Vec<_> = (0..count)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/sandboxes", &json!({ "timeout": 0 })).await })
        })
        .collect();
    let mut made = 0;
    for answer in asking {
        let answer = answer.await.unwrap();
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
async fn two_hundred_at_once_get_ten_and_places_come_back() {
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
    // One that has stopped gives its place away, and gets none back while all are taken.
    let all = client.get("/sandboxes").await.array();
    let path = format!("/sandboxes/{}", all[0]["sandboxID"].as_str().unwrap());
    client.post(&format!("{path}/stop"), &json!({})).await;
    assert_eq!(rush(&client, 20).await, 1);
    let refused = client.post(&format!("{path}/start"), &json!({})).await;
    assert_eq!(refused.refusal().1, "QUOTA_EXCEEDED");
    assert_eq!(client.get(&path).await.json()["state"], "stopped");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_a_callers_to_set_is_refused_by_name() {
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
