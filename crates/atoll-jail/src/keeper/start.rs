//! Starts a keeper, and connects to a running one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, MemfdFlags, SealFlags};

use super::NAME;
use crate::sys;
use crate::wire::{Channel, FromKeeper, ToKeeper, VersionRange};
use crate::{Error, Step};

/// Time limit for each message of a keeper during adoption.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a keeper from a copy of `binary`, whose `main` calls [`run_if_invoked`](super::run_if_invoked) first. Returns
/// the caller's end of the connection and the process. With a socket (see [`listen`]) it outlives its server. It holds
/// the given descriptors (locks of the instance) as long as it lives.
pub fn start(
    binary: &Path,
    label: &str,
    listener: Option<OwnedFd>,
    held: &[BorrowedFd<'_>],
) -> Result<(Channel<ToKeeper, FromKeeper>, Child), Error> {
    let binary = match shown_read_only(binary) {
        Ok(shown) => shown,
        // Mounting is not permitted.
        Err(_) => sealed_copy(binary).step(|| format!("copy {}", binary.display()))?,
    };
    let (ours, its) = crate::wire::pair().step(|| "make the keeper's socket".into())?;
    // Reserves space for the title: `ps` shows as many bytes as the original arguments have.
    let child = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()))
        .arg0(NAME)
        .arg(format!("{label:<24}"))
        .env_clear()
        .stdin(Stdio::from(its.into_fd()))
        .stdout(listener.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::null())
        .current_dir("/")
        .spawn()
        .step(|| "start the keeper".into())?;
    let version = VersionRange::ours().version;
    ours.send(&ToKeeper::Hello { version }, held)
        .step(|| "greet the keeper".into())?;
    Ok((ours, child))
}

/// Creates the listening socket of a persistent keeper, by an open directory and a name in it.
pub fn listen(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Error> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let step = || format!("listen at {name}");
    let _ = rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty());
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .step(step)?;
    rustix::net::bind(&socket, &address(directory, name)?).step(step)?;
    rustix::net::listen(&socket, 8).step(step)?;
    Ok(socket)
}

/// Connects to the keeper at this socket; `None` if it does not exist any more.
pub fn connect(
    directory: BorrowedFd<'_>,
    name: &str,
) -> Result<Option<Channel<ToKeeper, FromKeeper>>, Error> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let step = || format!("connect to {name}");
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .step(step)?;
    // A working keeper responds at once.
    for way in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, way, Some(MESSAGE_TIMEOUT)).step(step)?;
    }
    match rustix::net::connect(&socket, &address(directory, name)?) {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => return Ok(None),
        Err(error) => return Err(Error::step(step(), error)),
    }
    let channel = Channel::new(socket);
    let version = VersionRange::ours().version;
    match channel.send(&ToKeeper::Hello { version }, &[]) {
        Ok(()) => Ok(Some(channel)),
        // The keeper was about to exit.
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(Error::step("greet the keeper", error)),
    }
}

/// Whether the error says that the peer has closed the connection.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// A short path of a socket, whatever the length of the directory's path.
fn address(directory: BorrowedFd<'_>, name: &str) -> Result<rustix::net::SocketAddrUnix, Error> {
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    rustix::net::SocketAddrUnix::new(path).step(|| format!("name the socket {name}"))
}

/// The binary through a detached, read-only mount: a sandbox that reached it could not change it. Its pages are shared with
/// this process.
fn shown_read_only(binary: &Path) -> io::Result<OwnedFd> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    // Opens the file that `/proc/self/exe` links to.
    let path = fs::canonicalize(binary)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let shown = open_tree(CWD, &path, flags)?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID;
    sys::mount_setattr(shown.as_fd(), attributes, None)?;
    Ok(shown)
}

/// A sealed copy in memory, for hosts where mounting is not permitted.
fn sealed_copy(binary: &Path) -> io::Result<OwnedFd> {
    let copy = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let own = fs::File::open(binary)?;
    let mut left = own.metadata()?.len();
    while left > 0 {
        let sent = rustix::fs::sendfile(&copy, &own, None, left as usize)?;
        if sent == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= sent as u64;
    }
    rustix::fs::fcntl_add_seals(
        &copy,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(copy)
}
