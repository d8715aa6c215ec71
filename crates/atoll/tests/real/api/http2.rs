//! Clients that abuse features of HTTP/2.

use std::time::Duration;

use atoll_testkit::Scratch;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::Server;
use super::tls::{by_two, connect, make};
use crate::harness::DEADLINE;

// Frame types.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW: u8 = 8;
/// The flags of a head that has all, with no body behind it.
const WHOLE: u8 = 5;

/// A server with a certificate, and what removes that.
async fn start(words: &[&str]) -> (Server, CertificateDer<'static>, Scratch) {
    let files = Scratch::new();
    let trusted = make(files.path());
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let all = [&["--tls-cert", cert, "--tls-key", key], words].concat();
    (Server::start_with(&all).await, trusted, files)
}

/// The connection preface and settings.
fn greeting(settings: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, SETTINGS, 0, 0, settings);
    bytes
}

/// The head of a GET, in HPACK.
fn get(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let path = [&[0x04, length], path.as_bytes()].concat();
    [b"\x82\x87\x41\x09localhost", path.as_slice()].concat()
}

/// Reads the next frame: type, flags, stream id and payload.
async fn heard(stream: &mut TlsStream<TcpStream>) -> (u8, u8, u32, Vec<u8>) {
    let reading = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let number = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        (head[3], head[4], number, payload)
    };
    let heard = tokio::time::timeout(DEADLINE, reading).await;
    heard.expect("something comes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_response_is_aborted_without_affecting_others() {
    let (server, trusted, _files) = start(&["--body-timeout", "3s"]).await;
    let mut stream = connect(&server, &trusted, "h2").await.unwrap();
    // SETTINGS: initial window size 0.
    stream
        .write_all(&greeting(b"\0\x04\0\0\0\0"))
        .await
        .unwrap();
    let mut frames = Vec::new();
    // One stream has no flow-control window, and another a very small one.
    for number in [1, 3] {
        frame(&mut frames, HEADERS, WHOLE, number, &get("/openapi.json"));
    }
    frame(&mut frames, WINDOW, 0, 3, &100_u32.to_be_bytes());
    stream.write_all(&frames).await.unwrap();
    let (mut ended, mut taken) = (Vec::new(), 0);
    while ended.len() < 2 {
        let (kind, _, number, payload) = heard(&mut stream).await;
        match kind {
            RESET => ended.push(number),
            DATA => {
                assert_eq!(number, 3);
                taken += payload.len();
            }
            _ => {}
        }
    }
    ended.sort_unstable();
    assert_eq!((ended, taken), (vec![1, 3], 100));
    // A slowly read response completes on the same connection, although it takes longer than the idle timeout.
    let mut frames = Vec::new();
    frame(&mut frames, HEADERS, WHOLE, 5, &get("/openapi.json"));
    stream.write_all(&frames).await.unwrap();
    let (mut body, mut allowed, mut over) = (Vec::new(), 0, false);
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    while !over {
        if body.len() == allowed {
            pace.tick().await;
            let mut more = Vec::new();
            frame(&mut more, WINDOW, 0, 5, &30_000_u32.to_be_bytes());
            frame(&mut more, WINDOW, 0, 0, &30_000_u32.to_be_bytes());
            stream.write_all(&more).await.unwrap();
            allowed += 30_000;
        }
        let (kind, flags, number, payload) = heard(&mut stream).await;
        assert_ne!(kind, RESET, "after {} bytes", body.len());
        if (kind, number) == (DATA, 5) {
            body.extend_from_slice(&payload);
            over = flags & 1 == 1;
        }
    }
    assert!(body.len() > 100_000, "{} bytes", body.len());
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    drop(stream);
    server.end_and_clear();
}

/// C09: streams that are opened and reset immediately, faster than a server can respond.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_rapid_stream_resets_close_the_connection() {
    let (server, trusted, _files) = start(&[]).await;
    let before = super::pressure::memory(&server);
    for _ in 0..3 {
        let mut stream = connect(&server, &trusted, "h2").await.unwrap();
        stream.write_all(&greeting(&[])).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let flood = async {
            for first in (1..2_000_000_u32).step_by(2 * 64) {
                let mut frames = Vec::new();
                for number in (first..first + 2 * 64).step_by(2) {
                    // GET https / with the name localhost, in HPACK; then CANCEL.
                    let head = b"\x82\x87\x84\x41\x09localhost";
                    frame(&mut frames, HEADERS, WHOLE, number, head);
                    frame(&mut frames, RESET, 0, number, &8_u32.to_be_bytes());
                }
                if writer.write_all(&frames).await.is_err() {
                    return;
                }
            }
            panic!("a million streams were begun and reset");
        };
        let heard = async {
            let mut all = Vec::new();
            // Ignores errors: the server may close before its last frames are read.
            let _ = reader.read_to_end(&mut all).await;
            all
        };
        let both = async { tokio::join!(flood, heard) };
        tokio::time::timeout(DEADLINE, both).await.unwrap();
    }
    let grown = super::pressure::memory(&server).saturating_sub(before);
    assert!(grown < 32, "{grown} MiB");
    assert_eq!(
        by_two(&server, &trusted, "https://localhost/health").await,
        200
    );
    server.end_and_clear();
}

/// Adds a frame of HTTP/2.
fn frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    to.extend_from_slice(&length[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}
