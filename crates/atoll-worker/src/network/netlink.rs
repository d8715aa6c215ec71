//! The kernel's binary conversations about links, rules and sockets: messages, attributes, expected_replies.
//!
//! Blocking, and in the network namespace of the thread that opened the socket. Written by hand,
//! because half of what is said here (elements of rules, flows) no crate can say, and because
//! several messages in one send are one system call.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};

/// Links, addresses, routes: what a netlink socket is about if nothing else is said.
pub(super) const ROUTE: Option<Protocol> = None;
/// Rules and flows.
pub(super) const NETFILTER: Option<Protocol> = Some(rustix::net::netlink::NETFILTER);
/// Sockets.
pub(super) const SOCK_DIAG: Option<Protocol> = Some(rustix::net::netlink::SOCK_DIAG);

/// Asks for something.
pub(super) const REQUEST: u16 = 0x1;
/// Wants to know how it went.
pub(super) const ACK: u16 = 0x4;
/// Wants everything there is.
pub(super) const DUMP: u16 = 0x300;
/// Must not be there yet, and is made.
pub(super) const CREATE: u16 = 0x600;
/// Is made, in the place of the one that may be there.
pub(super) const REPLACE: u16 = 0x500;

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Set in the type of an attribute that has attributes inside.
const NESTED: u16 = 0x8000;

/// Messages of one send.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// How many expected_replies will end the conversation.
    expected_replies: usize,
    next: u32,
    /// Where the last message begins.
    last: usize,
}

impl Batch {
    /// Adds a message: its header part, then its attributes.
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

    /// Adds an attribute.
    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    /// Adds an attribute that ends with a NUL.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat());
    }

    /// Adds an attribute made of attributes, after a header part if it has one.
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

    /// Wants to know how the last message went. Errors are told in any case; thousands of good
    /// expected_replies would not fit into the socket.
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

/// A message of the kernel.
#[derive(Debug)]
pub(super) struct Reply {
    /// What it is.
    pub(super) kind: u16,
    /// Everything after its header.
    pub(super) body: Vec<u8>,
}

/// A conversation.
#[derive(Debug)]
pub(super) struct Socket {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens one in the network namespace of this thread.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        Self::listen(protocol, 0)
    }

    /// Opens one that also hears what is told to groups of listeners.
    pub(super) fn listen(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        // The kernel expected_replies at once. Should it not, an error is better than a thread that hangs.
        let timeout = Some(Duration::from_secs(20));
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, timeout)?;
        Ok(Self {
            socket,
            buffer: vec![0; 64 << 10],
        })
    }

    /// Waits for the next messages that nobody asked for.
    pub(super) fn receive(&mut self) -> io::Result<Vec<Reply>> {
        let (_, length) = rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::TRUNC)?;
        let bytes = self.buffer.get(..length);
        Ok(Messages(bytes.ok_or(io::ErrorKind::InvalidData)?).collect())
    }

    /// Sends a batch and waits until all of it was answered: the messages that are not mere
    /// acknowledgements, or the first error.
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
                // A batch of rules that failed is answered as it pleases the kernel, but at once.
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

/// The attributes in some bytes, as kind and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let value = bytes.get(4..length)?;
        let kind = u16::from_ne_bytes([bytes[2], bytes[3]]) & !NESTED;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
