//! System calls that have no safe wrapper elsewhere, each as small as it can be.

mod capabilities;
mod packets;
mod schedule;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::seccomp::Clone3Cookie;

pub use capabilities::drop_cap_sys_resource;
pub(crate) use capabilities::set_capabilities;
pub(crate) use packets::send_packets;
pub use schedule::{raise_autogroup_priority, raise_thread_priority, set_fifo_scheduling};
pub(crate) use schedule::{set_init_scheduling, set_processors, set_program_scheduling};

/// Turns a raw return value into a result.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Which process continues after a clone.
pub(crate) enum Cloned {
    /// The original; the child's pid.
    Parent(i32),
    /// The new process.
    Child,
}

/// Too wide for the type libc gives it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Clones this process like `fork`, into new namespaces and a cgroup2 directory if given; with other flags of the
/// kernel's, except shared memory.
///
/// # Safety
/// The process must have a single thread: the child continues with a copy of this thread only.
pub(crate) unsafe fn clone(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    let mut arguments = clone_arguments(flags, cgroup);
    // SAFETY: the arguments live across the call; without CLONE_VM the child has its own memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            size_of::<libc::clone_args>(),
        )
    };
    match check(result)? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent(pid as i32)),
    }
}

/// Random words from the kernel.
pub(crate) fn random_words() -> io::Result<[u64; 2]> {
    let mut words = [0_u64; 2];
    // SAFETY: the words are as long as we say.
    let read = unsafe { libc::getrandom(words.as_mut_ptr().cast(), size_of_val(&words), 0) };
    if read == size_of_val(&words) as isize {
        return Ok(words);
    }
    Err(io::Error::last_os_error())
}

/// Forks, by the call that the filter permits to all processes.
///
/// # Safety
/// As for [`clone`].
pub(crate) unsafe fn fork() -> io::Result<Cloned> {
    // SAFETY: without CLONE_VM the child has its own memory and a copy of our stack.
    match check(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })? {
        0 => Ok(Cloned::Child),
        pid => Ok(Cloned::Parent(pid as i32)),
    }
}

/// Clones a child that shares this process's memory until it executes a program or exits, like `vfork`, into a cgroup2
/// directory if given. This process is suspended meanwhile. The child runs `work` on our stack, below our own frames, and
/// exits if `work` returns. Returns the pid; `work` stores its own result. The filter requires the cookie.
///
/// # Safety
/// The process must have a single thread. `work` leaves the heap alone: it may be killed in the middle of anything, and what
/// it allocated would never be freed. It does not unwind.
pub(crate) unsafe fn clone_shared<F: FnMut()>(
    cgroup: Option<BorrowedFd<'_>>,
    cookie: &Clone3Cookie,
    work: &mut F,
) -> io::Result<i32> {
    extern "C" fn child<F: FnMut()>(work: *mut libc::c_void) -> ! {
        // SAFETY: it is the `work` below, whose owner is suspended.
        unsafe { (*work.cast::<F>())() };
        exit(127)
    }
    let mut arguments = clone_arguments((libc::CLONE_VM | libc::CLONE_VFORK) as u64, cgroup);
    let arguments = &raw mut arguments;
    let work: *mut libc::c_void = std::ptr::from_mut(work).cast();
    let run: extern "C" fn(*mut libc::c_void) -> ! = child::<F>;
    let mut result = libc::SYS_clone3;
    // SAFETY: the arguments live across the call. The child starts with our registers and stack pointer, so it
    // uses only the stack below, and never returns here; this process resumes when the child has left its memory. Above
    // the stack pointer only what `work` changed differs. Neither `nomem` nor `readonly` is given, so the compiler
    // assumes that the block may have written to any memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, {work}",
            "and rsp, -16",
            "call {run}",
            "ud2",
            "2:",
            work = in(reg) work,
            run = in(reg) run,
            inlateout("rax") result,
            in("rdi") arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("rdx") cookie[0],
            in("r10") cookie[1],
            out("rcx") _,
            out("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        let number = result;
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x0, {work}",
            "blr {run}",
            "brk 1",
            "2:",
            work = in(reg) work,
            run = in(reg) run,
            in("x8") number,
            inlateout("x0") arguments as i64 => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x2") cookie[0],
            in("x3") cookie[1],
        );
    }
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    Ok(result as i32)
}

