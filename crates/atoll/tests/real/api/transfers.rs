//! Large file transfers by clients that are slow, read in tiny pieces, or disconnect.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::pressure::memory;
use super::{Client, Server};
use crate::harness::DEADLINE;

/// A server, and a sandbox of it.
async fn begin() -> (Server, Client, String) {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    (server, client, id)
}

/// Opens a connection and sends a request head.
async fn ask(client: &Client, method: &str, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&client.address).await.unwrap();
    let key = client.key.as_deref().unwrap();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Reads the head of a response.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = tokio::time::timeout(DEADLINE, stream.read_u8()).await;
        head.push(byte.unwrap().unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_cost_little_server_memory() {
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
    // Each transfer advances, and then waits again.
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
async fn file_sent_byte_by_byte_arrives_complete() {
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
    let response = head(&mut stream).await;
    assert!(response.starts_with("http/1.1 200"), "{response}");
    assert_eq!(client.get(&path).await.body, bytes);
    server.close().await;
}

/// A complete response: status line and body.
async fn answer(stream: &mut TcpStream) -> (String, String) {
    let head = head(stream).await;
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    let read = tokio::time::timeout(DEADLINE, stream.read_exact(&mut body)).await;
    read.unwrap().unwrap();
    let status = head.lines().next().unwrap().to_owned();
    (status, String::from_utf8(body).unwrap())
}

/// Bytes that are the same nowhere, others for each seed.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consecutive_large_files_on_a_connection_are_complete() {
    let (server, client, id) = begin().await;
    let key = client.key.as_deref().unwrap();
    let path = |number: usize| format!("/sandboxes/{id}/files?path=large{number}");
    // Sizes around those of buffers, small ones between them, and a large one.
    let sizes = [
        1 << 20,
        (1 << 20) + 1,
        100,
        (1 << 20) - 1,
        3_000_001,
        0,
        20_000_000,
    ];
    let files: Vec<_> = (1..).zip(sizes).map(|(n, size)| bytes(n, size)).collect();
    // Pipelined, so that each request's head directly follows the previous body; in writes of all sizes.
    let mut all = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let (path, length) = (path(number), file.len());
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: {length}\r\n\r\n"
        );
        all.extend_from_slice(head.as_bytes());
        all.extend_from_slice(file);
    }
    let stream = TcpStream::connect(&client.address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        let mut rest = all.as_slice();
        for size in (1..).map(|turn| turn * turn * 7 % 99_991 + 1) {
            if rest.is_empty() {
                return writer;
            }
            let (piece, left) = rest.split_at(rest.len().min(size));
            writer.write_all(piece).await.unwrap();
            rest = left;
        }
        writer
    });
    let mut heard = String::new();
    let hearing = async {
        while heard.matches("HTTP/1.1 200").count() < sizes.len() || !heard.ends_with('}') {
            let mut some = [0; 4096];
            let count = reader.read(&mut some).await.unwrap();
            assert!(count > 0, "it ended: {heard}");
            heard.push_str(std::str::from_utf8(&some[..count]).unwrap());
        }
    };
    tokio::time::timeout(DEADLINE, hearing).await.unwrap();
    drop(sending.await.unwrap());
    // Downloads, requested in one write and read slowly.
    let request = |number| {
        let path = path(number);
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n")
    };
    let requests: String = (0..files.len()).map(request).collect();
    let mut stream = TcpStream::connect(&client.address).await.unwrap();
    stream.write_all(requests.as_bytes()).await.unwrap();
    for (number, file) in files.iter().enumerate() {
        let head = head(&mut stream).await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
        let length = format!("content-length: {}\r\n", file.len());
        let chunked = "transfer-encoding: chunked\r\n";
        let mut read = vec![0; file.len()];
        if head.contains(chunked) {
            // A response without a length.
            assert!(file.is_empty(), "{head}");
            read.resize(5, 0);
        } else {
            assert!(head.contains(&length), "{head}");
        }
        for piece in read.chunks_mut(50_000) {
            stream.read_exact(piece).await.unwrap();
        }
        assert!(
            read == *file || read == b"0\r\n\r\n",
            "file {number} of {} bytes",
            file.len()
        );
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_upload_reads_the_error_and_keeps_the_connection() {
    let server = Server::start().await;
    let client = server.client();
    let small = json!({ "timeout": 0, "memoryMB": 64 });
    let id = client.sandbox(&small).await;
    let path = format!("/sandboxes/{id}/files?path=/dev/shm/large");
    let room = client
        .line(&id, "df -B1 --output=avail /dev/shm | tail -1")
        .await;
    // Raises the memory limit of warm sandboxes: files in memory must be refused before the memory is full.
    let room = room.trim().parse::<usize>().unwrap();
    assert_eq!(room, 32 << 20);
    let length = room + 400_000;
    let headers = format!("content-length: {length}\r\n");
    let mut stream = ask(&client, "PUT", &path, &headers).await;
    stream.write_all(&bytes(1, length)).await.unwrap();
    let (status, why) = answer(&mut stream).await;
    assert!(status.starts_with("http/1.1 507"), "{status} {why}");
    // The connection is in the same state as after a complete read.
    let request = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let (status, _) = answer(&mut stream).await;
    assert!(status.starts_with("http/1.1 200"), "{status}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_upload_may_outlast_the_client_timeout() {
    let server = Server::start_with(&["--body-timeout", "4s"]).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/files?path=slow");
    let body = bytes(2, 2_000_000);
    let headers = format!("content-length: {}\r\n", body.len());
    let mut stream = ask(&client, "PUT", &path, &headers).await;
    let mut pieces = body.chunks(500_000);
    for piece in pieces.by_ref().take(3) {
        stream.write_all(piece).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    }
    stream.write_all(pieces.next().unwrap()).await.unwrap();
    let (status, body_text) = answer(&mut stream).await;
    assert!(status.starts_with("http/1.1 200"), "{status} {body_text}");
    assert!(client.get(&path).await.body == body);
    // The server does not wait for ever.
    let mut stream = ask(&client, "PUT", &path, &headers).await;
    stream.write_all(&body[..1_500_000]).await.unwrap();
    let (status, body_text) = answer(&mut stream).await;
    assert!(status.starts_with("http/1.1 400"), "{status} {body_text}");
    assert!(body_text.contains("the body is incomplete"), "{body_text}");
    assert!(client.get(&path).await.body == body);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_upload_keeps_the_old_file() {
    let (server, client, id) = begin().await;
    client.line(&id, "echo old > ~/file").await;
    let path = format!("/sandboxes/{id}/files?path=file");
    for headers in [
        "content-length: 50000000\r\n",
        "transfer-encoding: chunked\r\n",
    ] {
        let mut stream = ask(&client, "PUT", &path, headers).await;
        // A chunk header with its size in hexadecimal; its data never arrives.
        stream.write_all(b"1c9c380\r\n").await.unwrap();
        stream.write_all(&vec![b'x'; 30_000_000]).await.unwrap();
        drop(stream);
    }
    // Its temporary files are removed too.
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
async fn shrinking_file_aborts_its_download() {
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
