//! Parsing of messages, and a forwarder between a client and a test name server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use atoll_model::EgressException;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::message::{AnswerCheck, Query};
use super::{Forwarder, Resolvers, listen};
use crate::network::tests::dns::{answer, query};

fn check(kind: u16, data: &[u8]) -> AnswerCheck {
    check_with(kind, data, &[])
}

fn check_with(kind: u16, data: &[u8], exceptions: &[EgressException]) -> AnswerCheck {
    let request = query("example.com", 1);
    Query::read(&request)
        .expect("a query")
        .check_answer(&answer(&request, &[(kind, data)]), exceptions)
}

#[test]
fn answers_with_blocked_addresses_are_detected() {
    assert_eq!(check(1, &[1, 1, 1, 1]), AnswerCheck::Allowed);
    assert_eq!(check(1, &[169, 254, 169, 254]), AnswerCheck::BlockedAddress);
    assert_eq!(check(1, &[10, 0, 0, 1]), AnswerCheck::BlockedAddress);
    assert_eq!(check(1, &[198, 18, 0, 1]), AnswerCheck::BlockedAddress);
    let metadata = "fd00:ec2::254"
        .parse::<std::net::Ipv6Addr>()
        .expect("address");
    assert_eq!(check(28, &metadata.octets()), AnswerCheck::BlockedAddress);
    let mapped = Ipv4Addr::new(169, 254, 169, 254).to_ipv6_mapped();
    assert_eq!(check(28, &mapped.octets()), AnswerCheck::BlockedAddress);
    assert_eq!(check(16, b"\x05hello"), AnswerCheck::Allowed);
    assert_eq!(check(1, &[1, 1, 1]), AnswerCheck::Malformed);
}

#[test]
fn answers_with_an_exception_are_allowed() {
    let exceptions = ["10.1.0.0/16:443".parse().expect("an exception")];
    let check = |address| check_with(1, address, &exceptions);
    assert_eq!(check(&[10, 1, 255, 1]), AnswerCheck::Allowed);
    assert_eq!(check(&[10, 2, 0, 1]), AnswerCheck::BlockedAddress);
    assert_eq!(check(&[127, 0, 0, 1]), AnswerCheck::BlockedAddress);
}

#[test]
fn answer_to_another_query_is_foreign() {
    let (request, other) = (query("example.com", 1), query("example.org", 1));
    let request = Query::read(&request).expect("a query");
    assert_eq!(
        request.check_answer(&answer(&other, &[]), &[]),
        AnswerCheck::Foreign
    );
    let mut id = answer(request.bytes(), &[]);
    id[0] ^= 1;
    assert_eq!(request.check_answer(&id, &[]), AnswerCheck::Foreign);
    assert_eq!(
        request.check_answer(request.bytes(), &[]),
        AnswerCheck::Foreign
    );
}

#[test]
fn invalid_query_gets_an_error_or_no_answer() {
    assert_eq!(Query::read(b"short"), Err(None));
    let request = query("example.com", 1);
    assert_eq!(Query::read(&answer(&request, &[])), Err(None));
    let cut = Query::read(&request[..20])
        .expect_err("cut")
        .expect("an answer");
    assert_eq!((cut.len(), cut[3] & 0xf), (12, 1));
    let mut update = request;
    update[2] |= 5 << 3;
    let refused = Query::read(&update)
        .expect_err("update")
        .expect("an answer");
    assert_eq!(refused[3] & 0xf, 4);
}

proptest! {
    #[test]
    fn parser_accepts_any_bytes(bytes: Vec<u8>, tail: Vec<u8>) {
        if let Ok(query) = Query::read(&bytes) {
            query.check_answer(&bytes, &[]);
        }
        let request = query("a.b", 1);
        let read = Query::read(&request).expect("a query");
        read.check_answer(&bytes, &[]);
        let mut answer = answer(&request, &[(1, &[1, 1, 1, 1])]);
        answer.truncate(20 + tail.len() % 20);
        answer.extend(tail);
        read.check_answer(&answer, &[]);
    }
}

