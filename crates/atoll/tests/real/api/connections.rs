//! Clients that keep quiet, say too much, or mean two things at once.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Server;
use crate::world::DEADLINE;

/// Says something; everything that comes back until the server ends the connection.
async fn say(server: &Server, words: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    // It may end the connection before all was said.
    let _ = stream.write_all(words).await;
    rest(&mut stream).await
}

/// What comes until the server ends the connection, which it does in time.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let reading = async {
        // A connection that is reset has ended too.
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            bytes.extend_from_slice(&buffer[..count]);
        }
    };
    let ended = tokio::time::timeout(DEADLINE, reading).await;
    assert!(ended.is_ok(), "the server holds the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_clients_are_let_go_and_hold_up_nobody() {
    let words = ["--client-timeout", "1s", "--body-timeout", "1s"];
    let server = Server::start_with(&[&words[..], &["--max-connections", "8"]].concat()).await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let mut quiet = Vec::new();
    for words in [
        "",
        "GET /health HT",
        "GET /health HTTP/1.1\r\nhost: localhost\r\nx: ",
    ] {
        for _ in 0..5 {
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            stream.write_all(words.as_bytes()).await.unwrap();
            quiet.push(stream);
        }
    }
    // More than may be at once: whoever comes now waits for those to be let go, not for ever.
    let answer = tokio::time::timeout(DEADLINE, client.get("/health")).await;
    assert_eq!(answer.unwrap().status, 200);
    for stream in &mut quiet {
        assert!(!rest(stream).await.contains("200"));
    }
    // Bodies that never come, or not whole.
    let key = client.key.clone().unwrap();
    let head = |line: &str| {
        format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n"
        )
    };
    let create = format!("{}content-length: 100\r\n\r\n{{", head("POST /sandboxes"));
    let answer = say(&server, create.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    let put = head(&format!("PUT /sandboxes/{id}/files?path=half"));
    let put = format!("{put}transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    let answer = say(&server, put.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(
        client.line(&id, "ls -A ~ | grep -c half || true").await,
        "0\n"
    );
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_talks_slowly_but_does_is_heard() {
    let server = Server::start_with(&["--body-timeout", "5s"]).await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let key = client.key.clone().unwrap();
    let head = format!(
        "PUT /sandboxes/{id}/files?path=slow HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\nconnection: close\r\ncontent-length: 4\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for byte in b"slow" {
        // Longer in all than it may be quiet.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        stream.write_all(&[*byte]).await.unwrap();
    }
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(client.line(&id, "cat ~/slow").await, "slow");
    server.close().await;
}

/// Asks whether there is anybody, on a connection that is used again.
async fn ask(stream: &mut TcpStream) {
    let asked = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(asked).await.unwrap();
    assert!(object(stream).await.starts_with(b"HTTP/1.1 200"));
}

/// An answer whose body is an object without objects in it.
async fn object(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    let reading = async {
        while !answer.ends_with(b"}") {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).await.unwrap(), 1, "it ended");
            answer.push(byte[0]);
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_before_the_body_is_there_keeps_the_connection() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    for (length, body) in [
        ("content-length: 2", "{}"),
        ("transfer-encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"),
    ] {
        let head = format!("POST /keys HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // Nobody waits for the body of somebody without a key.
        let refused = object(&mut stream).await;
        assert!(refused.starts_with(b"HTTP/1.1 401"));
        stream.write_all(body.as_bytes()).await.unwrap();
        ask(&mut stream).await;
    }
    // More than anybody wants to hear is not heard.
    let large = format!(
        "POST /keys HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{}",
        1 << 30,
        "x".repeat(4 << 20)
    );
    let answer = say(&server, large.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_kept_between_requests_and_only_heads_are_hurried() {
    let server = Server::start_with(&["--client-timeout", "1s", "--idle-timeout", "10s"]).await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    ask(&mut stream).await;
    // Longer than a head may take, and not longer than a connection is kept.
    tokio::time::sleep(Duration::from_secs(2)).await;
    ask(&mut stream).await;
    let idle = std::time::Instant::now();
    assert_eq!(rest(&mut stream).await, "");
    assert!(idle.elapsed() > Duration::from_millis(9500));
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    ask(&mut stream).await;
    stream.write_all(b"GET /health HT").await.unwrap();
    let slow = std::time::Instant::now();
    assert_eq!(rest(&mut stream).await, "");
    assert!(slow.elapsed() < Duration::from_secs(9));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_make_room_when_there_is_none() {
    let server = Server::start_with(&["--client-timeout", "1s", "--max-connections", "3"]).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        ask(&mut stream).await;
        idle.push(stream);
    }
    let mut next = TcpStream::connect(server.address()).await.unwrap();
    ask(&mut next).await;
    drop(idle);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_that_is_typed_may_be_silent_and_a_message_may_not() {
    let server = Server::start_with(&["--body-timeout", "1s"]).await;
    let client = server.client();
    let (id, token) = crate::e2b::sandbox(&client).await;
    let asked =
        json!({ "cmd": "cat > /tmp/typed", "background": true, "openStdin": true, "tag": "typed" });
    let path = format!("/sandboxes/{id}/commands");
    let begun = client.post(&path, &asked).await.json();
    let head = |call: &str, more: &str| {
        format!(
            "POST /process.Process/{call} HTTP/1.1\r\nhost: localhost\r\ne2b-sandbox-id: {id}\r\nx-access-token: {token}\r\n\
             connection: close\r\n{more}\r\n"
        )
    };
    let chunk = |message: Value| {
        let text = message.to_string();
        let length = u8::try_from(text.len()).unwrap();
        let head = format!("{:x}\r\n", text.len() + 5);
        [
            head.as_bytes(),
            &[0, 0, 0, 0, length],
            text.as_bytes(),
            b"\r\n",
        ]
        .concat()
    };
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let head_of_stream = head("StreamInput", "transfer-encoding: chunked\r\n");
    stream.write_all(head_of_stream.as_bytes()).await.unwrap();
    let start = json!({ "start": { "process": { "tag": "typed" } } });
    stream.write_all(&chunk(start)).await.unwrap();
    // Meanwhile one that is not typed is given up.
    let half = head("SendInput", "content-length: 9\r\n");
    let answer = say(&server, half.as_bytes()).await;
    assert!(answer.contains("nothing more of the body came"), "{answer}");
    let data = json!({ "data": { "input": { "stdin": "dHlwZWQ=" } } });
    stream.write_all(&chunk(data)).await.unwrap();
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && !answer.contains("error"),
        "{answer}"
    );
    let exec = begun["execID"].as_str().unwrap();
    let stdin = format!("{path}/{exec}/stdin/close");
    assert_eq!(client.post(&stdin, &json!({})).await.status, 204);
    client.get(&format!("{path}/{exec}/wait")).await;
    assert_eq!(client.line(&id, "cat /tmp/typed").await, "typed");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_are_too_large_are_refused() {
    let server = Server::start().await;
    let many = "a: b\r\n".repeat(200);
    let large = format!("a: {}\r\n", "b".repeat(100 << 10));
    let path = "x".repeat(100 << 10);
    let next = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let host = "host: localhost\r\n";
    let cases: &[(&str, String, &str)] = &[
        (
            "many headers",
            format!("GET / HTTP/1.1\r\n{host}{many}\r\n"),
            "431",
        ),
        (
            "a large header",
            format!("GET / HTTP/1.1\r\n{host}{large}\r\n"),
            "431",
        ),
        (
            "a long path",
            format!("GET /{path} HTTP/1.1\r\n{host}\r\n"),
            "4",
        ),
        ("no HTTP", "\u{16}\u{3}\u{1}\u{2}\0\r\n\r\n".into(), "400"),
    ];
    for (what, words, expected) in cases {
        // What comes behind it is not a request of its own.
        let answer = say(&server, format!("{words}{next}").as_bytes()).await;
        let status = answer.strip_prefix("HTTP/1.1 ");
        let status = status.or_else(|| answer.strip_prefix("HTTP/1.0 "));
        assert!(
            status.is_some_and(|status| status.starts_with(expected)),
            "{what}: {answer}"
        );
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{what}: {answer}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_have_places_too_and_give_them_back() {
    let words = ["--client-timeout", "1s", "--max-connections", "4"];
    let server = Server::start_with(&words).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let made = client
        .post(&format!("/sandboxes/{id}/pty"), &json!({}))
        .await;
    let path = format!(
        "/sandboxes/{id}/pty/{}",
        made.json()["ptyID"].as_str().unwrap()
    );
    let mut sockets = Vec::new();
    for _ in 0..4 {
        sockets.push(super::sockets::open(&client, &path).await);
    }
    // All places are taken: whoever comes waits.
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get("/health").await.status }
    });
    let soon = tokio::time::timeout(Duration::from_secs(2), async {
        while !waiting.is_finished() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(soon.await.is_err(), "a fifth was let in");
    sockets.pop();
    let answer = tokio::time::timeout(DEADLINE, waiting).await.unwrap();
    assert_eq!(answer.unwrap(), 200);
    drop(sockets);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_nothing_of_what_is_sent_is_let_go() {
    let words = ["--client-timeout", "1s", "--body-timeout", "1s"];
    let server = Server::start_with(&words).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "head -c 64M /dev/zero > ~/big").await;
    let begun = json!({ "cmd": "head -c 64M /dev/zero", "background": true });
    let commands = format!("/sandboxes/{id}/commands");
    let exec = client.post(&commands, &begun).await.json()["execID"].clone();
    let key = client.key.clone().unwrap();
    for path in [
        format!("/sandboxes/{id}/files?path=big"),
        format!("/sandboxes/{id}/files/archive?path=."),
        format!("{commands}/{}/output", exec.as_str().unwrap()),
    ] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let asked = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
        stream.write_all(asked.as_bytes()).await.unwrap();
        // It reads nothing, and asks whether the server still has it: what the kernel knows of the other end.
        let gone = async {
            while !dropped(&stream) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let gone = tokio::time::timeout(DEADLINE, gone).await;
        assert!(gone.is_ok(), "{path} is kept");
    }
    server.close().await;
}

/// The server has no connection any more that leads to this one.
fn dropped(stream: &TcpStream) -> bool {
    let (here, there) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let hex = |port: u16| format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Its end, seen from the server, while that is open.
    !table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = |word: &str, port: u16| word.ends_with(&hex(port));
        words.len() > 3
            && ours(words[1], there.port())
            && ours(words[2], here.port())
            && words[3] == "01"
    })
}
