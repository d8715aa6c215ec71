//! Clients that stay silent, send too much, or open every available connection.

use std::time::Duration;

use atoll_testkit::Scratch;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use super::{Client, Server};
use crate::harness::{DEADLINE, World, private};

/// Sends bytes and returns everything received until the server closes the connection.
async fn say(server: &Server, words: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    // The server may close the connection before everything is sent.
    let _ = stream.write_all(words).await;
    rest(&mut stream).await
}

/// Reads until the server closes the connection, within the deadline.
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
async fn idle_clients_are_disconnected_without_delaying_others() {
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
    // All connections are taken: a new client waits until an idle one is closed, but not for ever.
    let answer = tokio::time::timeout(DEADLINE, client.get("/health")).await;
    assert_eq!(answer.unwrap().status, 200);
    for stream in &mut quiet {
        assert!(!rest(stream).await.contains("200"));
    }
    // Bodies that never arrive, or only in part.
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
async fn slow_clients_that_keep_sending_are_served() {
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
        // The whole body takes longer than the timeout between two parts.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        stream.write_all(&[*byte]).await.unwrap();
    }
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(client.line(&id, "cat ~/slow").await, "slow");
    server.close().await;
}

/// Sends a health request on a keepalive connection.
async fn ask(stream: &mut TcpStream) {
    let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    assert!(response(stream).await.starts_with(b"HTTP/1.1 200"));
}

