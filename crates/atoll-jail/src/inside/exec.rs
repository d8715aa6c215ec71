//! Starting a program. A child of PID 1 is cloned into the exec's cgroup beforehand, leaves everything
//! behind that it can and waits; told its program, it becomes it, or says which part of the request it
//! could not meet. So a command does not wait for a clone.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};

use super::users::{self, Identity, Known};
use crate::seccomp;
use crate::sys::{self, Cloned};
use crate::wire::{Boot, Channel, Exec, FromChild, Packet, Part, ToChild};

/// Where a child keeps its socket; everything above is closed.
const SOCKET: i32 = 3;
/// What `ps` calls a child that waits.
const TITLE: &str = "atoll-spare";
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

type Server = Channel<FromChild, ToChild>;

/// Makes a child that waits for its program; its pid.
/// Descriptors: its socket, stdout, stderr, and the cgroup2 leaf if there is one.
pub(super) fn prepare(boot: &Boot, descriptors: &[OwnedFd]) -> io::Result<i32> {
    let [socket, stdout, stderr, cgroup @ ..] = descriptors else {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    };
    // SAFETY: PID 1 has one thread.
    match unsafe { sys::clone(0, cgroup.first().map(AsFd::as_fd)) }? {
        Cloned::Parent(pid) => Ok(pid),
        Cloned::Child => {
            let (server, left) = match leave(boot, [socket, stdout, stderr].map(AsFd::as_fd)) {
                Ok(server) => (server, Ok(())),
                Err((server, error)) => (server, Err(error)),
            };
            let (part, error) = match left {
                Ok(()) => become_told(boot, &server),
                Err(error) => (Part::Setup, error),
            };
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let _ = server.send(&FromChild::Refused { part, errno }, &[]);
            sys::exit(127)
        }
    }
}

/// Leaves everything of PID 1 behind: session, signals, descriptors, name.
fn leave(
    boot: &Boot,
    [socket, stdout, stderr]: [BorrowedFd<'_>; 3],
) -> Result<Server, (Server, io::Error)> {
    // All numbers up to the socket's may be taken by something we still need: go through copies
    // above them.
    let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 10);
    let Ok(server) = high(socket) else {
        sys::exit(127)
    };
    let placed = (|| {
        rustix::process::setsid()?;
        sys::unblock_signals();
        let (stdout, stderr) = (high(stdout)?, high(stderr)?);
        let null = rustix::fs::open(
            c"/dev/null",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        sys::place(high(null?.as_fd())?.as_fd(), 0)?;
        sys::place(stdout.as_fd(), 1)?;
        sys::place(stderr.as_fd(), 2)?;
        sys::place(server.as_fd(), SOCKET)
    })();
    if let Err(error) = placed {
        return Err((Server::new(server), error));
    }
    std::mem::forget(server);
    // SAFETY: the number was just placed and belongs to nobody else.
    let server = Server::new(unsafe { sys::owned(SOCKET) });
    match confine(boot) {
        Ok(()) => Ok(server),
        Err(error) => Err((server, error)),
    }
}

fn confine(boot: &Boot) -> io::Result<()> {
    if boot.close_descriptors {
        sys::close_from(SOCKET as u32 + 1)?;
    } else {
        sys::leak(SOCKET + 1..64);
    }
    sys::set_title(TITLE);
    sys::set_name(c"atoll-spare");
    if !boot.leaf_filter.is_empty() {
        let filter = seccomp::from_bytes(&boot.leaf_filter);
        seccomp::install(&filter.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?)?;
    }
    Ok(())
}

/// Waits for the program and becomes it; returns only with the reason why not.
fn become_told(boot: &Boot, server: &Server) -> (Part, io::Error) {
    // Most commands run as the template's user.
    let known = users::look_up("", &boot.user);
    let (exec, stdin) = match server.receive() {
        Ok(Some(Packet {
            message: ToChild::Exec(exec),
            descriptors,
        })) => (exec, descriptors.into_iter().next()),
        // It was not needed after all.
        Ok(None) => sys::exit(0),
        Err(error) => return (Part::Setup, error),
    };
    // The server waits for our end, so this costs nobody anything. That the message was taken says less: a
    // process that was killed still takes it.
    if let Err(error) = server.send(&FromChild::Heard, &[]) {
        return (Part::Setup, error);
    }
    if let Some(given) = stdin
        && let Err(error) = take_streams(given.as_fd(), exec.terminal)
    {
        return (Part::Setup, error);
    }
    become_program(boot, known.as_ref(), &exec)
}

/// Takes a standard input, or a terminal for everything.
fn take_streams(given: BorrowedFd<'_>, terminal: bool) -> io::Result<()> {
    sys::place(given, 0)?;
    if terminal {
        sys::place(given, 1)?;
        sys::place(given, 2)?;
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    Ok(())
}

/// Gives the standard streams to the user where they were made for this exec: a program that
/// opens `/dev/stdout` is asked for its rights like anybody else.
fn own_streams(identity: &Identity) {
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        let uid = Some(rustix::fs::Uid::from_raw(identity.uid));
        let gid = rustix::fs::Gid::from_raw(identity.gid);
        let kind = rustix::fs::fstat(stream).map(|found| FileType::from_raw_mode(found.st_mode));
        // What came from elsewhere stays its owner's.
        let _ = match kind {
            Ok(FileType::Fifo) => rustix::fs::fchown(stream, uid, Some(gid)),
            // Its group is `tty`, as ever.
            Ok(FileType::CharacterDevice) if rustix::termios::isatty(stream) => {
                rustix::fs::fchown(stream, uid, None)
            }
            _ => Ok(()),
        };
    }
}

/// Becomes the user and then the program; returns only with the reason why not.
fn become_program(boot: &Boot, known: Option<&Known>, exec: &Exec) -> (Part, io::Error) {
    let errno = io::Error::from_raw_os_error;
    let Some(identity) = users::find_again(&exec.user, &boot.user, known) else {
        return (Part::User, errno(libc::ENOENT));
    };
    own_streams(&identity);
    if let Err(error) = sys::set_ids(identity.uid, identity.gid, &identity.groups) {
        return (Part::User, error);
    }
    if boot.no_new_privs
        && let Err(error) = sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
    {
        return (Part::Setup, error);
    }
    if let Err(error) = enter(&identity, &exec.directory) {
        return (Part::Directory, error);
    }
    let environment = environment(boot, exec, &identity);
    let (Ok(argv), Ok(pairs)) = (
        strings(exec.argv.iter().cloned()),
        strings(joined(&environment)),
    ) else {
        return (Part::Program, errno(libc::EINVAL));
    };
    let Some(program) = exec.argv.first().filter(|program| !program.is_empty()) else {
        return (Part::Program, errno(libc::ENOENT));
    };
    sys::be_ordinary();
    let path = environment.iter().rev().find(|(name, _)| name == b"PATH");
    let path = path.map_or(DEFAULT_PATH.as_bytes(), |(_, value)| value);
    (Part::Program, search(program, path, &argv, &pairs))
}

/// Changes to the working directory; without one, to the user's home, or to `/` if that is missing.
fn enter(identity: &Identity, directory: &[u8]) -> io::Result<()> {
    let home = identity.home.as_bytes();
    let wanted = match directory {
        [] => {
            return rustix::process::chdir(home)
                .or_else(|_| rustix::process::chdir(c"/"))
                .map_err(Into::into);
        }
        [b'/', ..] => directory.to_vec(),
        _ => super::files::absolute(directory, home),
    };
    rustix::process::chdir(&wanted[..])?;
    // A directory that cannot be reached from our root has no path from it.
    let reached = rustix::process::getcwd(Vec::new())?;
    if reached.as_bytes().first() == Some(&b'/') {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ENOENT))
    }
}

