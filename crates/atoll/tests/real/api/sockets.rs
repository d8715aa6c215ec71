//! Terminals and output streams over WebSockets.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{Client, Server};
use crate::harness::DEADLINE;

pub type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

/// Opens a WebSocket as a browser would: the key behind the question mark.
pub async fn open(client: &Client, path: &str) -> Socket {
    let mark = if path.contains('?') { '&' } else { '?' };
    let key = client.key.clone().unwrap_or_default();
    let url = format!("ws://{}{path}{mark}api_key={key}", client.address);
    tokio_tungstenite::connect_async(url).await.unwrap().0
}

/// Reads binary frames until what came contains something; all of it.
pub(super) async fn until(socket: &mut Socket, text: &str) -> String {
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(text) {
            match socket.next().await.unwrap().unwrap() {
                Message::Binary(bytes) => seen.extend_from_slice(&bytes),
                Message::Close(frame) => panic!("{frame:?}"),
                _ => {}
            }
        }
    };
    let done = tokio::time::timeout(DEADLINE, reading).await;
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(done.is_ok(), "waited for {text:?}: {seen:?}");
    seen
}

/// Reads to the end: the close code.
pub async fn closed(socket: &mut Socket) -> u16 {
    let reading = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(frame) = message {
                return frame.map_or(1005, |frame| u16::from(frame.code));
            }
        }
        1006
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap()
}

/// Sends one frame of a size that is refused.
pub(super) async fn send_frame(client: &Client, path: &str, size: usize) {
    let mut socket = open(client, path).await;
    let message = Message::Binary(vec![b'x'; size].into());
    // The server may close the connection before all of it is sent.
    let _ = tokio::time::timeout(DEADLINE, socket.send(message)).await;
    assert_ne!(closed(&mut socket).await, 1000);
}

pub async fn send(socket: &mut Socket, bytes: &[u8]) {
    let message = Message::Binary(bytes.to_vec().into());
    socket.send(message).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_is_created_shared_resized_and_reattached() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let request = json!({ "cols": 90, "rows": 20, "shell": "/bin/sh" });
    let made = client.post(&format!("/sandboxes/{id}/pty"), &request).await;
    assert_eq!(made.status, 201, "{made:?}");
    let pty = made.json()["ptyID"].as_str().unwrap().to_owned();
    assert!(pty.starts_with("pty_"));
    let path = format!("/sandboxes/{id}/pty/{pty}");
    let (mut one, mut two) = (open(&client, &path).await, open(&client, &path).await);
    send(&mut one, b"stty size; echo do''ne\n").await;
    // Both clients receive all output.
    for socket in [&mut one, &mut two] {
        let seen = until(socket, "done").await;
        assert!(seen.contains("20 90"), "{seen:?}");
    }
    let word = json!({ "type": "resize", "cols": 100, "rows": 30 }).to_string();
    two.send(Message::Text(word.into())).await.unwrap();
    send(&mut two, b"stty size; echo ag''ain\n").await;
    let seen = until(&mut two, "again").await;
    assert!(seen.contains("30 100"), "{seen:?}");
    drop((one, two));
    // After a kill of the server the terminal shows the same screen.
    server.kill_and_start();
    let client = server.client();
    let mut socket = open(&client, &path).await;
    until(&mut socket, "again").await;
    let listed = client.get(&format!("/sandboxes/{id}/pty")).await.array();
    assert_eq!((listed.len(), &listed[0]["cols"]), (1, &json!(100)));
    // The exit is reported, and the terminal is removed.
    send(&mut socket, b"exit\n").await;
    assert_eq!(closed(&mut socket).await, 1000);
    assert_eq!(client.get(&path).await.refusal().1, "TERMINAL_NOT_FOUND");
    assert_eq!(
        client.get(&format!("/sandboxes/{id}/pty")).await.array(),
        Vec::<Value>::new()
    );
    server.close().await;
}

/// A client that still sends when the program exits or the request is refused receives the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending_client_still_reads_the_close_reason() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let unknown = format!("/sandboxes/{id}/pty/pty_aaaaabbbbbcccccddddd");
    for _ in 0..20 {
        let mut socket = open(&client, &format!("/sandboxes/{id}/pty")).await;
        until(&mut socket, "$").await;
        let mut refused = open(&client, &unknown).await;
        for (socket, first, code) in [(&mut socket, "exit\n", 1000), (&mut refused, "", 4001)] {
            send(socket, first.as_bytes()).await;
            for _ in 0..100 {
                let keys = Message::Binary(vec![b'x'; 1000].into());
                // The server may have completed the close handshake already.
                let _ = socket.send(keys).await;
            }
            assert_eq!(closed(socket).await, code);
        }
    }
    server.close().await;
}

