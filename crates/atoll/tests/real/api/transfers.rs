//! Large files over HTTP, by clients that are slow, petty, or gone in the middle.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::pressure::memory;
use super::{Client, Server};
use crate::world::DEADLINE;

/// A server, and a sandbox of it.
async fn begin() -> (Server, Client, String) {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    (server, client, id)
}

/// A connection on which a request has begun.
async fn ask(client: &Client, method: &str, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&client.address).await.unwrap();
    let key = client.key.as_deref().unwrap();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Reads the head of an answer.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = tokio::time::timeout(DEADLINE, stream.read_u8()).await;
        head.push(byte.unwrap().unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_slowly_holds_little_memory() {
    const READERS: usize = 50;
    let (server, client, id) = begin().await;
    client.line(&id, "truncate -s 1G ~/big").await;
    let before = memory(&server);
    let path = format!("/sandboxes/{id}/files?path=big");
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut stream = ask(&client, "GET", &path, "").await;
        let head = head(&mut stream).await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
        readers.push(stream);
    }
    // Each gets on, and then waits again.
    let mut some = vec![1; 8 << 20];
    for stream in &mut readers {
        let read = tokio::time::timeout(DEADLINE, stream.read_exact(&mut some)).await;
        read.unwrap().unwrap();
        assert!(some.iter().all(|byte| *byte == 0));
    }
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 48, "{grown} MiB for {READERS} readers");
    drop(readers);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_comes_byte_by_byte_is_whole() {
    let (server, client, id) = begin().await;
    let path = format!("/sandboxes/{id}/files?path=petty");
    let mut stream = ask(&client, "PUT", &path, "transfer-encoding: chunked\r\n").await;
    let bytes: Vec<u8> = (0..=250).cycle().take(100_000).collect();
    let mut chunks = Vec::new();
    for byte in &bytes {
        chunks.extend_from_slice(&[b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
    }
    chunks.extend_from_slice(b"0\r\n\r\n");
    stream.write_all(&chunks).await.unwrap();
    let said = head(&mut stream).await;
    assert!(said.starts_with("http/1.1 200"), "{said}");
    assert_eq!(client.get(&path).await.body, bytes);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_in_the_middle_of_a_file_leaves_the_old_one() {
    let (server, client, id) = begin().await;
    client.line(&id, "echo old > ~/file").await;
    let path = format!("/sandboxes/{id}/files?path=file");
    for headers in [
        "content-length: 50000000\r\n",
        "transfer-encoding: chunked\r\n",
    ] {
        let mut stream = ask(&client, "PUT", &path, headers).await;
        // A piece that has begun, as large as its head says in hexadecimal; more follow, and do not come.
        stream.write_all(b"1c9c380\r\n").await.unwrap();
        stream.write_all(&vec![b'x'; 30_000_000]).await.unwrap();
        drop(stream);
    }
    // What was begun beside it goes too.
    let mut left = String::new();
    let gone = async {
        loop {
            left = client.line(&id, "ls -A ~ | grep '^.atoll-' || true").await;
            if left.is_empty() {
                break;
            }
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.unwrap();
    assert_eq!(client.line(&id, "cat ~/file").await, "old\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_shrinks_meanwhile_breaks_off_and_is_never_a_short_one() {
    const SIZE: usize = 1 << 30;
    let (server, client, id) = begin().await;
    let path = format!("/sandboxes/{id}/files?path=big");
    for part in ["", "range: bytes=5-\r\n"] {
        client.line(&id, &format!("truncate -s {SIZE} ~/big")).await;
        let mut stream = ask(&client, "GET", &path, part).await;
        let head = head(&mut stream).await;
        let length = if part.is_empty() { SIZE } else { SIZE - 5 };
        assert!(
            head.contains(&format!("content-length: {length}\r\n")),
            "{head}"
        );
        client.line(&id, "truncate -s 10 ~/big").await;
        let mut buffer = vec![0; 1 << 20];
        let mut got = 0;
        let rest = async {
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                got += count;
            }
        };
        tokio::time::timeout(DEADLINE, rest).await.unwrap();
        assert!(got < length, "{got}");
    }
    server.close().await;
}
