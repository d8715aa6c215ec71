//! Tests of retries, against a server that breaks connections where a test needs it.

#![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::*;

/// Behavior of the server for one connection: close it after reading the request, leave it open
/// without a response, or respond.
enum Then {
    Cut,
    Silence,
    Answer(&'static str, &'static str),
}

use Then::{Answer as Say, Cut, Silence};

/// Server that follows a script, and the requests that it received.
struct Served(JoinHandle<(TcpListener, Vec<String>, Vec<TcpStream>)>);

impl Served {
    /// Received requests, one per step of the script.
    fn requests(self) -> Vec<String> {
        let (listener, heard, _kept) = self.0.join().unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "there was one request more");
        heard
    }
}

/// Handles connections one after the other.
fn server(script: Vec<Then>) -> (Client, Served) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut heard, mut kept) = (Vec::new(), Vec::new());
        for then in script {
            let (mut stream, _) = listener.accept().unwrap();
            heard.push(request(&mut stream));
            match then {
                Cut => {}
                Silence => kept.push(stream),
                Say(head, body) => {
                    let length = body.len();
                    let answer = format!(
                        "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                    );
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            }
        }
        (listener, heard, kept)
    });
    (Client::new(url.parse().unwrap(), None), Served(served))
}

/// Reads a complete request: its head, and a body of the length in `Content-Length`.
fn request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    loop {
        let whole = String::from_utf8_lossy(&text).to_ascii_lowercase();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return whole;
            }
        }
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "a request is whole: {whole}");
        text.extend_from_slice(&part[..count]);
    }
}

const GONE: &str = r#"{"error": "no such file", "code": "FILE_NOT_FOUND"}"#;

#[tokio::test]
async fn delete_after_a_lost_response_accepts_404() {
    for (before, done) in [
        (vec![Cut], true),
        (vec![], false),
        // The request was not processed.
        (
            vec![Say(
                "429 Slow",
                r#"{"error": "slow", "code": "RATE_LIMITED"}"#,
            )],
            false,
        ),
    ] {
        let mut script = before;
        script.push(Say("404 Not Found", GONE));
        let (client, served) = server(script);
        let deleted = client
            .send_buffered(&Request::delete("/files?path=x"))
            .await;
        assert_eq!(deleted.is_ok(), done, "{deleted:?}");
        served.requests();
    }
}

#[tokio::test]
async fn exec_start_retries_with_one_idempotency_key() {
    let begun = Say("201 Created", r#"{"execID": "exec_aaaaabbbbbcccccddddd"}"#);
    let (client, served) = server(vec![Cut, Cut, begun]);
    let body = json!({ "cmd": "true" });
    let exec = Exec::start(&client, "web", &body).await.unwrap();
    assert_eq!(exec.id, "exec_aaaaabbbbbcccccddddd");
    let heard = served.requests();
    assert!(heard[0].starts_with("post /sandboxes/web/commands "));
    assert!(heard[0].contains("\r\nidempotency-key: req_"), "{heard:?}");
    assert!(heard.iter().all(|one| *one == heard[0]), "{heard:?}");
}

#[tokio::test]
async fn only_sigkill_is_retried_after_a_lost_response() {
    for (signal, script) in [
        (2, vec![Cut]),
        (15, vec![Cut]),
        (9, vec![Cut, Say("204 No Content", "")]),
    ] {
        let again = script.len() > 1;
        let (client, served) = server(script);
        let exec = Exec::find(&client, "web", "exec_1").unwrap();
        assert_eq!(exec.remote().signal(signal).await.is_ok(), again);
        served.requests();
    }
}

#[tokio::test]
async fn silent_server_gets_no_retry_before_its_first_response() {
    let (client, served) = server(vec![Silence]);
    let request = Request::get("/sandboxes").deadline(Duration::from_secs(3));
    let error = client.send_buffered(&request).await.unwrap_err();
    assert!(error.message.contains("said nothing"), "{error}");
    assert!(error.remedy.is_some());
    served.requests();
    // A server that has responded before may be restarting.
    let (client, served) = server(vec![Say("200 OK", "1"), Silence, Say("200 OK", "2")]);
    client.send_buffered(&request).await.unwrap();
    assert_eq!(client.send_json(&request).await.unwrap(), 2);
    served.requests();
}

#[tokio::test]
async fn list_follows_the_cursor_to_the_last_page() {
    let first = "200 OK\r\nx-next-cursor: a b&c";
    let (client, served) = server(vec![Say(first, "[1, 2]"), Say("200 OK", "[3]")]);
    let all = client.list("/things", &[("state", "new")]).await.unwrap();
    assert_eq!(all, [1, 2, 3]);
    let heard = served.requests();
    assert!(heard[0].starts_with("get /things?state=new "), "{heard:?}");
    let next = "get /things?state=new&cursor=a%20b%26c ";
    assert!(heard[1].starts_with(next), "{heard:?}");
}

#[tokio::test]
async fn dead_tunnel_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        request(&mut stream);
        let upgrade =
            b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(upgrade).unwrap();
        // Until the client closes the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let client = Client::new(url.parse().unwrap(), None);
    let socket = client.socket("/tunnel").await.unwrap();
    let (ours, _theirs) = tokio::io::duplex(64);
    let joined = timeout(Duration::from_secs(30), socket.join(ours)).await;
    let error = joined.unwrap().unwrap_err();
    assert!(error.message.contains("dead"), "{error}");
    drop(client);
    served.join().unwrap();
}