/// A command that cannot go on before its output is read takes no input: one socket is for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_input_does_not_block_output() {
    const SIZE: usize = 24 << 20;
    let server = Server::start_with(&["--output-window", "1MiB"]).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/commands");
    let cat = json!({ "cmd": "cat", "args": [], "openStdin": true, "background": true });
    let begun = client.post(&path, &cat).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let exec = begun.json()["execID"].as_str().unwrap().to_owned();
    let (mut writing, mut reading) = open(&client, &format!("{path}/{exec}/output"))
        .await
        .split();
    let write = async {
        let frame: Vec<u8> = std::iter::once(0).chain(vec![b'x'; 1 << 20]).collect();
        for _ in 0..SIZE >> 20 {
            let frame = Message::Binary(frame.clone().into());
            writing.send(frame).await.unwrap();
        }
        let end = Message::Binary(vec![0].into());
        writing.send(end).await.unwrap();
    };
    let read = async {
        let mut seen = 0;
        loop {
            match reading.next().await.unwrap().unwrap() {
                Message::Binary(frame) if frame[0] == 1 => seen += frame.len() - 1,
                Message::Binary(frame) if frame[0] == 3 => return seen,
                Message::Text(text) => panic!("{text}"),
                _ => {}
            }
        }
    };
    let both = async { tokio::join!(write, read).1 };
    let seen = tokio::time::timeout(DEADLINE, both).await;
    assert_eq!(seen.expect("all of it"), SIZE);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_creates_a_terminal_and_errors_are_close_codes() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let mut socket = open(&client, &format!("/sandboxes/{id}/pty?cols=70&rows=10")).await;
    send(&mut socket, b"echo si''ze $(stty size)\n").await;
    until(&mut socket, "size 10 70").await;
    let unknown = format!("/sandboxes/{id}/pty/pty_aaaaabbbbbcccccddddd");
    assert_eq!(closed(&mut open(&client, &unknown).await).await, 4001);
    let path = "/sandboxes/iaaaaabbbbbcccccddddd/pty";
    assert_eq!(closed(&mut open(&client, path).await).await, 4001);
    // A page of another origin is rejected before the upgrade.
    let url = format!(
        "ws://{}/sandboxes/{id}/pty?api_key={}",
        client.address,
        client.key.clone().unwrap()
    );
    let mut request = url.into_client_request().unwrap();
    request
        .headers_mut()
        .insert("origin", "http://evil.example".parse().unwrap());
    let refused = tokio_tungstenite::connect_async(request).await.unwrap_err();
    assert!(refused.to_string().contains("403"), "{refused}");
    // A missing or invalid key is refused with a close code, which a web page can read.
    for key in ["", "atl_0"] {
        let invalid = client.with_key(Some(key));
        for path in [format!("/sandboxes/{id}/pty"), unknown.clone()] {
            assert_eq!(closed(&mut open(&invalid, &path).await).await, 4008);
        }
    }
    let nowhere = open(&client, "/nowhere").await;
    assert_eq!(closed(&mut { nowhere }).await, 4001);
    // A stopped sandbox has its own close code.
    client
        .post(&format!("/sandboxes/{id}/stop"), &json!({}))
        .await;
    assert_eq!(
        closed(&mut open(&client, &format!("/sandboxes/{id}/pty")).await).await,
        4002
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_output_and_input_are_frames() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let begun = json!({ "cmd": "echo early; echo bad >&2; cat; exit 5", "background": true, "openStdin": true });
    let begun = client
        .post(&format!("/sandboxes/{id}/commands"), &begun)
        .await;
    let exec = begun.json()["execID"].as_str().unwrap().to_owned();
    let path = format!("/sandboxes/{id}/commands/{exec}/output");
    let mut socket = open(&client, &path).await;
    let (mut streams, mut live, mut exit) = ([Vec::new(), Vec::new()], false, Value::Null);
    let reading = async {
        let mut sent = false;
        while let Some(Ok(message)) = socket.next().await {
            let Message::Binary(frame) = message else {
                continue;
            };
            let (kind, rest) = frame.split_first().unwrap();
            match kind {
                1 | 2 => streams[usize::from(kind - 1)].extend_from_slice(rest),
                3 => exit = serde_json::from_slice(rest).unwrap(),
                4 => live = true,
                kind => panic!("{kind}"),
            }
            if live && !sent {
                sent = true;
                let input = Message::Binary(b"\0typed\n".to_vec().into());
                socket.send(input).await.unwrap();
                socket
                    .send(Message::Binary(b"\0".to_vec().into()))
                    .await
                    .unwrap();
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), reading)
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&streams[0]), "early\ntyped\n");
    assert_eq!(String::from_utf8_lossy(&streams[1]), "bad\n");
    assert_eq!(exit["exitCode"], 5);
    server.close().await;
}

