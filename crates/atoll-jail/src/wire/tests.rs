use std::io::{Read, Write};
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;

#[test]
fn message_arrives_with_its_descriptors() {
    let (outside, inside) = pair::<ToInit, FromInit>().expect("pair");
    let (mut reader, writer) = std::io::pipe().expect("pipe");
    let exec = Exec {
        argv: vec![b"true".to_vec()],
        ..Exec::default()
    };
    let message = ToInit::Exec {
        request: 1,
        exec,
        forget: vec![7],
    };
    outside.send(&message, &[writer.as_fd()]).expect("send");
    drop(writer);
    let packet = inside.receive().expect("receive").expect("a message");
    assert_eq!(packet.message, message);
    let descriptor = packet.descriptors.into_iter().next().expect("a descriptor");
    std::fs::File::from(descriptor)
        .write_all(b"x")
        .expect("write");
    let mut got = String::new();
    reader.read_to_string(&mut got).expect("read");
    assert_eq!(got, "x");
}

#[test]
fn a_long_message_arrives_whole_with_its_descriptors_in_order() {
    let (outside, inside) = pair::<ToInit, FromInit>().expect("pair");
    let (_reader, writer) = std::io::pipe().expect("pipe");
    let exec = Exec {
        argv: vec![vec![b'x'; 1_000_000]],
        ..Exec::default()
    };
    let message = ToInit::Exec {
        request: 1,
        exec,
        forget: vec![7],
    };
    outside.send(&message, &[writer.as_fd()]).expect("send");
    let packet = inside.receive().expect("receive").expect("a message");
    assert_eq!(packet.message, message);
    assert_eq!(packet.descriptors.len(), 1);
}

#[test]
fn hostile_peer_sends_neither_descriptors_nor_long_messages() {
    let (outside, inside) = pair::<ToInit, FromInit>().expect("pair");
    let (_reader, writer) = std::io::pipe().expect("pipe");
    let open = || std::fs::read_dir("/proc/self/fd").expect("fds").count();
    inside
        .send(&FromInit::Ready, &[writer.as_fd()])
        .expect("send");
    let before = open();
    assert_eq!(
        outside.receive_hostile().expect("receive"),
        Some(FromInit::Ready)
    );
    assert!(open() <= before, "a descriptor came out");
    let long = FromInit::Fault(Fault {
        step: "x".repeat(100_000),
        errno: 1,
    });
    inside.send(&long, &[]).expect("send");
    assert!(outside.receive_hostile().is_err());
    drop(inside);
    assert_eq!(outside.receive_hostile().expect("end"), None);
}

#[test]
fn false_length_allocates_nothing() {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(FromHelper::from_bytes(&bytes), Err(DecodeError));
}

#[test]
fn several_messages_in_one_write_arrive_separately() {
    let (server, inside) = super::pair::<ToInit, FromInit>().expect("two ends");
    let news = [
        FromInit::Started { request: 7, pid: 2 },
        FromInit::Ended {
            request: 7,
            status: 256,
        },
        FromInit::Ready,
    ];
    inside.send_all(&news).expect("sent");
    inside.send_all(&[]).expect("nothing to send");
    for expected in news {
        let heard = server.receive_hostile().expect("a message");
        assert_eq!(heard, Some(expected));
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = FromInit::from_bytes(&bytes);
        let _ = FromHelper::from_bytes(&bytes);
        let _ = ToInit::from_bytes(&bytes);
        let _ = FromKeeper::from_bytes(&bytes);
    }

    #[test]
    fn file_call_round_trips(path in prop::collection::vec(any::<u8>(), 0..99), n in any::<u64>(), yes in any::<bool>()) {
        let call = ToInit::File { request: n as u32, call: FileCall {
            user: "user".into(),
            authority: if yes { Authority::Root } else { Authority::User },
            work: FileOp::Read { path, offset: n, length: yes.then_some(n) },
        }};
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        prop_assert_eq!(ToInit::from_bytes(&bytes), Ok(call));
    }

    #[test]
    fn file_details_round_trip(path in prop::collection::vec(any::<u8>(), 0..99), text in ".{0,99}", n in any::<u32>(), yes in any::<bool>()) {
        let entry = Entry {
            path: path.clone(), mode: n, uid: n, gid: 0, size: n.into(), modified: -1, link: path.clone(),
        };
        let attributes = vec![(path.clone(), text.clone().into_bytes())];
        let target = yes.then(|| Target { path: path.clone(), mode: n });
        let described = FileDetails { entry, owner: text.clone(), group: text, target, attributes: attributes.clone() };
        let answer = FromHelper::Described(vec![described]);
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        prop_assert_eq!(FromHelper::from_bytes(&bytes), Ok(answer));
        let put = FileOp::Put { path, attributes: Attributes { prefix: b"user.".to_vec(), values: attributes } };
        let mut bytes = Vec::new();
        put.encode(&mut bytes);
        prop_assert_eq!(FileOp::from_bytes(&bytes), Ok(put));
    }

    #[test]
    fn resize_and_its_reply_round_trip(text in ".{0,99}", processors in prop::collection::vec(any::<u32>(), 0..9), n in any::<u32>()) {
        let resize = ToInit::Resize {
            request: n,
            size: Size { views: vec![("meminfo".into(), text)], processors },
        };
        let mut bytes = Vec::new();
        resize.encode(&mut bytes);
        // Its number stays what it is: a sandbox outlives the server that it was made by.
        prop_assert_eq!(bytes[0], 7);
        prop_assert_eq!(ToInit::from_bytes(&bytes), Ok(resize));
        let resized = FromInit::Resized { request: n, errno: 28 };
        bytes.clear();
        resized.encode(&mut bytes);
        prop_assert_eq!(FromInit::from_bytes(&bytes), Ok(resized));
    }
}
