//! The kernel, called without a library between. `call` is a safe function although a system call can do anything
//! to this process: the probe exists to make such calls. What callers keep to instead: a pointer among the
//! arguments comes from `slice`, `slice_mut`, `refer` or `refer_mut` on a value that outlives the call, is null, or
//! is invalid on purpose.

use std::arch::asm;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{names, nr};

/// An error number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const EINTR: Self = Self(4);
    pub(crate) const EAGAIN: Self = Self(11);
    pub(crate) const EMFILE: Self = Self(24);

    pub(crate) fn of(problem: &io::Error) -> Self {
        Self(problem.raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match names::errno(self.0) {
            Some(name) => to.write_str(name),
            None => write!(to, "E{}", self.0),
        }
    }
}

/// Makes a system call and returns the kernel's raw result.
pub(crate) fn raw(number: u64, words: [u64; 6]) -> i64 {
    let answer: i64;
    // SAFETY: the kernel changes only what the arguments point to (see the module's header), rax, rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as i64 => answer,
            in("rdi") words[0], in("rsi") words[1], in("rdx") words[2],
            in("r10") words[3], in("r8") words[4], in("r9") words[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    answer
}

/// Makes a system call; missing arguments are 0.
pub(crate) fn call(number: u64, words: &[u64]) -> Result<u64, Errno> {
    let mut six = [0; 6];
    six[..words.len()].copy_from_slice(words);
    answer(raw(number, six))
}

/// Splits the kernel's answer into value and error.
pub(crate) fn answer(value: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&value) {
        Err(Errno(-value as i32))
    } else {
        Ok(value as u64)
    }
}

/// A slice's address as an argument.
pub(crate) fn slice<T>(of: &[T]) -> u64 {
    of.as_ptr().expose_provenance() as u64
}

/// The address of a slice that the kernel fills.
pub(crate) fn slice_mut<T>(of: &mut [T]) -> u64 {
    of.as_mut_ptr().expose_provenance() as u64
}

/// A value's address as an argument.
pub(crate) fn refer<T>(of: &T) -> u64 {
    std::ptr::from_ref(of).expose_provenance() as u64
}

/// The address of a value that the kernel changes.
pub(crate) fn refer_mut<T>(of: &mut T) -> u64 {
    std::ptr::from_mut(of).expose_provenance() as u64
}

/// A C string's address as an argument.
pub(crate) fn text(of: &CStr) -> u64 {
    slice(of.to_bytes_with_nul())
}

/// A path as the kernel wants it.
pub(crate) fn c_path(path: impl AsRef<Path>) -> CString {
    let bytes = path.as_ref().as_os_str().as_bytes();
    CString::new(bytes).unwrap_or_else(|_| c"/name-with-nul".to_owned())
}

/// `AT_FDCWD` as an argument.
pub(crate) const HERE: u64 = -100_i64 as u64;

/// `open(2)`, always close-on-exec.
pub(crate) fn open(path: impl AsRef<Path>, flags: u64) -> Result<OwnedFd, Errno> {
    const O_CLOEXEC: u64 = 0o2_000_000;
    call(
        nr::OPENAT,
        &[HERE, text(&c_path(path)), flags | O_CLOEXEC, 0o600],
    )
    .map(owned)
}

/// Takes a descriptor that a call just returned.
pub(crate) fn owned(fd: u64) -> OwnedFd {
    // SAFETY: the kernel just returned this descriptor, and it has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// A descriptor as an argument.
pub(crate) fn fd(of: &OwnedFd) -> u64 {
    of.as_raw_fd() as u64
}

/// Reads once.
pub(crate) fn read(from: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let size = into.len() as u64;
    call(nr::READ, &[from, slice_mut(into), size]).map(|count| count as usize)
}

/// A pipe: read end, write end.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [0_i32; 2];
    call(nr::PIPE2, &[slice_mut(&mut ends), 0o2_000_000])?;
    Ok((owned(ends[0] as u64), owned(ends[1] as u64)))
}

/// Ends the process at once.
pub(crate) fn exit(code: i32) -> ! {
    loop {
        raw(nr::EXIT_GROUP, [code as u64, 0, 0, 0, 0, 0]);
        raw(nr::EXIT, [code as u64, 0, 0, 0, 0, 0]);
    }
}

/// This process.
pub(crate) fn pid() -> i32 {
    raw(nr::GETPID, [0; 6]) as i32
}

/// Sends a signal. Callers may ignore ESRCH.
pub(crate) fn kill(pid: i32, signal: i32) -> Result<u64, Errno> {
    call(nr::KILL, &[pid as u64, signal as u64])
}

