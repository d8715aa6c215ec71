//! Malformed HTTP/1 messages as raw bytes: each is refused with 400, the connection is closed, and pipelined
//! requests after it get no response, on every listener and for every kind of route.

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::{Server, tls};
use crate::harness::DEADLINE;

const DOMAIN: &str = "sandboxes.example.com";

/// Sends bytes in one or two pieces. Returns everything received until the server closes the connection.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: &[u8],
    split: usize,
) -> String {
    let (first, second) = bytes.split_at(split.min(bytes.len()));
    for piece in [first, second] {
        // The server may close the connection before all was sent.
        let _ = stream.write_all(piece).await;
        let _ = stream.flush().await;
        tokio::task::yield_now().await;
    }
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    let reading = async {
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            answer.extend_from_slice(&buffer[..count]);
        }
    };
    let closed = tokio::time::timeout(DEADLINE, reading).await;
    assert!(closed.is_ok(), "the server keeps the connection open");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Status codes of the responses in a stream.
fn statuses(answer: &str) -> Vec<&str> {
    let lines = answer.split("HTTP/1.").skip(1);
    lines.filter_map(|line| line.get(2..5)).collect()
}

/// Request heads that two parsers could interpret differently. `host` has the fields that select the recipient.
fn malformed(host: &str) -> Vec<(&'static str, String)> {
    let chunks = "0\r\n\r\n";
    let post = |name, fields: &str, body: &str| {
        let head = format!("POST /keys HTTP/1.1\r\n{host}{fields}\r\n{body}");
        (name, head)
    };
    vec![
        post("two hosts", "Host: other.example\r\n", ""),
        (
            "no host",
            "GET /health HTTP/1.1\r\nAccept: */*\r\n\r\n".into(),
        ),
        post(
            "a length, then chunks",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            chunks,
        ),
        post(
            "chunks, then a length",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            chunks,
        ),
        post(
            "a length of 0 and chunks",
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            chunks,
        ),
        post(
            "two lengths",
            "Content-Length: 3\r\nContent-Length: 5\r\n",
            "abc",
        ),
        post("a list of lengths", "Content-Length: 3, 5\r\n", "abc"),
        post("a length with a sign", "Content-Length: +3\r\n", "abc"),
        post("a hexadecimal length", "Content-Length: 0x3\r\n", "abc"),
        post(
            "gzip before chunked",
            "Transfer-Encoding: gzip, chunked\r\n",
            chunks,
        ),
        post(
            "chunked twice",
            "Transfer-Encoding: chunked, chunked\r\n",
            chunks,
        ),
        post(
            "chunked in two fields",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            chunks,
        ),
        post(
            "chunked, but not last",
            "Transfer-Encoding: chunked, identity\r\n",
            chunks,
        ),
        post("another coding", "Transfer-Encoding: identity\r\n", ""),
        post(
            "a vertical tab before chunked",
            "Transfer-Encoding: \u{b}chunked\r\n",
            chunks,
        ),
        post("a space before the colon", "Content-Length : 3\r\n", "abc"),
        post("a folded line", "X: a\r\n b\r\n", ""),
        post("a bare line feed", "X: a\nY: b\r\n", ""),
        post("a bare carriage return", "X: a\rY: b\r\n", ""),
        post("a field without a name", ": a\r\n", ""),
        post("a NUL", "X: a\0b\r\n", ""),
        (
            "bare line feeds only",
            format!("GET /health HTTP/1.1\n{}\n", host.replace("\r\n", "\n")),
        ),
        (
            "a bare line feed at the end",
            format!("GET /health HTTP/1.1\r\n{host}\n"),
        ),
        (
            "a bare line feed before the request",
            format!("\nGET /health HTTP/1.1\r\n{host}\r\n"),
        ),
        (
            "chunks in HTTP/1.0",
            format!("POST /keys HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n{chunks}"),
        ),
        ("HTTP/0.9", "GET /health\r\n".to_owned() + host + "\r\n"),
    ]
}

