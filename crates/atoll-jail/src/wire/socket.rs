//! A `SOCK_SEQPACKET` socket that carries one kind of message each way.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::{Decode, Encode};

/// A message of at most this many bytes travels in the packet; a longer one in a memfd beside it.
const INLINE: usize = 16 * 1024;
/// No message is longer (the kernel takes 2 MiB of arguments and environment).
const LONGEST: u64 = 4 << 20;
/// The most descriptors beside one message; the kernel's own limit is 253.
const DESCRIPTORS: usize = 64;

const IN_PACKET: u8 = 0;
const IN_MEMFD: u8 = 1;

thread_local! {
    /// Receive buffer. It is reused, so that a short message touches one page only: after a clone every page that PID 1
    /// writes is copied.
    static ARRIVALS: RefCell<Box<[u8]>> = RefCell::new(vec![0; INLINE].into());
}

/// A received message with its descriptors.
#[derive(Debug)]
pub struct Packet<M> {
    /// The message.
    pub message: M,
    /// Its descriptors, all close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// One end of a connection: sends `S`, receives `R`.
#[derive(Debug)]
pub struct Channel<S, R> {
    socket: OwnedFd,
    kinds: PhantomData<fn(S) -> R>,
}

/// Two connected ends; the first is non-blocking for a server, the second blocks.
pub fn pair<S, R>() -> io::Result<(Channel<S, R>, Channel<R, S>)> {
    let (outside, inside) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::io::ioctl_fionbio(&outside, true)?;
    Ok((Channel::new(outside), Channel::new(inside)))
}

impl<S, R> Channel<S, R> {
    /// Uses an existing socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            kinds: PhantomData,
        }
    }

    /// Returns the socket.
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }
}

impl<S, R> AsFd for Channel<S, R> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S, R> AsRawFd for Channel<S, R> {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl<S: Encode, R: Decode> Channel<S, R> {
    /// Sends one message.
    pub fn send(&self, message: &S, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = vec![IN_PACKET];
        message.encode(&mut bytes);
        if bytes.len() <= INLINE {
            return self.send_bytes(&bytes, descriptors);
        }
        if bytes.len() as u64 > LONGEST {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let memfd = rustix::fs::memfd_create("atoll-message", MemfdFlags::CLOEXEC)?;
        let mut file = std::fs::File::from(memfd);
        file.write_all(&bytes[1..])?;
        file.rewind()?;
        let mut all = vec![file.as_fd()];
        all.extend_from_slice(descriptors);
        self.send_bytes(&[IN_MEMFD], &all)
    }

    /// Sends short messages without descriptors in one packet, so that the receiver wakes once.
    pub fn send_all(&self, messages: &[S]) -> io::Result<()> {
        let encoded: Vec<Vec<u8>> = messages
            .iter()
            .map(|message| {
                let mut bytes = vec![IN_PACKET];
                message.encode(&mut bytes);
                bytes
            })
            .collect();
        let mut rest = encoded.as_slice();
        while !rest.is_empty() {
            match crate::sys::send_packets(self.socket.as_fd(), rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        loop {
            match sendmsg(
                &self.socket,
                &[IoSlice::new(bytes)],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            ) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives from a trusted peer, with descriptors and long messages. `None` at the end of the connection.
    pub fn receive(&self) -> io::Result<Option<Packet<R>>> {
        ARRIVALS.with_borrow_mut(|bytes| self.receive_into(bytes))
    }

    fn receive_into(&self, bytes: &mut [u8]) -> io::Result<Option<Packet<R>>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let into = &mut [IoSliceMut::new(bytes)];
            match recvmsg(&self.socket, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received.bytes,
                // A reset: the peer closed its end with our message unread. It is reported once, before the
                // remaining messages of the peer.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if received == 0 {
            return Ok(None);
        }
        let mut descriptors: Vec<OwnedFd> = ancillary
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(rights) => Some(rights),
                _ => None,
            })
            .flatten()
            .collect();
        let message = match bytes.first() {
            Some(&IN_PACKET) => R::from_bytes(&bytes[1..received]),
            Some(&IN_MEMFD) if !descriptors.is_empty() => {
                let mut long = Vec::new();
                std::fs::File::from(descriptors.remove(0))
                    .take(LONGEST)
                    .read_to_end(&mut long)?;
                R::from_bytes(&long)
            }
            _ => Err(super::DecodeError),
        };
        let message =
            message.map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        Ok(Some(Packet {
            message,
            descriptors,
        }))
    }

    /// Receives from a sandbox: no descriptors (the kernel drops them), no long messages.
    /// `None` at the end.
    pub fn receive_hostile(&self) -> io::Result<Option<R>> {
        ARRIVALS.with_borrow_mut(|bytes| self.receive_hostile_into(bytes))
    }

    fn receive_hostile_into(&self, bytes: &mut [u8]) -> io::Result<Option<R>> {
        let received = loop {
            match rustix::net::recv(&self.socket, &mut *bytes, RecvFlags::empty()) {
                Ok((received, _)) => break received,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        };
        match bytes.get(..received) {
            Some([IN_PACKET, message @ ..]) => R::from_bytes(message)
                .map(Some)
                .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed)),
            Some([]) => Ok(None),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                super::DecodeError,
            )),
        }
    }
}
