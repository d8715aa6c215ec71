//! Raw WebSocket frames: oversized and malformed frames are refused with the close code that the RFC defines.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::tunnels::{COUNTER, serve};
use super::{Client, Server};
use crate::harness::DEADLINE;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
/// The frame is the last of its message.
const LAST: u8 = 0x80;
/// Masked, with a length of eight bytes.
const LONG: u8 = 0x80 | 127;

/// The longest message that is taken.
const MOST: usize = 4 << 20;

/// Opens a WebSocket without sending any frame.
pub(super) async fn open(client: &Client, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&client.address).await.unwrap();
    let key = client.key.as_deref().unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    stream
}

/// A frame that claims a length, with a mask that changes nothing.
fn frame(first: u8, length: usize, payload: &[u8]) -> Vec<u8> {
    let head = [first, LONG];
    let length = (length as u64).to_be_bytes();
    [&head[..], &length, &[0; 4], payload].concat()
}

/// Sends bytes and reads until the connection ends. Returns the close code.
async fn code(mut stream: TcpStream, bytes: &[u8]) -> u16 {
    let (mut reader, mut writer) = stream.split();
    // The server may reject the frame before all of it is sent.
    let saying = async { writer.write_all(bytes).await.is_ok() };
    let hearing = async {
        let mut all = Vec::new();
        let _ = reader.read_to_end(&mut all).await;
        all
    };
    let both = async { tokio::join!(saying, hearing) };
    let both = tokio::time::timeout(DEADLINE, both).await;
    let (_, all) = both.expect("the connection ends");
    let mut rest = all.as_slice();
    loop {
        let [first, length, ..] = *rest else {
            panic!("no close among {all:?}");
        };
        let (head, length) = match length {
            126 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            127 => panic!("a long frame"),
            length => (2, usize::from(length)),
        };
        let payload = &rest[head..head + length];
        if first == 0x88 {
            return u16::from_be_bytes([payload[0], payload[1]]);
        }
        rest = &rest[head + length..];
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_websocket_frames_are_refused_by_close_code() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let made = json!({ "cmd": "cat", "background": true, "openStdin": true, "tag": "cat" });
    let commands = format!("/sandboxes/{id}/commands");
    assert_eq!(client.post(&commands, &made).await.status, 202);
    serve(&client, &id, 7001, COUNTER).await;

    let part = vec![b'x'; 1 << 20];
    let mut fragments = frame(BINARY, part.len(), &part);
    for _ in 0..4 {
        fragments.extend(frame(0, part.len(), &part));
    }
    let whole = vec![b'x'; MOST + 1];
    let cases = [
        ("a length", 1009, frame(LAST | BINARY, MOST + 1, b"")),
        ("all lengths", 1009, frame(LAST | BINARY, usize::MAX, b"")),
        ("a frame", 1009, frame(LAST | BINARY, whole.len(), &whole)),
        ("fragments", 1009, fragments),
        ("no text", 1007, frame(LAST | TEXT, 2, b"\xff\xff")),
        ("no mask", 1002, vec![LAST | BINARY, 1, b'x']),
        ("a reserved bit", 1002, frame(LAST | 0x40 | BINARY, 1, b"x")),
        ("nothing to go on with", 1002, frame(LAST, 1, b"x")),
    ];
    let output = format!("{commands}/tag:cat/output");
    let tunnel = format!("/sandboxes/{id}/ports/7001/tunnel");
    for path in [format!("/sandboxes/{id}/pty"), output, tunnel.clone()] {
        for (what, expected, bytes) in &cases {
            let stream = open(&client, &path).await;
            let code = code(stream, bytes).await;
            assert_eq!(code, *expected, "{what} to {path}");
        }
    }
    // A tunnel accepts smaller frames only.
    let bytes = frame(LAST | BINARY, part.len() + 1, &whole[..=part.len()]);
    assert_eq!(code(open(&client, &tunnel).await, &bytes).await, 1009);
    server.close().await;
}
