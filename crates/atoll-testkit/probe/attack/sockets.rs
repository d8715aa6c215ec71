//! B05: sockets of every family and type.

use crate::{Args, Command, Outcome, names, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "b05-sockets",
    "(every family and type)",
    every,
)];

const TYPES: [(&str, u64); 4] = [("STREAM", 1), ("DGRAM", 2), ("RAW", 3), ("SEQPACKET", 5)];

/// Families whose refusal a filter might decide on all 64 bits, while the kernel looks at 32.
const HIGH: [u64; 7] = [16, 17, 29, 31, 38, 40, 44];

fn one(what: &str, family: u64, kind: u64, protocol: u64) {
    let answer = sys::call(nr::SOCKET, &[family, kind, protocol]);
    match answer.map(sys::owned) {
        Ok(_) => out::ok(what, ""),
        Err(errno) => out::refused(what, errno, ""),
    }
}

fn every(_: &Args) -> Outcome {
    for family in 0..=50 {
        for (name, kind) in TYPES {
            one(
                &format!("{}:{name}", names::family(family)),
                family,
                kind,
                0,
            );
        }
    }
    for protocol in 0..=22 {
        one(&format!("AF_NETLINK:RAW:{protocol}"), 16, 3, protocol);
    }
    for (name, family) in [("AF_INET", 2), ("AF_INET6", 10)] {
        for protocol in [1, 58, 132, 255] {
            one(&format!("{name}:RAW:{protocol}"), family, 3, protocol);
        }
        for (protocol, kind) in [(1, 2), (58, 2), (132, 1), (262, 1)] {
            one(
                &format!(
                    "{name}:{}:{protocol}",
                    if kind == 1 { "STREAM" } else { "DGRAM" }
                ),
                family,
                kind,
                protocol,
            );
        }
    }
    one("AF_PACKET:RAW:all", 17, 3, 0x0300);
    for family in HIGH {
        for (name, kind) in TYPES {
            one(
                &format!("{}+high:{name}", names::family(family)),
                family | 0xdead_beef_0000_0000,
                kind,
                0,
            );
        }
    }
    let mut ends = [0_i32; 2];
    let pair = sys::call(nr::SOCKETPAIR, &[40, 1, 0, sys::slice_mut(&mut ends)]);
    out::attempt("socketpair:AF_VSOCK", pair);
    Ok(0)
}
