//! Clones PID 1 without copying the keeper's descriptor table.
//!
//! A keeper of a thousand sandboxes has several thousand of them. A plain clone copies all, and PID 1 closes
//! all: that would be most of a create. So PID 1 begins with the keeper's own table, takes the first few numbers
//! of it into a table of its own, and says so. Until then the keeper leaves these numbers alone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use crate::sys::{self, Cloned};

/// Where PID 1 finds its control socket, and keeps it.
const CONTROL: i32 = 3;
/// Where PID 1 finds its end of the gate.
const GATE: i32 = 4;
/// Time limit for PID 1 to take its own table.
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
    /// Reserves the numbers, before anything else is opened.
    pub(super) fn new() -> io::Result<Self> {
        free_numbers()?;
        Ok(Self { newest: None })
    }

    /// Readable once the newest PID 1 has a descriptor table of its own.
    pub(super) fn gate(&self) -> Option<BorrowedFd<'_>> {
        self.newest.as_ref().map(|newest| newest.gate.as_fd())
    }

    /// Clones a process that becomes `live` once [`Self::release`] is called; its pid.
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

    /// Lets the newest PID 1 go on.
    pub(super) fn release(&mut self) -> io::Result<()> {
        match &mut self.newest {
            Some(newest) => newest.gate.write_all(&[1]),
            None => Ok(()),
        }
    }

    /// Waits until the newest PID 1 has a table of its own, or has ended.
    pub(super) fn settle(&mut self) {
        if let Some(newest) = self.newest.take() {
            newest.settle();
            // Its control socket is at an end when PID 1 is, and not when we are.
            let _ = free_numbers();
        }
    }
}

impl PendingInit {
    fn settle(mut self) {
        let pid = Pid::from_raw(self.pid);
        let flags = rustix::process::PidfdFlags::empty();
        // One that was reaped has ended.
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

/// In PID 1: takes what is its own, says so, and waits until it may go on.
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
