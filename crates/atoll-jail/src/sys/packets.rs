//! Many packets in one system call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;

/// Sends packets through a socket that has other ends for them; how many went.
pub(crate) fn send_packets(socket: BorrowedFd<'_>, packets: &[Vec<u8>]) -> io::Result<usize> {
    let mut parts: Vec<libc::iovec> = packets
        .iter()
        .map(|packet| libc::iovec {
            iov_base: packet.as_ptr().cast_mut().cast(),
            iov_len: packet.len(),
        })
        .collect();
    let mut headers: Vec<libc::mmsghdr> = parts
        .iter_mut()
        .map(|part| {
            // SAFETY: all zero is a header without address, parts or descriptors.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header
        })
        .collect();
    // SAFETY: headers, parts and packets live across the call, which reads the packets and writes the headers.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as u32,
            libc::MSG_NOSIGNAL as _,
        )
    };
    check(i64::from(sent)).map(|sent| sent as usize)
}
