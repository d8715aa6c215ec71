//! Regression tests for known pitfalls of similar products.

use serde_json::json;

use super::Server;
use crate::harness::{DEADLINE, data};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sandboxes_of_one_caller_share_no_file_and_no_alias() {
    let server = Server::start().await;
    let client = server.client();
    let named = json!({ "alias": "thread", "timeout": 0 });
    let one = client.sandbox(&named).await;
    let two = client.sandbox(&json!({ "timeout": 0 })).await;
    let places = ["/home/user/f", "/tmp/f", "/dev/shm/f", "/var/tmp/f"].join(" ");
    client
        .line(&one, &format!("echo mine | tee {places}"))
        .await;
    let seen = client
        .line(&two, &format!("cat {places} 2> /dev/null; true"))
        .await;
    assert_eq!(seen, "");
    let again = client.post("/sandboxes", &named).await;
    assert_eq!(again.refusal().1, "CONFLICT", "{again:?}");
    let path = format!("/sandboxes/{two}");
    let headers = [("content-type", "application/json")];
    let renamed = client
        .send("PATCH", &path, &headers, r#"{"alias": "thread"}"#)
        .await;
    assert_eq!(renamed.refusal().1, "CONFLICT", "{renamed:?}");
    assert_eq!(client.get("/sandboxes").await.array().len(), 2);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_server_warns_and_listens_on_loopback_only() {
    let server = Server::start_with(&["--dev"]).await;
    let log = server.log();
    assert!(
        log.contains("every process on this machine has full access without a key"),
        "{log}"
    );
    let place = server.data().with_file_name("other");
    let words = ["serve", "--dev", "--listen", "0.0.0.0:0", "--data-dir"];
    let mut command = crate::cli::atoll(&words);
    command.arg(&place);
    command.env("ATOLL_TEMPLATES_DIR", data().join("templates"));
    let output = atoll_testkit::run_within(&mut command, DEADLINE, b"");
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("is not loopback"), "{stderr}");
    server.close().await;
}