/// Sets a signal's disposition: 0 is the default, 1 is to ignore it.
pub(crate) fn dispose(signal: i32, handler: u64) -> Result<u64, Errno> {
    let action = [handler, 0, 0, 0_u64];
    call(nr::RT_SIGACTION, &[signal as u64, slice(&action), 0, 8])
}

/// Lets all signals through.
pub(crate) fn unblock_all() {
    let all = u64::MAX;
    let _ = call(nr::RT_SIGPROCMASK, &[1, refer(&all), 0, 8]);
}

/// Exit status of a child.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
    Stopped(i32),
}

impl fmt::Display for Ended {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(to, "exited {code}"),
            Self::Signal(signal) => write!(to, "signal {}", names::signal(*signal)),
            Self::Stopped(signal) => write!(to, "stopped {}", names::signal(*signal)),
        }
    }
}

/// Waits for a child (or any, with -1). `flags` as in `wait4`; nothing to report is `None`.
pub(crate) fn wait(pid: i32, flags: u64) -> Result<Option<(i32, Ended)>, Errno> {
    let mut status = 0_i32;
    loop {
        match call(nr::WAIT4, &[pid as u64, refer_mut(&mut status), flags, 0]) {
            Err(Errno::EINTR) => {}
            Err(problem) => return Err(problem),
            Ok(0) => return Ok(None),
            Ok(who) => {
                let ended = match status & 0x7f {
                    0 => Ended::Code((status >> 8) & 0xff),
                    0x7f => Ended::Stopped((status >> 8) & 0xff),
                    signal => Ended::Signal(signal),
                };
                return Ok(Some((who as i32, ended)));
            }
        }
    }
}

/// Waits for a child until the time is up, then kills it. A traced child that stops is killed too.
pub(crate) fn wait_or_kill(pid: i32, timeout: Duration) -> Ended {
    const WNOHANG: u64 = 1;
    let until = Instant::now() + timeout;
    let mut pause = Duration::from_micros(50);
    loop {
        match wait(pid, WNOHANG) {
            Ok(Some((_, Ended::Stopped(_)))) => {
                let _ = kill(pid, 9);
            }
            Ok(Some((_, ended))) => return ended,
            Ok(None) if Instant::now() < until => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            Ok(None) => {
                let _ = kill(pid, 9);
                pause = Duration::from_millis(1);
                std::thread::sleep(pause);
            }
            Err(_) => return Ended::Signal(0),
        }
    }
}

/// `fork(2)`: `None` in the child. The C library's own, so that its threads and allocator stay right.
pub(crate) fn fork() -> Result<Option<i32>, Errno> {
    unsafe extern "C" {
        fn fork() -> i32;
    }
    // SAFETY: callers fork while they have one thread.
    let answer = unsafe { fork() };
    match answer {
        -1 => Err(Errno::of(&io::Error::last_os_error())),
        0 => Ok(None),
        child => Ok(Some(child)),
    }
}

/// Runs `work` in a child process, so that its changes end with the child. The child prints its results; a child
/// that is killed by a signal is reported in one line.
pub(crate) fn apart(what: &str, work: impl FnOnce()) {
    match fork() {
        Err(errno) => crate::out::refused(what, errno, "fork"),
        Ok(None) => {
            work();
            exit(0);
        }
        Ok(Some(child)) => {
            let ended = wait_or_kill(child, Duration::from_secs(10));
            if ended != Ended::Code(0) {
                crate::out::say(&format!("{what} {ended}"));
            }
        }
    }
}

/// Numbers shared between this process and its children.
pub(crate) struct Shared(*mut i64);

impl Shared {
    /// A page of them, all 0.
    pub(crate) fn new() -> Result<Self, String> {
        let address = call(nr::MMAP, &[0, 4096, 3, 0x21, u64::MAX, 0])
            .map_err(|errno| format!("mmap: {errno}"))?;
        Ok(Self(std::ptr::with_exposed_provenance_mut(
            address as usize,
        )))
    }

    pub(crate) fn get(&self, index: usize) -> i64 {
        assert!(index < 512, "a page holds 512");
        // SAFETY: within the page, which is never unmapped.
        unsafe { self.0.add(index).read_volatile() }
    }

    pub(crate) fn set(&self, index: usize, value: i64) {
        assert!(index < 512, "a page holds 512");
        // SAFETY: within the page, which is never unmapped.
        unsafe { self.0.add(index).write_volatile(value) }
    }
}
