//! Terminals of a sandbox, opened outside from the sandbox's devpts: inside they are ordinary `/dev/pts/N`, and no
//! descriptor leaves the sandbox.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::termios::Winsize;

use crate::plan::IdRange;
use crate::{Error, Step};

/// Opens a terminal: the server's end, non-blocking, and the program's, which belongs to root of the
/// sandbox.
pub fn open(terminals: BorrowedFd<'_>, ids: IdRange) -> Result<(OwnedFd, OwnedFd), Error> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let master = rustix::fs::openat(terminals, c"ptmx", flags, Mode::empty())
        .step(|| "open a terminal".into())?;
    rustix::pty::unlockpt(&master).step(|| "unlock a terminal".into())?;
    let flags = (OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
    // SAFETY: the call takes flags and gives a new descriptor that is ours alone.
    let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if slave < 0 {
        return Err(Error::step(
            "open a terminal's other end",
            std::io::Error::last_os_error(),
        ));
    }
    // SAFETY: as above.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    let (uid, gid) = (Uid::from_raw(ids.base), Gid::from_raw(ids.base + 5));
    rustix::fs::fchown(&slave, Some(uid), Some(gid)).step(|| "give a terminal away".into())?;
    Ok((master, slave))
}

/// Sets a terminal's size; its foreground process group gets `SIGWINCH`.
pub fn resize(master: impl AsFd, rows: u16, columns: u16) -> Result<(), Error> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(master, size).step(|| "resize a terminal".into())
}
