//! Messages, and a forwarder between a client and a name server of ours.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use atoll_model::EgressException;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::message::{Judgement, Query};
use super::{Forwarder, Resolvers, listen};
use crate::network::tests::dns::{answer, query};

fn check(kind: u16, data: &[u8]) -> Judgement {
    check_with(kind, data, &[])
}

fn check_with(kind: u16, data: &[u8], exceptions: &[EgressException]) -> Judgement {
    let asked = query("example.com", 1);
    Query::read(&asked)
        .expect("a query")
        .judge(&answer(&asked, &[(kind, data)]), exceptions)
}

#[test]
fn answers_that_point_inside_are_known() {
    assert_eq!(check(1, &[1, 1, 1, 1]), Judgement::Passes);
    assert_eq!(check(1, &[169, 254, 169, 254]), Judgement::PointsInside);
    assert_eq!(check(1, &[10, 0, 0, 1]), Judgement::PointsInside);
    assert_eq!(check(1, &[198, 18, 0, 1]), Judgement::PointsInside);
    let metadata = "fd00:ec2::254"
        .parse::<std::net::Ipv6Addr>()
        .expect("address");
    assert_eq!(check(28, &metadata.octets()), Judgement::PointsInside);
    let mapped = Ipv4Addr::new(169, 254, 169, 254).to_ipv6_mapped();
    assert_eq!(check(28, &mapped.octets()), Judgement::PointsInside);
    assert_eq!(check(16, b"\x05hello"), Judgement::Passes);
    assert_eq!(check(1, &[1, 1, 1]), Judgement::Broken);
}

#[test]
fn answers_that_point_to_an_exception_pass() {
    let exceptions = ["10.1.0.0/16:443".parse().expect("an exception")];
    let check = |address| check_with(1, address, &exceptions);
    assert_eq!(check(&[10, 1, 255, 1]), Judgement::Passes);
    assert_eq!(check(&[10, 2, 0, 1]), Judgement::PointsInside);
    assert_eq!(check(&[127, 0, 0, 1]), Judgement::PointsInside);
}

#[test]
fn an_answer_to_another_question_is_foreign() {
    let (asked, other) = (query("example.com", 1), query("example.org", 1));
    let asked = Query::read(&asked).expect("a query");
    assert_eq!(asked.judge(&answer(&other, &[]), &[]), Judgement::Foreign);
    let mut id = answer(asked.bytes(), &[]);
    id[0] ^= 1;
    assert_eq!(asked.judge(&id, &[]), Judgement::Foreign);
    assert_eq!(asked.judge(asked.bytes(), &[]), Judgement::Foreign);
}

#[test]
fn what_is_no_query_gets_no_answer_or_an_error() {
    assert_eq!(Query::read(b"short"), Err(None));
    let asked = query("example.com", 1);
    assert_eq!(Query::read(&answer(&asked, &[])), Err(None));
    let cut = Query::read(&asked[..20])
        .expect_err("cut")
        .expect("an answer");
    assert_eq!((cut.len(), cut[3] & 0xf), (12, 1));
    let mut update = asked;
    update[2] |= 5 << 3;
    let refused = Query::read(&update)
        .expect_err("update")
        .expect("an answer");
    assert_eq!(refused[3] & 0xf, 4);
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes: Vec<u8>, tail: Vec<u8>) {
        if let Ok(query) = Query::read(&bytes) {
            query.judge(&bytes, &[]);
        }
        let asked = query("a.b", 1);
        let read = Query::read(&asked).expect("a query");
        read.judge(&bytes, &[]);
        let mut answer = answer(&asked, &[(1, &[1, 1, 1, 1])]);
        answer.truncate(20 + tail.len() % 20);
        answer.extend(tail);
        read.judge(&answer, &[]);
    }
}

/// A name server that says 10.0.0.1 of `inside.…` and 1.1.1.1 of everything else; a long one by TCP only.
async fn upstream() -> SocketAddr {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind");
    let address = tcp.local_addr().expect("address");
    let udp = UdpSocket::bind(address).await.expect("bind");
    let say = |asked: &[u8]| {
        let inside = asked[12..].starts_with(b"\x06inside");
        answer(
            asked,
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
            let mut said = say(&buffer[..length]);
            if buffer[12..].starts_with(b"\x04long") {
                said[2] |= 2;
            }
            udp.send_to(&said, from).await.expect("send");
        }
    });
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = tcp.accept().await {
            let mut asked = vec![0; stream.read_u16().await.expect("length").into()];
            stream.read_exact(&mut asked).await.expect("read");
            let said = say(&asked);
            stream.write_u16(said.len() as u16).await.expect("write");
            stream.write_all(&said).await.expect("write");
        }
    });
    address
}

async fn over_udp(server: SocketAddr, asked: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind");
    socket.send_to(asked, server).await.expect("send");
    let mut buffer = [0; 4096];
    let length = tokio::time::timeout(Duration::from_secs(20), socket.recv(&mut buffer)).await;
    buffer[..length.expect("an answer").expect("receive")].to_vec()
}

async fn over_tcp(server: SocketAddr, asked: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).await.expect("connect");
    stream.write_u16(asked.len() as u16).await.expect("write");
    stream.write_all(asked).await.expect("write");
    let mut said = vec![0; stream.read_u16().await.expect("length").into()];
    stream.read_exact(&mut said).await.expect("read");
    said
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
async fn questions_are_passed_on_and_answers_that_point_inside_are_not() {
    let (server, _forwarder) = start(vec![upstream().await]);
    let public = query("example.com", 1);
    for said in [
        over_udp(server, &public).await,
        over_tcp(server, &public).await,
    ] {
        assert_eq!(
            (said[3] & 0xf, said[7], &said[said.len() - 4..]),
            (0, 1, &[1, 1, 1, 1][..])
        );
    }
    let inside = query("inside.example.com", 1);
    for said in [
        over_udp(server, &inside).await,
        over_tcp(server, &inside).await,
    ] {
        assert_eq!((said[3] & 0xf, said[7], said.len()), (0, 0, inside.len()));
    }
    let six = over_udp(server, &query("example.com", 28)).await;
    assert_eq!((six[3] & 0xf, six[7]), (0, 0), "nobody was asked for IPv6");
    let long = over_udp(server, &query("long.example.com", 1)).await;
    assert_eq!(long[2] & 2, 2, "there is more");
}

#[tokio::test]
async fn without_a_name_server_the_answer_is_a_failure() {
    let (server, _forwarder) = start(Vec::new());
    assert_eq!(over_udp(server, &query("example.com", 1)).await[3] & 0xf, 2);
    // Nobody is there: refused at once.
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("bind");
    let address = nobody.local_addr().expect("address");
    drop(nobody);
    let (server, _forwarder) = start(vec![address]);
    assert_eq!(over_udp(server, &query("example.com", 1)).await[3] & 0xf, 2);
    assert_eq!(over_tcp(server, &query("example.com", 1)).await[3] & 0xf, 2);
}