/// Sends a request with a key on a connection that is used again.
async fn ask_with_key(stream: &mut TcpStream, client: &Client) {
    let key = client.key.as_deref().unwrap();
    let request = format!("GET /sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(response(stream).await.starts_with(b"HTTP/1.1 200"));
}

/// A whole response with a length.
async fn response(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = async {
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(stream.read_u8().await.expect("the connection is open"));
        }
        let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let begin = bytes.len();
        bytes.resize(begin + length.unwrap().parse::<usize>().unwrap(), 0);
        stream.read_exact(&mut bytes[begin..]).await.unwrap();
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap();
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_error_response_keeps_the_connection() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    for (length, body) in [
        ("content-length: 2", "{}"),
        ("transfer-encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"),
    ] {
        let head = format!("POST /keys HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server does not wait for the body of an unauthenticated request.
        let refused = response(&mut stream).await;
        assert!(refused.starts_with(b"HTTP/1.1 401"));
        stream.write_all(body.as_bytes()).await.unwrap();
        ask(&mut stream).await;
    }
    // A body over the limit is not read.
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
async fn keep_alive_connections_outlive_the_client_timeout() {
    let mut server = Server::start_with(&["--client-timeout", "1s", "--idle-timeout", "10s"]).await;
    let client = server.client();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    ask_with_key(&mut stream, &client).await;
    // Longer than the head timeout, shorter than the idle timeout.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The idle timeout begins after this response.
    let idle = std::time::Instant::now();
    ask(&mut stream).await;
    assert_eq!(rest(&mut stream).await, "");
    assert!(idle.elapsed() >= Duration::from_secs(10));
    // The usual idle timeout is longer than this test may take.
    server.kill_and_start_with(&["--client-timeout", "1s"]);
    let client = server.client();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    ask_with_key(&mut stream, &client).await;
    stream.write_all(b"GET /health HT").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyless_connection_idles_only_for_the_client_timeout() {
    let server = Server::start_with(&["--client-timeout", "1s"]).await;
    let unknown = server.client().with_key(Some("atl_0"));
    for client in [None, Some(&unknown)] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        match client {
            None => ask(&mut stream).await,
            Some(unknown) => {
                let key = unknown.key.as_deref().unwrap();
                let request =
                    format!("GET /keys HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                assert!(response(&mut stream).await.starts_with(b"HTTP/1.1 401"));
            }
        }
        // Before the idle timeout, which is longer than this test may take.
        assert_eq!(rest(&mut stream).await, "");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_at_the_connection_limit() {
    let server = Server::start_with(&["--client-timeout", "1s", "--max-connections", "3"]).await;
    let client = server.client();
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        ask_with_key(&mut stream, &client).await;
        idle.push(stream);
    }
    let mut next = TcpStream::connect(server.address()).await.unwrap();
    ask(&mut next).await;
    drop(idle);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_stream_may_pause_but_a_unary_body_times_out() {
    let server = Server::start_with(&["--body-timeout", "1s"]).await;
    let client = server.client();
    let (id, token) = crate::e2b::sandbox(&client).await;
    let request =
        json!({ "cmd": "cat > /tmp/typed", "background": true, "openStdin": true, "tag": "typed" });
    let path = format!("/sandboxes/{id}/commands");
    let begun = client.post(&path, &request).await.json();
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
    // Meanwhile an incomplete request times out.
    let half = head("SendInput", "content-length: 9\r\n");
    let answer = say(&server, half.as_bytes()).await;
    assert!(
        answer.contains("timeout while reading the body"),
        "{answer}"
    );
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
async fn oversized_request_heads_are_refused() {
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
        // Bytes behind it are not parsed as a second request.
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
async fn websockets_count_as_connections_until_closed() {
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
    // All connections are taken: a new client waits.
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

/// A WebSocket that is refused stays open for the client's answer to the close frame. It is closed earlier for a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_websockets_make_room_for_clients_with_a_key() {
    const PLACES: usize = 3;
    let server = Server::start_with(&["--max-connections", &PLACES.to_string()]).await;
    let client = server.client();
    let rounds = async {
        let mut refused = Vec::new();
        while !server.log().contains("connection limit reached") {
            // Sequentially: each connection is refused before the next one is opened.
            for _ in 0..PLACES {
                let mut stream = TcpStream::connect(server.address()).await.unwrap();
                let request = b"GET /events HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
                stream.write_all(request).await.unwrap();
                let mut begin = [0; 12];
                stream.read_exact(&mut begin).await.unwrap();
                assert_eq!(&begin, b"HTTP/1.1 101");
                refused.push(stream);
            }
            assert_eq!(client.get("/sandboxes").await.status, 200);
        }
    };
    tokio::time::timeout(DEADLINE, rounds).await.unwrap();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_are_disconnected() {
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
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        // The client reads nothing, and checks the TCP state of the server's end.
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

/// Clients without a key open more connections than the server may have descriptors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyless_idle_connections_do_not_block_new_clients_heavy() {
    const OPEN_FILES: usize = 2000;
    let server = with_open_files(OPEN_FILES).await;
    let client = server.client();
    // Half have sent nothing, the others an unauthenticated request.
    let mut idle = Vec::new();
    for number in 0..OPEN_FILES {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        if number % 2 == 0 {
            let request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
            stream.write_all(request).await.unwrap();
        }
        idle.push(stream);
    }
    let requests = async {
        operator_answers(&server).await;
        // A key is served at once, also on a connection that is used again.
        let mut known = client.connect().await.unwrap();
        for _ in 0..3 {
            let answer = known.ask("GET", "/sandboxes", "").await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let id = client.sandbox(&json!({ "timeout": 0 })).await;
        assert_eq!(client.line(&id, "echo works").await, "works\n");
        // New connections close older ones, but none that carried a valid key.
        for _ in 0..OPEN_FILES / 2 {
            idle.push(TcpStream::connect(server.address()).await.unwrap());
        }
        assert_eq!(client.line(&id, "echo works").await, "works\n");
        let answer = known.ask("GET", "/sandboxes", "").await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    tokio::time::timeout(DEADLINE, requests).await.unwrap();
    let log = server.log();
    assert!(log.contains("max-connections is lowered"), "{log}");
    assert!(log.contains("connection limit reached"), "{log}");
    assert!(!log.contains("cannot accept connections"), "{log}");
    // Only connections without a key were closed, the oldest first.
    assert_eq!(rest(&mut idle[1]).await, "");
    drop(idle);
    server.close().await;
}

/// Visitors of a public port take two descriptors each, and may never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_visitors_leave_descriptors_for_the_operator_heavy() {
    const OPEN_FILES: usize = 2000;
    let server = with_open_files(OPEN_FILES).await;
    let client = server.client();
    let (id, _) = crate::e2b::sandbox(&client).await;
    // A server that accepts connections and never responds.
    let program = "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 8000)); s.listen(4096); time.sleep(600)";
    let serve = json!({ "cmd": "python3", "args": ["-c", program], "background": true });
    let begun = client
        .post(&format!("/sandboxes/{id}/commands"), &serve)
        .await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let wait = "until grep -q :1F40 /proc/net/tcp; do sleep 0.01; done";
    client.line(&id, wait).await;
    let request = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\ne2b-sandbox-id: {id}\r\ne2b-sandbox-port: 8000\r\n\r\n"
    );
    let mut visitors = Vec::new();
    for _ in 0..OPEN_FILES / 2 - 10 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        visitors.push(stream);
    }
    // The last connections are refused, all of them once one has its response.
    let refused = rest_of_head(visitors.last_mut().unwrap()).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    let requests = async {
        operator_answers(&server).await;
        let id = client.sandbox(&json!({ "timeout": 0 })).await;
        assert_eq!(client.line(&id, "echo works").await, "works\n");
    };
    tokio::time::timeout(DEADLINE, requests).await.unwrap();
    drop(visitors);
    server.close().await;
}

/// Head of the next response.
async fn rest_of_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let reading = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("the connection is open"));
        }
    };
    tokio::time::timeout(DEADLINE, reading).await.unwrap();
    String::from_utf8(head).unwrap()
}

/// A server with a hard limit for open files, which closes nothing because of its age.
async fn with_open_files(limit: usize) -> Server {
    World::open().await.close().await;
    let scratch = Scratch::new();
    let data = scratch.join("data");
    private(&data);
    let words = vec!["prlimit".to_owned(), format!("--nofile={limit}")];
    let flags = ["--client-timeout", "1h"].map(ToOwned::to_owned);
    Server::at(scratch, data, words, flags.into())
}

/// Asserts that the operator's socket responds.
async fn operator_answers(server: &Server) {
    let socket = server.data().join("run/api.sock");
    let mut operator = UnixStream::connect(socket).await.unwrap();
    let request = "GET /sandboxes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    operator.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    operator.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The server has no connection any more that leads to this one.
fn dropped(stream: &TcpStream) -> bool {
    let (here, there) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let hex = |port: u16| format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // The server's end of the connection, while it is open.
    !table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ours = |word: &str, port: u16| word.ends_with(&hex(port));
        words.len() > 3
            && ours(words[1], there.port())
            && ours(words[2], here.port())
            && words[3] == "01"
    })
}
