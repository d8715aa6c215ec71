//! Netlink client for links, routes, nftables, conntrack and `sock_diag`: encodes messages and
//! attributes, parses replies.
//!
//! Blocking; a socket belongs to the network namespace of the thread that opened it. Written by
//! hand, because no crate covers nftables set elements and conntrack filters, and because several
//! messages can be sent by one system call.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};

/// `NETLINK_ROUTE`, the default protocol: links, addresses, routes.
pub(super) const ROUTE: Option<Protocol> = None;
/// nftables and conntrack.
pub(super) const NETFILTER: Option<Protocol> = Some(rustix::net::netlink::NETFILTER);
/// Socket diagnostics.
pub(super) const SOCK_DIAG: Option<Protocol> = Some(rustix::net::netlink::SOCK_DIAG);

/// `NLM_F_REQUEST`.
pub(super) const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: reply with a status.
pub(super) const ACK: u16 = 0x4;
/// `NLM_F_DUMP`: return all objects.
pub(super) const DUMP: u16 = 0x300;
/// `NLM_F_CREATE | NLM_F_EXCL`: fail if it exists.
pub(super) const CREATE: u16 = 0x600;
/// `NLM_F_CREATE | NLM_F_REPLACE`: replace it if it exists.
pub(super) const REPLACE: u16 = 0x500;

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLA_F_NESTED`: the attribute contains attributes.
const NESTED: u16 = 0x8000;

/// Messages that are sent together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Final replies (status or end of a dump) to wait for.
    expected_replies: usize,
    next: u32,
    /// Offset of the last message.
    last: usize,
}

impl Batch {
    /// Appends a message: the family's header, then attributes.
    pub(super) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        attributes: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.last = start;
        self.next += 1;
        let sequence = self.next;
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(header);
        self.pad();
        attributes(self);
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.expected_replies += usize::from(flags & (ACK | DUMP) != 0);
    }

    /// Appends an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    /// Appends a NUL-terminated string attribute.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat());
    }

    /// Appends a nested attribute, after a header if it has one.
    pub(super) fn nested(&mut self, kind: u16, header: &[u8], attributes: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend(0_u16.to_ne_bytes());
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        self.bytes.extend(header);
        self.pad();
        attributes(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Requests a status for the last message. Errors are reported in any case, and thousands of
    /// success replies would overflow the socket buffer.
    pub(super) fn acknowledge(&mut self) {
        if let Some(flags) = self.bytes.get_mut(self.last + 6..self.last + 8) {
            let old = u16::from_ne_bytes([flags[0], flags[1]]);
            flags.copy_from_slice(&(old | ACK).to_ne_bytes());
            self.expected_replies += 1;
        }
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A message from the kernel.
#[derive(Debug)]
pub(super) struct Reply {
    /// Message type.
    pub(super) kind: u16,
    /// Bytes after the netlink header.
    pub(super) body: Vec<u8>,
}

/// A netlink socket with its receive buffer.
#[derive(Debug)]
pub(super) struct Socket {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the network namespace of this thread.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        Self::listen(protocol, 0)
    }

    /// Opens a socket that also receives multicast groups.
    pub(super) fn listen(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        // The kernel replies at once. If it does not, an error is better than a thread that hangs.
        let timeout = Some(Duration::from_secs(20));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, timeout)?;
        Ok(Self {
            socket,
            buffer: vec![0; 64 << 10],
        })
    }

    /// Waits for multicast messages.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Reply>> {
        let (_, length) = rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)?;
        let bytes = self.buffer.get(..length);
        Ok(Messages(bytes.ok_or(io::ErrorKind::InvalidData)?).collect())
    }

    /// Sends a batch and waits for all final replies; returns the other replies, or the first
    /// error.
    pub(super) fn request(&mut self, batch: &Batch) -> io::Result<Vec<Reply>> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, &batch.bytes, SendFlags::empty(), &kernel)?;
        let (mut replies, mut failed, mut pending) = (Vec::new(), None, batch.expected_replies);
        while pending > 0 {
            let (_, length) =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)?;
            let bytes = self
                .buffer
                .get(..length)
                .ok_or(io::ErrorKind::InvalidData)?;
            for reply in Messages(bytes) {
                let end = matches!(reply.kind, ERROR | DONE);
                let status = reply
                    .body
                    .first_chunk()
                    .map_or(0, |b| i32::from_ne_bytes(*b));
                if end && status < 0 {
                    failed.get_or_insert(-status);
                    pending = 0;
                } else if end {
                    pending = pending.saturating_sub(1);
                } else {
                    replies.push(reply);
                }
            }
        }
        match failed {
            Some(errno) => {
                // The kernel sends an unknown number of replies to a failed nftables batch, but at
                // once: drain them.
                let more = RecvFlags::DONTWAIT;
                while rustix::net::recv(&self.socket, &mut self.buffer[..], more).is_ok() {}
                Err(io::Error::from_raw_os_error(errno))
            }
            None => Ok(replies),
        }
    }
}

struct Messages<'a>(&'a [u8]);

impl Iterator for Messages<'_> {
    type Item = Reply;

    fn next(&mut self) -> Option<Reply> {
        let length = u32::from_ne_bytes(*self.0.first_chunk()?) as usize;
        let body = self.0.get(16..length)?.to_vec();
        let kind = u16::from_ne_bytes([self.0[4], self.0[5]]);
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Reply { kind, body })
    }
}

/// Parses attributes into type and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let value = bytes.get(4..length)?;
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & !NESTED;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