/// Opens a terminal and attaches a client.
async fn terminal(client: &Client, id: &str) -> Socket {
    let mut socket = open(client, &format!("/sandboxes/{id}/pty")).await;
    send(&mut socket, b"echo re''ady\n").await;
    until(&mut socket, "ready").await;
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_code_distinguishes_program_sandbox_and_server_end() {
    let mut server = Server::start().await;
    let client = server.client();
    let stopped = client.sandbox(&json!({ "timeout": 0 })).await;
    let mut socket = terminal(&client, &stopped).await;
    let path = format!("/sandboxes/{stopped}/stop");
    assert_eq!(client.post(&path, &json!({})).await.status, 200);
    assert_eq!(closed(&mut socket).await, 4002);
    let deleted = client.sandbox(&json!({ "timeout": 0 })).await;
    let mut socket = terminal(&client, &deleted).await;
    let path = format!("/sandboxes/{deleted}");
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(closed(&mut socket).await, 4002);
    let over = client.sandbox(&json!({ "timeout": 0 })).await;
    let mut socket = terminal(&client, &over).await;
    send(&mut socket, b"exit\n").await;
    assert_eq!(closed(&mut socket).await, 1000);
    // A server that shuts down sends a close code, and does not wait for attached clients.
    let mut socket = terminal(&client, &over).await;
    let begun = json!({ "cmd": "sleep 600", "background": true });
    let path = format!("/sandboxes/{over}/commands");
    let exec = client.post(&path, &begun).await.json()["execID"].clone();
    let path = format!("{path}/{}/output", exec.as_str().unwrap());
    let mut output = open(&client, &path).await;
    let events = client
        .open("GET", "/events", &[], bytes::Bytes::new())
        .await;
    let events = tokio::spawn(http_body_util::BodyExt::collect(events.into_body()));
    let reading =
        tokio::spawn(async move { (closed(&mut socket).await, closed(&mut output).await) });
    let begin = std::time::Instant::now();
    tokio::task::block_in_place(|| server.end());
    assert!(begin.elapsed() < DEADLINE, "{:?}", begin.elapsed());
    assert_eq!(reading.await.unwrap(), (1001, 1001));
    // Aborted, not completed: the client resumes at the next server.
    assert!(events.await.unwrap().is_err());
    server.kill_and_start();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_input_resumes_a_paused_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let mut socket = terminal(&client, &id).await;
    let path = format!("/sandboxes/{id}/pause");
    assert_eq!(
        client.post(&path, &json!({})).await.json()["state"],
        "paused"
    );
    send(&mut socket, b"echo aw''ake\n").await;
    until(&mut socket, "awake").await;
    let info = client.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(info["state"], "running");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discarded_output_is_reported_as_a_gap() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/commands");
    let begun = json!({ "cmd": "head -c 80M /dev/zero", "background": true });
    let exec = client.post(&path, &begun).await.json()["execID"].clone();
    let path = format!("{path}/{}", exec.as_str().unwrap());
    let done = client.get(&format!("{path}/wait")).await.json();
    assert_eq!(done["exitCode"], 0, "{done}");
    let from = done["truncatedBefore"].as_u64().unwrap();
    assert!((10 << 20..80 << 20).contains(&from), "{from}");
    let gap = json!({ "from": 0, "to": from });
    // The exit as a server-sent event.
    let output = format!("{path}/output");
    let answer = client.open("GET", &output, &[], bytes::Bytes::new()).await;
    let mut body = answer.into_body();
    let mut text = String::new();
    while !text.contains("\n\n") {
        let frame = http_body_util::BodyExt::frame(&mut body).await;
        let frame = frame.unwrap().unwrap().into_data().unwrap();
        text.push_str(std::str::from_utf8(&frame).unwrap());
    }
    let first = text.split("\n\n").next().unwrap();
    assert!(first.contains("event: gap"), "{first}");
    let data = first.lines().find_map(|line| line.strip_prefix("data: "));
    assert_eq!(serde_json::from_str::<Value>(data.unwrap()).unwrap(), gap);
    // The exit as a WebSocket frame.
    let mut socket = open(&client, &output).await;
    let reported = async {
        loop {
            if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
                return serde_json::from_str::<Value>(&text).unwrap();
            }
        }
    };
    let reported = tokio::time::timeout(DEADLINE, reported).await.unwrap();
    assert_eq!(
        (&reported["from"], &reported["to"]),
        (&gap["from"], &gap["to"])
    );
    server.close().await;
}
