//! Clones PID 1 without copying the keeper's descriptor table.
//!
//! A keeper of a thousand sandboxes has several thousand descriptors. A plain clone copies all of them, and PID 1 closes
//! them, which would take most of the time of a create. Therefore PID 1 starts with the keeper's table, unshares the
//! first few numbers of it (`close_range` with `CLOSE_RANGE_UNSHARE`), and reports that. Until then the keeper does not
//! use these numbers.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use crate::sys::{self, Cloned};

/// Descriptor number of PID 1's control socket.
const CONTROL: i32 = 3;
/// Descriptor number of PID 1's end of the gate.
const GATE: i32 = 4;
/// Time limit for PID 1 to unshare its table.
const START_TIMEOUT: Timespec = Timespec {
    tv_sec: Duration::from_secs(10).as_secs() as i64,
    tv_nsec: 0,
};

/// Clones the next PID 1.
pub(super) struct InitSpawner {
    newest: Option<PendingInit>,
}

/// A PID 1 that may still use the keeper's table.
struct PendingInit {
    pid: i32,
    gate: UnixStream,
}

impl InitSpawner {
    /// Reserves the numbers; must be called before other descriptors are opened.
    pub(super) fn new() -> io::Result<Self> {
        free_numbers()?;
        Ok(Self { newest: None })
    }

    /// Readable when the newest PID 1 has its own descriptor table.
    pub(super) fn gate(&self) -> Option<BorrowedFd<'_>> {
        self.newest.as_ref().map(|newest| newest.gate.as_fd())
    }

    /// Clones a process that runs `live` after [`Self::release`]; returns its pid.
    ///
    /// # Safety
    /// The process has a single thread.
    pub(super) unsafe fn clone(
        &mut self,
        namespaces: u64,
        cgroup: Option<BorrowedFd<'_>>,
        control: BorrowedFd<'_>,
        live: fn(OwnedFd) -> !,
    ) -> io::Result<i32> {
        self.settle();
        let (gate, inside) = UnixStream::pair()?;
        sys::place(control, CONTROL)?;
        sys::place(inside.as_fd(), GATE)?;
        let flags = namespaces | libc::CLONE_FILES as u64;
        // SAFETY: as the caller says. The child leaves every descriptor as it is until it has its own table.
        match unsafe { sys::clone(flags, cgroup) } {
            Ok(Cloned::Child) => match begin() {
                Ok(control) => live(control),
                Err(_) => sys::exit(1),
            },
            Ok(Cloned::Parent(pid)) => {
                self.newest = Some(PendingInit { pid, gate });
                Ok(pid)
            }
            Err(error) => {
                free_numbers()?;
                Err(error)
            }
        }
    }

    /// Lets the newest PID 1 continue.
    pub(super) fn release(&mut self) -> io::Result<()> {
        match &mut self.newest {
            Some(newest) => newest.gate.write_all(&[1]),
            None => Ok(()),
        }
    }

    /// Waits until the newest PID 1 has its own table, or has ended.
    pub(super) fn settle(&mut self) {
        if let Some(newest) = self.newest.take() {
            newest.settle();
            // The control socket must close when PID 1 ends, so the keeper does not keep its end.
            let _ = free_numbers();
        }
    }
}

impl PendingInit {
    fn settle(mut self) {
        let pid = Pid::from_raw(self.pid);
        let flags = rustix::process::PidfdFlags::empty();
        // A reaped process has ended.
        let Some(Ok(ended)) = pid.map(|pid| rustix::process::pidfd_open(pid, flags)) else {
            return;
        };
        let mut either = [
            PollFd::new(&self.gate, PollFlags::IN),
            PollFd::new(&ended, PollFlags::IN),
        ];
        loop {
            match rustix::event::poll(&mut either, Some(&START_TIMEOUT)) {
                Ok(0) => {
                    let _ = sys::kill(self.pid, libc::SIGKILL);
                }
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
        let [spoke, _] = either;
        if !spoke.revents().is_empty() {
            let _ = self.gate.read_exact(&mut [0]);
        }
    }
}

/// In PID 1: unshares the descriptor table, reports that, and waits for the release.
fn begin() -> io::Result<OwnedFd> {
    sys::own_descriptors_below(GATE as u32 + 1)?;
    // SAFETY: both numbers were placed for us, and the table is ours alone.
    let (control, gate) = unsafe { (sys::owned(CONTROL), sys::owned(GATE)) };
    let mut gate = UnixStream::from(gate);
    gate.write_all(&[1])?;
    gate.read_exact(&mut [0])?;
    let null = fs::File::open("/dev/null")?;
    for number in 0..=2 {
        sys::place(null.as_fd(), number)?;
    }
    Ok(control)
}

/// Fills the reserved numbers with unused descriptors.
fn free_numbers() -> io::Result<()> {
    for number in [CONTROL, GATE] {
        sys::place(rustix::stdio::stderr(), number)?;
    }
    Ok(())
}