/// Arguments of `clone3`.
fn clone_arguments(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> libc::clone_args {
    // SAFETY: an all-zero clone_args is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    arguments
}

/// Ends this process without running anything that belongs to the process it was cloned from.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: always sound; it does not return.
    unsafe { libc::_exit(code) }
}

/// Sets attributes of a mount by descriptor, makes it private, and maps its ids through a user namespace.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    attributes: u64,
    ids: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // SAFETY: an all-zero mount_attr is valid.
    let mut change: libc::mount_attr = unsafe { std::mem::zeroed() };
    change.attr_set = attributes;
    // A clone of a mount that the host shares is the host's peer: what is attached upon it would show there too.
    change.propagation = libc::MS_PRIVATE;
    if let Some(ids) = ids {
        change.attr_set |= libc::MOUNT_ATTR_IDMAP;
        change.userns_fd = ids.as_raw_fd() as u64;
    }
    // SAFETY: the path is a NUL-terminated literal and the struct lives across the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw mut change,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Sets the effective user id of this thread, leaving the others and all capabilities alone
/// (the caller has set `SECBIT_NO_SETUID_FIXUP`).
pub(crate) fn set_effective_uid(uid: u32) -> io::Result<()> {
    // SAFETY: no memory is involved. The raw call concerns this thread only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, -1_i32, uid, -1_i32) })?;
    Ok(())
}

/// Sets all user and group ids of this (single-threaded) process, and its groups.
pub(crate) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the slice lives across the call; the others involve no memory.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            groups.len(),
            groups.as_ptr(),
        ))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Sets the ids that file system access uses, of this thread only.
pub(crate) fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: no memory is involved; raw calls concern this thread only and cannot fail.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}

/// `prctl` with plain numbers.
pub(crate) fn prctl(option: i32, argument: u64) -> io::Result<i64> {
    // SAFETY: the options used take numbers, not pointers.
    check(unsafe { libc::syscall(libc::SYS_prctl, option, argument, 0_u64, 0_u64, 0_u64) })
}

/// A signalfd for `SIGCHLD`, which is blocked from here on.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use; the descriptor is ours alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(i64::from(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const set,
            std::ptr::null_mut(),
        )))?;
        let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(i64::from(descriptor))?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Gives every signal its default meaning. PID 1 does it once for all its children: what is ignored
/// stays ignored across an exec, and a fresh program expects nothing to be.
pub(crate) fn default_signals() {
    // The kernel's form of a disposition: no handler, no flags, an empty mask. The C library would
    // refuse to touch two signals that it keeps for itself and an outer program may ignore.
    let default = [0_u64; 4];
    for signal in 1..=64_u64 {
        // SAFETY: the kernel reads one disposition; failures concern signals that cannot be changed.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
    }
}

/// Unblocks all signals.
pub(crate) fn unblock_signals() {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Reaps one ended child, if there is one: its pid and raw status.
pub(crate) fn reap() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status lives across the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Reaps one ended child, waiting for it; `None` when there are no children.
pub(crate) fn reap_waiting() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status lives across the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    (pid > 0).then_some((pid, status))
}

/// Whether a child has ended. It is not reaped.
pub(crate) fn has_ended(pid: i32) -> bool {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = Pid::from_raw(pid).map(|pid| waitid(WaitId::Pid(pid), options));
    !matches!(status, Some(Ok(None)))
}

/// Sends a signal to a process, or with a negative pid to a process group.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(i64::from(unsafe { libc::kill(pid, signal) }))?;
    Ok(())
}

/// An `argv` or environment array for `execve`.
#[derive(Debug)]
pub(crate) struct Words {
    /// Owned here: it is what the pointers point at.
    #[allow(dead_code, reason = "the kernel reads it")]
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
    /// Index of the first word that `execve` gets.
    first: usize,
}

