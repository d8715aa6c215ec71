//! The template API.

use atoll_testkit::{Scratch, static_layer};
use bytes::Bytes;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::Server;
use crate::harness::DEADLINE;

/// A root file system of one static binary, as an archive.
fn archive(scratch: &Scratch) -> Vec<u8> {
    let tree = scratch.join("tree");
    static_layer(&tree);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", &tree).unwrap();
    builder.into_inner().unwrap()
}

/// Whether this process builds a template.
fn builds(pid: rustix::process::Pid) -> bool {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten();
    let mut open = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    open.any(|path| path.to_string_lossy().contains("/.new-"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_is_created_used_and_removed() {
    let server = Server::start().await;
    let client = server.client();
    let scratch = Scratch::new();
    // All tests share their templates.
    let one = format!("api-{}", std::process::id());
    let (make, template) = (
        format!("/templates?name={one}"),
        format!("/templates/{one}"),
    );
    let archive = archive(&scratch);
    let made = client.send("POST", &make, &[], archive.clone()).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.json()["templateID"], one);
    let again = client.send("POST", &make, &[], archive.clone()).await;
    assert_eq!(again.refusal().1, "CONFLICT");
    let replaced = client
        .send(
            "POST",
            &format!("{make}&replace=true"),
            &[],
            archive.clone(),
        )
        .await;
    assert_eq!(replaced.status, 201, "{replaced:?}");
    let all = client.get("/templates").await.array();
    let found = all.iter().find(|found| found["name"] == one).unwrap();
    assert_eq!(found["default"], false);
    assert!(
        all.iter()
            .any(|found| found["name"] == "base" && found["default"] == true)
    );
    // The pages together have the same templates.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/templates?limit=1{cursor}")).await;
        paged.extend(page.array());
        match page.headers.get("x-next-cursor") {
            Some(next) => cursor = format!("&cursor={}", next.to_str().unwrap()),
            None => break,
        }
    }
    assert_eq!(paged, all);

    // A stopped sandbox uses its template too.
    let id = client.sandbox(&json!({ "template": one })).await;
    assert_eq!(client.delete(&template).await.refusal().1, "CONFLICT");
    let stopped = client
        .post(&format!("/sandboxes/{id}/stop"), &json!({}))
        .await;
    assert_eq!(stopped.status, 200);
    assert_eq!(client.delete(&template).await.refusal().1, "CONFLICT");
    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let removed = client.delete(&template).await;
    assert_eq!(removed.status, 204, "{removed:?}");
    assert_eq!(
        client.get(&template).await.refusal().1,
        "TEMPLATE_NOT_FOUND"
    );
    assert_eq!(
        client.delete(&template).await.refusal().1,
        "TEMPLATE_NOT_FOUND"
    );
    assert_eq!(
        client.delete("/templates/base").await.refusal().1,
        "CONFLICT"
    );

    // An invalid or truncated archive leaves nothing behind.
    for body in [archive[..archive.len() / 2].to_vec(), vec![b'x'; 5000]] {
        let refused = client
            .send("POST", "/templates?name=api-broken", &[], body)
            .await;
        assert_eq!(refused.refusal().0, 400, "{refused:?}");
    }
    let mut broken = tokio::net::TcpStream::connect(&client.address)
        .await
        .unwrap();
    let key = client.key.clone().unwrap();
    let head = format!(
        "POST /templates?name=api-broken HTTP/1.1\r\nhost: {}\r\nx-api-key: {key}\r\ncontent-length: {}\r\n\r\n",
        client.address,
        archive.len()
    );
    broken.write_all(head.as_bytes()).await.unwrap();
    // A truncation at a header boundary.
    broken.write_all(&archive[..1024]).await.unwrap();
    let pid = server.pid();
    atoll_testkit::wait_for("the upload to begin", DEADLINE, || builds(pid));
    drop(broken);
    atoll_testkit::wait_for("the upload to end", DEADLINE, || !builds(pid));
    assert_eq!(client.get("/templates/api-broken").await.status, 404);

    for (path, kind, body, expected) in [
        ("/templates", "", "x", "INVALID_REQUEST"),
        ("/templates?name=A", "", "x", "INVALID_REQUEST"),
        ("/templates?name=base", "", "x", "INVALID_REQUEST"),
        (
            "/templates",
            "application/json",
            r#"{"name": "x", "dockerfile": "FROM x"}"#,
            "UNSUPPORTED_BY_HOST",
        ),
        (
            "/templates",
            "application/json",
            r#"{"dockerfile": "FROM x"}"#,
            "INVALID_REQUEST",
        ),
    ] {
        let headers = [("content-type", kind)];
        let refused = client.send("POST", path, &headers, Bytes::from(body)).await;
        assert_eq!(refused.refusal().1, expected, "{path} {refused:?}");
    }
    server.close().await;
}