const NEXT: &str = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends every malformed head alone, in two pieces, and behind and before a good request.
async fn refuses_all<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl AsyncFn() -> S,
    host: &str,
    good: &str,
) {
    for (name, head) in malformed(host) {
        let pipelined = format!("{head}{NEXT}");
        for split in [0, 30, head.len() - 1] {
            let answer = exchange(connect().await, pipelined.as_bytes(), split).await;
            assert_eq!(statuses(&answer), ["400"], "{name}, {host:?}: {answer}");
        }
        let behind = format!("GET /health HTTP/1.1\r\n{host}\r\n{head}{NEXT}");
        let answer = exchange(connect().await, behind.as_bytes(), 0).await;
        assert_eq!(statuses(&answer), [good, "400"], "{name}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_heads_are_refused_over_tcp_and_unix_socket() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let tcp = async || TcpStream::connect(server.address()).await.unwrap();
    let socket = server.data().join("run/api.sock");
    let unix = async || UnixStream::connect(&socket).await.unwrap();
    refuses_all(tcp, "Host: localhost\r\n", "200").await;
    refuses_all(unix, "Host: localhost\r\n", "200").await;
    // E2B's routes and a port, both of a sandbox that needs a key for them.
    let envd = format!("Host: localhost\r\nE2b-Sandbox-Id: {id}\r\n");
    refuses_all(tcp, &envd, "502").await;
    let port = format!("Host: 8000-{id}.{DOMAIN}\r\n");
    refuses_all(tcp, &port, "502").await;
    // The metrics listener, which has no health route.
    let metrics = async || TcpStream::connect(server.metrics_address()).await.unwrap();
    refuses_all(metrics, "Host: localhost\r\n", "404").await;
    // Other requests continue to work.
    assert_eq!(client.line(&id, "echo works").await, "works\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_heads_are_refused_over_tls() {
    let files = atoll_testkit::Scratch::new();
    let trusted = tls::make(files.path());
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    let server = Server::start_with(&[
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ])
    .await;
    let connect = async || tls::connect(&server, &trusted, "http/1.1").await.unwrap();
    refuses_all(connect, "Host: localhost\r\n", "200").await;
    server.end_and_clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_chunks_fail_the_request_and_close_the_connection() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let key = client.key.clone().unwrap();
    let put = format!(
        "PUT /sandboxes/{id}/files?path=chunks HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    let tcp = async || TcpStream::connect(server.address()).await.unwrap();
    for (name, body) in [
        ("a bare line feed behind a size", "3\nabc\r\n0\r\n\r\n"),
        ("a bare line feed behind a chunk", "3\r\nabc\n0\r\n\r\n"),
        ("a chunk longer than its size", "3\r\nabcd\r\n0\r\n\r\n"),
        ("a size with a sign", "+3\r\nabc\r\n0\r\n\r\n"),
        ("a size with a prefix", "0x3\r\nabc\r\n0\r\n\r\n"),
        ("a size with a space", "3 \r\nabc\r\n0\r\n\r\n"),
        ("no size", "\r\nabc\r\n0\r\n\r\n"),
        (
            "a size of 17 digits",
            "10000000000000003\r\nabc\r\n0\r\n\r\n",
        ),
        ("the largest size", "ffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        ("a line feed in an extension", "3;a\nb\r\nabc\r\n0\r\n\r\n"),
        ("a NUL in an extension", "3;\0\r\nabc\r\n0\r\n\r\n"),
        (
            "a bare line feed in trailers",
            "3\r\nabc\r\n0\r\nA: b\n\r\n",
        ),
        ("a trailer without a colon", "3\r\nabc\r\n0\r\nab\r\n\r\n"),
    ] {
        for split in [put.len(), put.len() + 2] {
            let bytes = format!("{put}{body}{NEXT}");
            let mut stream = tcp().await;
            // A chunk without an end consumes the rest of the connection, which the client closes.
            if name == "the largest size" {
                stream.write_all(bytes.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
                let answer = exchange(stream, b"", 0).await;
                assert!(!answer.contains("200"), "{answer}");
                continue;
            }
            let answer = exchange(stream, bytes.as_bytes(), split).await;
            assert_eq!(statuses(&answer), ["400"], "{name}: {answer}");
        }
    }
    assert_eq!(
        client.line(&id, "ls -A ~ | grep -c chunks || true").await,
        "0\n"
    );
    // Extensions and trailers are allowed, and another request may follow.
    let good = format!("{put}3;a=\"b\"\r\nabc\r\n2;c\r\nde\r\n0\r\nA: b\r\n\r\n");
    let last = NEXT.replace("Host", "Connection: close\r\nHost");
    let answer = exchange(tcp().await, format!("{good}{last}").as_bytes(), 0).await;
    assert_eq!(statuses(&answer), ["200", "200"], "{answer}");
    assert_eq!(client.line(&id, "cat ~/chunks").await, "abcde");
    server.close().await;
}
