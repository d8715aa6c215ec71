//! Uploads that are refused before a file is created.

use serde_json::json;

use super::calls::Agent;
use crate::api::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_metadata_is_printable_and_bounded() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let octets = ("content-type", "application/octet-stream");
    let (long, longer) = (
        format!("x-metadata-{}", "k".repeat(246)),
        format!("x-metadata-{}", "k".repeat(247)),
    );
    let (full, over) = ("v".repeat(4095), "v".repeat(4096));
    for (name, value, status) in [
        (long.as_str(), "v", 200),
        (&longer, "v", 400),
        ("x-metadata-", "v", 400),
        ("x-metadata-k", "tab\there", 400),
        ("x-metadata-k", "ü", 400),
        ("x-metadata-k", &full, 200),
        ("x-metadata-k", &over, 400),
    ] {
        let headers = [octets, (name, value)];
        let path = "/files?path=labelled";
        let answer = agent.ask("POST", path, &headers, "x").await;
        // The file system may have less space than the upload.
        let full = answer.status == 507 && value.len() > 4000;
        assert!(
            answer.status == status || full && status == 200,
            "{name} {answer:?}"
        );
        if answer.status != 200 {
            assert_eq!(answer.json()["code"], answer.status);
        }
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_upload_creates_no_file() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let octets = ("content-type", "application/octet-stream");
    for (path, headers, words) in [
        ("/files", vec![octets], "path"),
        ("/files?path=", vec![octets], "path"),
        ("/files?path=made", vec![], "Content-Type"),
        (
            "/files?path=made",
            vec![("content-type", "text/plain")],
            "Content-Type",
        ),
        (
            "/files?path=made",
            vec![octets, ("content-encoding", "br")],
            "Content-Encoding",
        ),
    ] {
        let answer = agent.ask("POST", path, &headers, "x").await;
        assert_eq!(answer.status, 400, "{path} {headers:?} {answer:?}");
        assert_eq!(answer.json()["code"], 400);
        let message = answer.json()["message"].to_string();
        assert!(message.contains(words), "{message}");
    }
    let path = json!({ "path": "/home/user/made" });
    let made = agent.call("filesystem.Filesystem/Stat", &path).await;
    assert_eq!(made.status, 404, "{made:?}");
    server.close().await;
}
