//! HTTPS over HTTP/1.1 and HTTP/2, with certificates that are replaced while it serves.

use std::path::Path;
use std::sync::Arc;

use atoll_testkit::{Scratch, wait_for};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Server;
use crate::harness::DEADLINE;

/// Writes a certificate for `localhost` and its key; the certificate.
pub(super) fn make(directory: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    CertificateDer::from_pem_file(directory.join("cert.pem")).unwrap()
}

/// Connects as a client that trusts one certificate.
pub(super) async fn connect(
    server: &Server,
    trusted: &CertificateDer<'static>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await
}

fn get_request(uri: &str) -> Request<Empty<Bytes>> {
    let request = Request::builder().uri(uri).header("host", "localhost");
    request.body(Empty::new()).unwrap()
}

/// Sends a request over HTTP/2; returns the status.
pub(super) async fn by_two(server: &Server, trusted: &CertificateDer<'static>, uri: &str) -> u16 {
    let stream = connect(server, trusted, "h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::builder().uri(uri).body(Empty::<Bytes>::new());
    let response = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    let status = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_reload_and_invalid_files_keep_the_old_one() {
    let files = Scratch::new();
    let first = make(files.path());
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    let words = [
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let server = Server::start_with(&words).await;

    // Silent connections do not delay others.
    let mut quiet = Vec::new();
    for _ in 0..100 {
        quiet.push(TcpStream::connect(server.address()).await.unwrap());
    }
    let stream = connect(&server, &first, "http/1.1").await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let response = sender.send_request(get_request("/health")).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.version()),
        (200, Version::HTTP_11)
    );
    response.into_body().collect().await.unwrap();
    assert_eq!(
        by_two(&server, &first, "https://localhost/health").await,
        200
    );
    assert_eq!(
        by_two(&server, &first, "https://localhost/sandboxes").await,
        401
    );
    // Both listeners reject an unknown host name.
    assert_eq!(
        by_two(&server, &first, "https://evil.example/health").await,
        421
    );
    drop(quiet);

    let second = make(files.path());
    rustix::process::kill_process(server.pid(), rustix::process::Signal::HUP).unwrap();
    let begin = std::time::Instant::now();
    while connect(&server, &second, "h2").await.is_err() {
        assert!(begin.elapsed() < DEADLINE, "the old certificate stays");
    }
    assert!(connect(&server, &first, "h2").await.is_err());
    // An existing connection continues to work.
    let response = sender.send_request(get_request("/health")).await.unwrap();
    assert_eq!(response.status().as_u16(), 200);

    // A certificate and key that do not match, and an invalid file.
    let (right, other) = (std::fs::read(&key).unwrap(), Scratch::new());
    make(other.path());
    for (count, wrong) in [
        (1, std::fs::read(other.join("key.pem")).unwrap()),
        (2, b"x".to_vec()),
    ] {
        std::fs::write(&key, wrong).unwrap();
        rustix::process::kill_process(server.pid(), rustix::process::Signal::HUP).unwrap();
        wait_for("the log line for the operator", DEADLINE, || {
            let log = server.log();
            assert!(!log.contains("PRIVATE KEY"));
            log.matches("the certificate stays the old one").count() == count
        });
        assert_eq!(
            by_two(&server, &second, "https://localhost/health").await,
            200
        );
    }
    std::fs::write(&key, right).unwrap();
    // The test's own client does not support TLS.
    server.end_and_clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_clients_are_disconnected_at_every_tls_step() {
    let files = Scratch::new();
    let trusted = make(files.path());
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let words = [
        "--client-timeout",
        "1s",
        "--tls-cert",
        cert,
        "--tls-key",
        key,
    ];
    let server = Server::start_with(&words).await;
    let mut before = TcpStream::connect(server.address()).await.unwrap();
    let mut one = connect(&server, &trusted, "http/1.1").await.unwrap();
    let mut two = connect(&server, &trusted, "h2").await.unwrap();
    let mut half = connect(&server, &trusted, "h2").await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    let mut greeted = connect(&server, &trusted, "h2").await.unwrap();
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    greeted.write_all(greeting).await.unwrap();
    let ended = async {
        let mut received = Vec::new();
        // Ignores errors: any kind of disconnection is fine.
        let _ = before.read_to_end(&mut received).await;
        for stream in [&mut one, &mut two, &mut half, &mut greeted] {
            let _ = stream.read_to_end(&mut received).await;
        }
    };
    let ended = tokio::time::timeout(DEADLINE, ended).await;
    assert!(ended.is_ok(), "the server holds a connection");
    server.end_and_clear();
}

#[test]
fn incomplete_or_mismatched_tls_pair_refuses_the_start() {
    let (files, other) = (Scratch::new(), Scratch::new());
    make(files.path());
    make(other.path());
    let (cert, key) = (files.join("cert.pem"), other.join("key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    for (words, message) in [
        (vec!["--tls-cert", cert], "tls-key is not"),
        (vec!["--tls-key", key], "tls-cert is not"),
        (vec!["--tls-cert", cert, "--tls-key", key], "--tls-key"),
        (vec!["--tls-cert", key, "--tls-key", key], "--tls-cert"),
        (vec!["--tls-cert", "/no/such", "--tls-key", key], "/no/such"),
    ] {
        let scratch = Scratch::new();
        let data = scratch.join("data");
        let mut all = vec![
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            data.to_str().unwrap(),
        ];
        all.extend(words);
        let mut command = crate::cli::atoll(&all);
        command.env(
            "ATOLL_TEMPLATES_DIR",
            crate::harness::data().join("templates"),
        );
        let output = atoll_testkit::run_within(&mut command, DEADLINE, b"");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(message) && text.contains("hint"), "{text}");
    }
}