/// Built-in variables, then those the server sent; a later one wins.
fn environment(boot: &Boot, exec: &Exec, identity: &Identity) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut set = |name: &[u8], value: &[u8]| match all.iter_mut().find(|(known, _)| known == name)
    {
        Some((_, old)) => *old = value.to_vec(),
        None => all.push((name.to_vec(), value.to_vec())),
    };
    set(b"PATH", DEFAULT_PATH.as_bytes());
    set(b"HOME", identity.home.as_bytes());
    set(b"USER", identity.name.as_bytes());
    set(b"LOGNAME", identity.name.as_bytes());
    set(b"SHELL", identity.shell.as_bytes());
    set(b"LANG", b"C.UTF-8");
    set(b"ATOLL_SANDBOX_ID", boot.sandbox.as_bytes());
    for (name, value) in &exec.environment {
        set(name, value);
    }
    all
}

fn joined(pairs: &[(Vec<u8>, Vec<u8>)]) -> impl Iterator<Item = Vec<u8>> + '_ {
    pairs
        .iter()
        .map(|(name, value)| [name, &b"="[..], value].concat())
}

fn strings(bytes: impl Iterator<Item = Vec<u8>>) -> Result<Vec<CString>, std::ffi::NulError> {
    bytes.map(CString::new).collect()
}

/// Tries each directory of `PATH` as a shell does; the most telling reason why none had it.
fn search(program: &[u8], path: &[u8], argv: &[CString], environment: &[CString]) -> io::Error {
    if program.contains(&b'/') {
        return attempt(program, argv, environment);
    }
    let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
    for directory in path.split(|byte| *byte == b':') {
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        let error = attempt(&[directory, b"/", program].concat(), argv, environment);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            // Perhaps another directory has one that we may run.
            Some(libc::EACCES) => reason = error,
            _ => return error,
        }
    }
    reason
}

fn attempt(program: &[u8], argv: &[CString], environment: &[CString]) -> io::Error {
    let Ok(path) = CString::new(program) else {
        return io::Error::from_raw_os_error(libc::EINVAL);
    };
    let error = sys::execute(&path, argv, environment);
    if error.raw_os_error() != Some(libc::ENOEXEC) {
        return error;
    }
    // A script without a first line that says otherwise is the shell's.
    let shell = c"/bin/sh".to_owned();
    let mut with_shell = vec![shell.clone(), path];
    with_shell.extend_from_slice(argv.get(1..).unwrap_or_default());
    match sys::execute(&shell, &with_shell, environment).raw_os_error() {
        Some(libc::ENOENT) => error,
        _ => io::Error::last_os_error(),
    }
}
