//! Signed URLs (D10), tickets, and range requests.

use bytes::Bytes;
use serde_json::json;

use super::{Client, Server};

/// Creates a link; returns its path and query.
async fn link(client: &Client, id: &str, kind: &str, path: &str) -> String {
    let request = json!({ "path": path, "expiresIn": 60 });
    let made = client
        .post(&format!("/sandboxes/{id}/files/{kind}-url"), &request)
        .await;
    assert_eq!(made.status, 200, "{made:?}");
    let url = made.json()["url"].as_str().unwrap().to_owned();
    let origin = format!("http://{}", client.address);
    url.strip_prefix(&origin).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_signed_link_grants_exactly_its_scope() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let other = client.sandbox(&json!({ "timeout": 0 })).await;
    for sandbox in [&id, &other] {
        client
            .line(sandbox, "echo one > 'a b&c'; echo two > other")
            .await;
    }
    let keyless = client.with_key(None);
    let down = link(&client, &id, "download", "a b&c").await;
    let read = keyless.get(&down).await;
    assert_eq!((read.status, &*read.body), (200, &b"one\n"[..]), "{down}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("content-disposition", "attachment"),
        ("content-security-policy", "sandbox"),
    ] {
        assert_eq!(read.headers[name], value);
    }
    let up = link(&client, &id, "upload", "new/file").await;
    let sent = keyless.send("PUT", &up, &[], "sent").await;
    assert_eq!(sent.status, 200, "{sent:?}");
    assert_eq!(client.line(&id, "cat new/file").await, "sent");

    let expires: i64 = {
        let rest = down.split("expires=").nth(1).unwrap();
        rest.split('&').next().unwrap().parse().unwrap()
    };
    let later = down.replace(
        &format!("expires={expires}"),
        &format!("expires={}", expires + 9),
    );
    let last = down.chars().last().unwrap();
    let flipped = if last == '0' { '1' } else { '0' };
    let forged = format!("{}{flipped}", &down[..down.len() - 1]);
    for (what, method, path) in [
        ("another path", "GET", down.replace("a+b%26c", "other")),
        ("another sandbox", "GET", down.replace(&id, &other)),
        ("no sandbox", "GET", down.replace(&id, "missing")),
        ("another user", "GET", format!("{down}&user=root")),
        (
            "more rights",
            "GET",
            down.replace("authority=user", "authority=root"),
        ),
        ("another time", "GET", later),
        ("another signature", "GET", forged),
        (
            "a part of a signature",
            "GET",
            down[..down.len() - 2].to_owned(),
        ),
        (
            "no signature",
            "GET",
            format!("{}signature=", down.split("signature=").next().unwrap()),
        ),
        (
            "letters that are none",
            "GET",
            down.replace("signature=", "signature=%C3%A9"),
        ),
        ("another way", "PUT", down.replace("/download?", "/upload?")),
        ("encoded twice", "GET", down.replace("%26", "%2526")),
    ] {
        let response = keyless.send(method, &path, &[], Bytes::new()).await;
        assert_eq!(
            response.refusal().1,
            "PERMISSION_DENIED",
            "{what}: {path} {response:?}"
        );
    }
    assert_eq!(keyless.send("PUT", &down, &[], "x").await.status, 405);
    assert_eq!(client.line(&id, "cat 'a b&c'").await, "one\n");

    // Links survive a restart of the server, and expire.
    server.kill_and_start();
    let (client, keyless) = (server.client(), server.client().with_key(None));
    assert_eq!(keyless.get(&down).await.status, 200);
    let short = json!({ "path": "other", "expiresIn": 1 });
    let short = client
        .post(&format!("/sandboxes/{id}/files/download-url"), &short)
        .await;
    let url = short.json()["url"].as_str().unwrap().to_owned();
    let short = url.split_once(&client.address).unwrap().1.to_owned();
    let begin = std::time::Instant::now();
    while keyless.get(&short).await.status == 200 {
        assert!(begin.elapsed() < crate::harness::DEADLINE);
    }
    assert_eq!(keyless.get(&short).await.refusal().0, 403);

    assert_eq!(client.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(keyless.get(&down).await.refusal().1, "SANDBOX_NOT_FOUND");
    let secret = std::fs::metadata(server.data().join("signing.key")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&secret) & 0o777, 0o600);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticket_is_valid_for_one_get_request() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let keyless = client.with_key(None);
    let ticket = async |client: &Client| {
        let made = client.post("/tickets", &json!({})).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.json()["ticket"].as_str().unwrap().to_owned()
    };
    let file = format!("/sandboxes/{id}/files?path=/etc/hostname&ticket=");
    let one = ticket(&client).await;
    assert_eq!(keyless.get(&format!("{file}{one}")).await.status, 200);
    let response = keyless.get(&format!("{file}{one}")).await.refusal();
    assert_eq!((response.0, response.1.as_str()), (401, "INVALID_TICKET"));
    // A ticket is valid for GET requests only.
    let one = ticket(&client).await;
    let path = format!("/sandboxes/{id}/files?path=x&ticket={one}");
    assert_eq!(keyless.send("PUT", &path, &[], "x").await.refusal().0, 401);
    let path = format!("/tickets?ticket={one}");
    assert_eq!(keyless.post(&path, &json!({})).await.refusal().0, 401);
    // A ticket for a WebSocket has the rights of the key that created it.
    let url = format!("ws://{}/sandboxes/{id}/pty?ticket={one}", client.address);
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    let close = async |socket: &mut tokio_tungstenite::WebSocketStream<_>| {
        use futures_util::StreamExt as _;
        use tokio_tungstenite::tungstenite::Message;
        loop {
            match socket.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return Some(u16::from(frame.code)),
                Some(Ok(Message::Binary(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    };
    assert_eq!(close(&mut socket).await, None);
    drop(socket);
    let made = client
        .post("/keys", &json!({ "name": "r", "scope": "sandbox:read" }))
        .await
        .json();
    let reader = client.with_key(made["key"].as_str());
    let one = ticket(&reader).await;
    let url = format!("ws://{}/sandboxes/{id}/pty?ticket={one}", client.address);
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    assert_eq!(close(&mut socket).await, Some(4008));
    // Revoking a key invalidates its tickets.
    let one = ticket(&reader).await;
    let key = format!("/keys/{}", made["keyID"].as_str().unwrap());
    assert_eq!(client.delete(&key).await.status, 204);
    assert_eq!(keyless.get(&format!("{file}{one}")).await.status, 401);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn range_request_returns_part_of_a_file() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client
        .line(&id, "printf 0123456789 > digits; : > none")
        .await;
    let path = format!("/sandboxes/{id}/files?path=digits");
    for (range, status, body, place) in [
        ("bytes=0-3", 206, "0123", "bytes 0-3/10"),
        ("bytes=4-4", 206, "4", "bytes 4-4/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=7-99999999999999999999", 200, "0123456789", ""),
        ("bytes=7-99", 206, "789", "bytes 7-9/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=-30", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, "", "bytes */10"),
        ("bytes=-0", 416, "", "bytes */10"),
        ("bytes=5-3", 200, "0123456789", ""),
        ("bytes=0-1,3-4", 200, "0123456789", ""),
        ("lines=0-1", 200, "0123456789", ""),
    ] {
        let response = client
            .send("GET", &path, &[("range", range)], Bytes::new())
            .await;
        let at = response.headers.get("content-range");
        let at = at.map_or("", |at| at.to_str().unwrap());
        assert_eq!((response.status, at), (status, place), "{range}");
        if status == 416 {
            assert_eq!(response.refusal().1, "RANGE_NOT_SATISFIABLE");
        } else {
            assert_eq!(response.body, body.as_bytes(), "{range}");
        }
    }
    let whole = client.get(&path).await;
    let mark = [("if-none-match", whole.headers["etag"].to_str().unwrap())];
    let response = client.send("GET", &path, &mark, Bytes::new()).await;
    assert_eq!((response.status, response.body.len()), (304, 0));
    let none = format!("/sandboxes/{id}/files?path=none");
    let response = client
        .send("GET", &none, &[("range", "bytes=0-")], Bytes::new())
        .await;
    assert_eq!(response.status, 416);
    server.close().await;
}
