//! Network namespaces of sandboxes, entered temporarily.
//!
//! A network namespace is a property of a thread. It is entered on a thread that ends immediately afterwards, so that no
//! other work runs in it. A socket stays in the namespace in which it was created.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{Error, Step};

/// The network namespace of a process, by its pid on the host. The caller must ensure that the process was not reaped,
/// because the pid could be reused.
pub fn of(pid: i32) -> Result<OwnedFd, Error> {
    let path = format!("/proc/{pid}/ns/net");
    let file = File::open(&path).step(|| format!("open {path}"))?;
    Ok(file.into())
}

/// A new, empty network namespace. It exists as long as the descriptor, and the threads and sockets in it.
pub fn create() -> Result<OwnedFd, Error> {
    let made = on_a_thread(|| {
        // SAFETY: a new network namespace touches neither memory nor descriptors; the thread ends.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    });
    made.step(|| "make a network namespace".to_owned())
}

/// Calls a function on a thread in a network namespace. Threads and processes that it starts stay in it.
pub fn within<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    let done = on_a_thread(|| {
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        Ok(work())
    });
    done.step(|| "enter a network namespace".to_owned())
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("atoll-netns".into())
            .stack_size(256 << 10)
            .spawn_scoped(scope, work)?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Starts a TCP connection in a network namespace, also to servers on its loopback. The socket is non-blocking and may not
/// be connected yet: wait until it is writable, then read its error.
pub fn dial(namespace: BorrowedFd<'_>, address: SocketAddr) -> Result<OwnedFd, Error> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = within(namespace, || {
        rustix::net::socket_with(family, SocketType::STREAM, flags, None)
    })?;
    let socket = socket.step(|| "make a socket in a sandbox".to_owned())?;
    match rustix::net::connect(socket.as_fd(), &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(Error::step(format!("connect to {address}"), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::linux::fs::MetadataExt;

    fn current() -> u64 {
        let about = std::fs::metadata("/proc/thread-self/ns/net").expect("namespace");
        about.st_ino()
    }

    #[test]
    fn within_changes_the_namespace_of_one_thread() {
        let before = current();
        let namespace = create().expect("namespace");
        let inside = within(namespace.as_fd(), current).expect("enter");
        assert_ne!(inside, before);
        assert_eq!(current(), before);
    }

    #[test]
    fn connect_reaches_only_loopback_servers_of_the_namespace() {
        let namespace = create().expect("namespace");
        let listener = within(namespace.as_fd(), || {
            crate::sys::loopback_up().expect("loopback");
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind")
        });
        let listener = listener.expect("enter");
        let address = listener.local_addr().expect("address");
        let connection = TcpStream::from(dial(namespace.as_fd(), address).expect("dial"));
        connection.set_nonblocking(false).expect("blocking");
        let (mut served, _) = listener.accept().expect("accept");
        served.write_all(b"here").expect("write");
        drop(served);
        let mut text = String::new();
        (&connection).read_to_string(&mut text).expect("read");
        assert_eq!(text, "here");
        assert!(TcpStream::connect(address).is_err(), "not from the host");
    }
}
