//! Requests for sandboxes have request ids, are logged, counted and rate-limited, as requests for the server are.

use bytes::Bytes;
use serde_json::{Value, json};

use super::ports::{DOMAIN, PORT, ask, serving};
use super::sandbox;
use crate::api::{Answer, Server};

fn request_id(answer: &Answer) -> Option<String> {
    let id = answer.headers.get("x-request-id")?;
    Some(id.to_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_requests_have_ids_and_are_logged_and_counted() {
    let server = Server::start().await;
    let client = server.client();
    let body = json!({ "templateID": "base", "timeout": 100 });
    let (id, made) = serving(&client, body).await;
    let token = made["envdAccessToken"].as_str().unwrap();
    let agent = async |method: &str, path: &str, token: &str| {
        let headers = [("e2b-sandbox-id", id.as_str()), ("x-access-token", token)];
        client.send(method, path, &headers, Bytes::new()).await
    };
    let envs = agent("GET", "/envs?s3cret-query", token).await;
    let refused = agent("GET", "/envs", "s3cret-token").await;
    let nowhere = agent("GET", "/s3cret-path", token).await;
    let file = agent("GET", "/files?path=/s3cret-file", token).await;
    let page = ask(&client, &id, PORT, &[("cookie", "s3cret-cookie")]).await;
    let closed = ask(&client, &id, PORT + 1, &[]).await;
    let gone = ask(&client, &format!("i{}", "0".repeat(20)), PORT, &[]).await;

    // Response headers of a program are not changed.
    assert_eq!((page.status, request_id(&page)), (200, None));
    assert!(!page.headers.contains_key("x-content-type-options"));
    let log = server.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (answer, status, route) in [
        (&envs, 200, "envd:/envs"),
        (&refused, 401, "envd:/envs"),
        (&nowhere, 404, "envd:unknown"),
        (&file, 404, "envd:/files"),
        (&closed, 502, "port"),
        (&gone, 502, "port"),
    ] {
        assert_eq!(answer.status, status, "{answer:?}");
        let request = request_id(answer).unwrap();
        let line = lines.iter().find(|line| line["span"]["request"] == request);
        let line = line.unwrap_or_else(|| panic!("{request}: {log}"));
        assert_eq!(line["span"]["route"], route);
        assert_eq!(
            (&line["status"], &line["level"]),
            (&json!(status), &json!("INFO"))
        );
        let known = line["span"]["org"].is_string();
        assert_eq!(known, request != request_id(&gone).unwrap(), "{line}");
    }
    let ports = lines.iter().filter(|line| line["span"]["route"] == "port");
    assert_eq!(ports.count(), 3, "{log}");
    for secret in ["s3cret", token] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
    let metrics = server.metrics().await;
    for (path, status, count) in [
        ("envd:/envs", 200, 1),
        ("envd:/envs", 401, 1),
        ("envd:unknown", 404, 1),
        ("port", 200, 1),
        ("port", 502, 2),
    ] {
        let line = format!(
            "atoll_http_requests_total{{method=\"GET\",path=\"{path}\",status=\"{status}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorized_requests_to_a_sandbox_are_rate_limited() {
    let server = Server::start_with(&["--rate-limit", "5"]).await;
    let client = server.client();
    let (id, token) = sandbox(&client).await;
    let headers = [("e2b-sandbox-id", id.as_str()), ("x-access-token", &token)];
    let mut refused = None;
    for _ in 0..1000 {
        let answer = client.send("GET", "/envs", &headers, Bytes::new()).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let refused = refused.unwrap();
    assert_eq!(refused.json()["code"], 429);
    assert_eq!(refused.headers["retry-after"], "1");
    // Unauthenticated requests do not count against the limit of authorized callers.
    let unauthenticated = [("e2b-sandbox-id", id.as_str())];
    let answer = client
        .send("GET", "/envs", &unauthenticated, Bytes::new())
        .await;
    assert_eq!(answer.status, 401);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_host_of_the_domain_serves_the_control_api() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let api = format!("API.{DOMAIN}:8443");
    let headers = [("host", api.as_str()), ("content-type", "application/json")];
    let request = json!({ "templateID": "base", "timeout": 60 }).to_string();
    let made = client
        .send("POST", "/v2/sandboxes", &headers, request.clone())
        .await;
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    for (path, status) in [
        (format!("/sandboxes/{id}"), 200),
        ("/v2/sandboxes?limit=1".to_owned(), 200),
        // Nothing else is there.
        (format!("/sandboxes/{id}/commands"), 404),
        ("/health".to_owned(), 404),
    ] {
        let answer = client.send("GET", &path, &headers, Bytes::new()).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
    }
    let anonymous = client.with_key(None);
    let path = format!("/sandboxes/{id}");
    let refused = anonymous.send("GET", &path, &headers, Bytes::new()).await;
    assert_eq!(refused.status, 401, "{refused:?}");
    for host in ["api.evil.test", DOMAIN, &format!("x.{DOMAIN}")] {
        let headers = [("host", host), ("content-type", "application/json")];
        let refused = client
            .send("POST", "/v2/sandboxes", &headers, request.clone())
            .await;
        assert_eq!(refused.status, 421, "{host} {refused:?}");
    }
    server.close().await;
}