/// A name server that answers 10.0.0.1 for `inside.…` and 1.1.1.1 for all other names; for `long…`
/// the UDP answer is truncated.
async fn upstream() -> SocketAddr {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind");
    let address = tcp.local_addr().expect("address");
    let udp = UdpSocket::bind(address).await.expect("bind");
    let respond = |request: &[u8]| {
        let inside = request[12..].starts_with(b"\x06inside");
        answer(
            request,
            &[(
                1,
                if inside {
                    &[10, 0, 0, 1]
                } else {
                    &[1, 1, 1, 1]
                },
            )],
        )
    };
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
            let mut response = respond(&buffer[..length]);
            if buffer[12..].starts_with(b"\x04long") {
                response[2] |= 2;
            }
            udp.send_to(&response, from).await.expect("send");
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let mut request = vec![0; stream.read_u16().await.expect("length").into()];
            stream.read_exact(&mut request).await.expect("read");
            let response = respond(&request);
            stream
                .write_u16(response.len() as u16)
                .await
                .expect("write");
            stream.write_all(&response).await.expect("write");
        }
    });
    address
}

async fn over_udp(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind");
    socket.send_to(request, server).await.expect("send");
    let mut buffer = [0; 4096];
    let length = tokio::time::timeout(Duration::from_secs(20), socket.recv(&mut buffer)).await;
    buffer[..length.expect("an answer").expect("receive")].to_vec()
}

async fn over_tcp(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).await.expect("connect");
    stream.write_u16(request.len() as u16).await.expect("write");
    stream.write_all(request).await.expect("write");
    let mut response = vec![0; stream.read_u16().await.expect("length").into()];
    stream.read_exact(&mut response).await.expect("read");
    response
}

fn start(upstream: Vec<SocketAddr>) -> (SocketAddr, Forwarder) {
    let sockets = listen(Ipv4Addr::LOCALHOST, 0).expect("listen");
    let address = sockets.address().expect("address");
    (
        address,
        Forwarder::start(sockets, Resolvers::Fixed(upstream), [].into()).expect("start"),
    )
}

#[tokio::test]
async fn queries_are_forwarded_and_blocked_answers_are_not() {
    let (server, _forwarder) = start(vec![upstream().await]);
    let public = query("example.com", 1);
    for response in [
        over_udp(server, &public).await,
        over_tcp(server, &public).await,
    ] {
        assert_eq!(
            (
                response[3] & 0xf,
                response[7],
                &response[response.len() - 4..]
            ),
            (0, 1, &[1, 1, 1, 1][..])
        );
    }
    let inside = query("inside.example.com", 1);
    for response in [
        over_udp(server, &inside).await,
        over_tcp(server, &inside).await,
    ] {
        assert_eq!(
            (response[3] & 0xf, response[7], response.len()),
            (0, 0, inside.len())
        );
    }
    let six = over_udp(server, &query("example.com", 28)).await;
    assert_eq!(
        (six[3] & 0xf, six[7]),
        (0, 0),
        "no resolver is queried for IPv6"
    );
    let long = over_udp(server, &query("long.example.com", 1)).await;
    assert_eq!(long[2] & 2, 2, "the answer is truncated");
}

#[tokio::test]
async fn query_fails_without_a_name_server() {
    let (server, _forwarder) = start(Vec::new());
    assert_eq!(over_udp(server, &query("example.com", 1)).await[3] & 0xf, 2);
    // The port is closed: refused at once.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind");
    let address = closed.local_addr().expect("address");
    drop(closed);
    let (server, _forwarder) = start(vec![address]);
    assert_eq!(over_udp(server, &query("example.com", 1)).await[3] & 0xf, 2);
    assert_eq!(over_tcp(server, &query("example.com", 1)).await[3] & 0xf, 2);
}