impl Words {
    pub(crate) fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr());
        Self {
            pointers: pointers.chain([std::ptr::null()]).collect(),
            strings,
            first: 0,
        }
    }

    /// The words of a program, with room for a shell's name before them.
    pub(crate) fn of_program(shell: &'static CStr, argv: Vec<CString>) -> Self {
        let mut words = Self::new(argv);
        words.pointers.insert(0, shell.as_ptr());
        words.first = 1;
        words
    }

    /// Makes them the shell's, to run the script at a place instead of the program. Takes nothing from the heap.
    pub(crate) fn become_script(&mut self, place: &CStr) {
        if let Some(name) = self.pointers.get_mut(1) {
            *name = place.as_ptr();
            self.first = 0;
        }
    }

    fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers[self.first..].as_ptr()
    }
}

/// Replaces this process by a program; returns only the reason why not. Takes nothing from the heap. The place of a script
/// that was put into the words must still be there.
pub(crate) fn execute(path: &CStr, argv: &Words, environment: &Words) -> io::Error {
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// The working directory can be reached from the root. Takes nothing from the heap.
pub(crate) fn is_below_root() -> io::Result<bool> {
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the kernel writes no more than the buffer holds. The C library would look for the path by itself.
    check(unsafe { libc::syscall(libc::SYS_getcwd, path.as_mut_ptr(), path.len()) })?;
    Ok(path[0] == b'/')
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller gives up all those descriptors; nothing that owns one is used again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0_u32) })?;
    Ok(())
}

/// Takes the descriptors below `first` into a table of this process's own, and leaves the rest behind.
pub(crate) fn own_descriptors_below(first: u32) -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: the caller gives up all those descriptors; nothing that owns one is used again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) })?;
    Ok(())
}

/// Copies a descriptor to a number, which survives an exec unless it is above 2.
pub(crate) fn place(descriptor: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    let flags = if number > 2 { libc::O_CLOEXEC } else { 0 };
    if descriptor.as_raw_fd() == number {
        // dup3 refuses equal numbers; only the flag has to be right.
        // SAFETY: no memory is involved.
        check(i64::from(unsafe {
            libc::fcntl(
                number,
                libc::F_SETFD,
                if number > 2 { libc::FD_CLOEXEC } else { 0 },
            )
        }))?;
        return Ok(());
    }
    // SAFETY: no memory is involved; whatever had the number is closed on purpose.
    check(i64::from(unsafe {
        libc::dup3(descriptor.as_raw_fd(), number, flags)
    }))?;
    Ok(())
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: the request is a zeroed ifreq with a short name; the socket is closed by its owner.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        check(i64::from(socket))?;
        let socket = OwnedFd::from_raw_fd(socket);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        check(i64::from(libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            &raw mut request,
        )))?;
    }
    Ok(())
}

/// Sets this process's short name.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the name is NUL-terminated; the kernel takes 15 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Overwrites this process's command line, as `ps` shows it.
pub(crate) fn set_title(title: &str) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else {
        return;
    };
    // Fields 48 and 49; counting starts after the name, which may contain anything.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return;
    };
    let mut fields = rest.split(' ').skip(45);
    let (Some(Ok(start)), Some(Ok(end))) = (
        fields.next().map(str::parse::<usize>),
        fields.next().map(str::parse::<usize>),
    ) else {
        return;
    };
    let length = end.saturating_sub(start);
    if start == 0 || length == 0 {
        return;
    }
    let mut bytes = vec![0_u8; length];
    let kept = title.len().min(length - 1);
    bytes[..kept].copy_from_slice(&title.as_bytes()[..kept]);
    // SAFETY: the kernel says that our argument strings are at exactly this place; they are
    // writable memory of this process and nothing in it holds a reference to them any more.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, length) };
}

/// Takes a descriptor by its number.
///
/// # Safety
/// The descriptor must be open and have no other owner.
pub(crate) unsafe fn owned(number: i32) -> OwnedFd {
    // SAFETY: as the caller says.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Lets descriptors in a range survive an exec. Only for showing that they normally do not.
pub(crate) fn leak(numbers: std::ops::Range<i32>) {
    for number in numbers {
        // SAFETY: no memory is involved; a number that is not open is an error without effect.
        unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
    }
}
