//! Tunnels to servers inside sandboxes.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::lifetimes::{becomes, state};
use super::sockets::{Socket, closed, open, send};
use super::{Client, Server};
use crate::harness::DEADLINE;

/// Starts a server in a sandbox, and waits until it listens.
pub async fn serve(client: &Client, id: &str, port: u16, program: &str) {
    let begun = json!({ "cmd": "python3", "args": ["-c", program], "background": true });
    let path = format!("/sandboxes/{id}");
    let begun = client.post(&format!("{path}/commands"), &begun).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let waiting = async {
        loop {
            let ports = client.get(&format!("{path}/ports")).await.array();
            if ports.iter().any(|found| found["port"] == port) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(DEADLINE, waiting).await;
    assert!(done.is_ok(), "nothing listens at {port}");
}

/// Reads binary frames up to an empty one, which marks the end of the other side's data.
async fn all(socket: &mut Socket) -> Vec<u8> {
    let reading = async {
        let mut all = Vec::new();
        loop {
            match socket.next().await.unwrap().unwrap() {
                Message::Binary(bytes) if bytes.is_empty() => return all,
                Message::Binary(bytes) => all.extend_from_slice(&bytes),
                Message::Close(frame) => panic!("{frame:?}"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap()
}

/// Reads until the end of the input, then responds with the length: works only if a half-close is forwarded.
pub(super) const COUNTER: &str = "
import socket
server = socket.create_server(('127.0.0.1', 7001))
while True:
    one, _ = server.accept()
    count = 0
    while data := one.recv(65536):
        count += len(data)
    one.sendall(b'%d' % count)
    one.close()
";

/// Echoes its input.
const ECHO: &str = "
import socket, threading
server = socket.create_server(('127.0.0.1', 7002))
def serve(one):
    while data := one.recv(65536):
        one.sendall(data)
    one.shutdown(socket.SHUT_WR)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnel_directions_are_independent_and_close_separately() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    serve(&client, &id, 7001, COUNTER).await;
    serve(&client, &id, 7002, ECHO).await;
    let path = format!("/sandboxes/{id}/ports");
    let mut socket = open(&client, &format!("{path}/7001/tunnel")).await;
    for _ in 0..100 {
        send(&mut socket, &vec![7; 50_000]).await;
    }
    send(&mut socket, b"").await;
    assert_eq!(all(&mut socket).await, b"5000000");
    assert_eq!(closed(&mut socket).await, 1000);

    // Both directions at once, neither waiting for the other, byte for byte.
    let socket = open(&client, &format!("{path}/7002/tunnel")).await;
    let (mut sink, mut source) = socket.split();
    let sending = async {
        for number in 0..200_u32 {
            let bytes = vec![number as u8; 50_000];
            sink.send(Message::Binary(bytes.into())).await.unwrap();
        }
        sink.send(Message::Binary(Vec::new().into())).await.unwrap();
    };
    let reading = async {
        let mut position = 0_usize;
        while let Some(Ok(message)) = source.next().await {
            match message {
                Message::Binary(bytes) => {
                    for byte in &bytes {
                        assert_eq!(*byte, (position / 50_000) as u8);
                        position += 1;
                    }
                }
                Message::Close(frame) => {
                    assert_eq!(u16::from(frame.unwrap().code), 1000);
                    return position;
                }
                _ => {}
            }
        }
        position
    };
    let both = async { tokio::join!(sending, reading) };
    let ((), position) = tokio::time::timeout(DEADLINE, both).await.unwrap();
    assert_eq!(position, 200 * 50_000);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_tunnel_names_the_reason_and_open_one_prevents_idle() {
    let server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "idleTimeout": 1, "onIdle": "stop" });
    let id = client.sandbox(&request).await;
    let path = format!("/sandboxes/{id}/ports");
    // No listener on the port: reported by a close code, and without a WebSocket as an ordinary error.
    let mut socket = open(&client, &format!("{path}/7009/tunnel")).await;
    assert_eq!(closed(&mut socket).await, 4004);
    let refused = client.get(&format!("{path}/7009/tunnel")).await;
    assert_eq!(refused.refusal().1, "CONFLICT");
    assert!(
        refused.json()["remedy"]
            .as_str()
            .unwrap()
            .contains("server")
    );
    let nowhere = open(&client, "/sandboxes/no-such/ports/80/tunnel").await;
    assert_eq!(closed(&mut { nowhere }).await, 4001);

    // A server process that outlives its command does not prevent idling; a tunnel to it does.
    let program = format!("setsid python3 -c \"{ECHO}\" > /dev/null 2>&1 &");
    client.line(&id, &program).await;
    let waiting = async {
        while client.get(&path).await.array().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap();
    let mut socket = open(&client, &format!("{path}/7002/tunnel")).await;
    // A sandbox that is idle since then serves as the reference.
    let other = client.sandbox(&request).await;
    becomes(&client, &other, "stopped").await;
    assert_eq!(state(&client, &id).await, "running");
    send(&mut socket, b"hello").await;
    match socket.next().await.unwrap().unwrap() {
        Message::Binary(bytes) => assert_eq!(&bytes[..], b"hello"),
        other => panic!("{other:?}"),
    }
    // The tunnel ends with the sandbox.
    let path = format!("/sandboxes/{id}/stop");
    client.post(&path, &json!({})).await;
    assert_eq!(closed(&mut socket).await, 4002);
    server.close().await;
}
