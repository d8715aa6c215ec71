//! Starting a program: a clone of PID 1 into the exec's cgroup that drops everything and becomes
//! the program, or says over a pipe which part of the request it could not meet.

use std::ffi::CString;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};

use super::users::{self, Identity, Known};
use crate::seccomp;
use crate::sys::{self, Cloned};
use crate::wire::{Boot, Decode, Encode, Exec, Part};

/// Where a child keeps the pipe to PID 1; everything above is closed.
const FAILURE: i32 = 3;
/// Marks what a child looked up; the other marks are parts.
const LEARNT: u8 = 0xff;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts a program; its pid, and the pipe that is closed without a word once it runs.
/// Descriptors: stdin, stdout, stderr, and the cgroup2 leaf if there is one.
pub(super) fn start(
    boot: &Boot,
    known: Option<&Known>,
    exec: &Exec,
    descriptors: &[OwnedFd],
) -> io::Result<(i32, PipeReader)> {
    let [stdin, stdout, stderr, cgroup @ ..] = descriptors else {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    };
    let (reader, writer) = io::pipe()?;
    // PID 1 waits for nobody.
    rustix::io::ioctl_fionbio(&reader, true)?;
    // SAFETY: PID 1 has one thread.
    match unsafe { sys::clone(0, cgroup.first().map(AsFd::as_fd)) }? {
        Cloned::Parent(pid) => Ok((pid, reader)),
        Cloned::Child => {
            let error = match prepare(boot, [stdin, stdout, stderr].map(AsFd::as_fd), &writer) {
                Ok(()) => become_program(boot, known, exec),
                Err(error) => (Part::Setup, error),
            };
            report(error)
        }
    }
}

/// Tells PID 1 what could not be done, and ends.
fn report((part, error): (Part, io::Error)) -> ! {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    tell(part as u8, &errno.to_le_bytes());
    sys::exit(127)
}

/// A word to PID 1: what it is about, a length, the rest. Short enough to be written whole.
fn tell(what: u8, rest: &[u8]) {
    let mut word = vec![what];
    word.extend_from_slice(&(rest.len() as u32).to_le_bytes());
    word.extend_from_slice(rest);
    if word.len() > libc::PIPE_BUF {
        return;
    }
    // SAFETY: `prepare` put the pipe at this number, or it failed and nobody can be told.
    let pipe = unsafe { BorrowedFd::borrow_raw(FAILURE) };
    let _ = rustix::io::write(pipe, &word);
}

/// What a child said before it became its program, or did not.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// A user it looked up, for those who come after it.
    pub(super) learnt: Option<Known>,
    /// Why there is no program.
    pub(super) failure: Option<(Part, i32)>,
}

/// Understands what a child wrote into its pipe.
pub(super) fn understand(mut bytes: &[u8]) -> Said {
    let mut said = Said::default();
    while let Some(([what, length @ ..], rest)) = bytes.split_first_chunk::<5>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((word, after)) = rest.split_at_checked(length) else {
            break;
        };
        bytes = after;
        if *what == LEARNT {
            said.learnt = Known::from_bytes(word).ok();
        } else {
            let errno = word.try_into().map_or(libc::EIO, i32::from_le_bytes);
            said.failure = Some((part(*what), errno));
        }
    }
    said
}

/// The inverse of `part as u8`.
fn part(number: u8) -> Part {
    [Part::User, Part::Directory, Part::Program]
        .get(usize::from(number))
        .copied()
        .unwrap_or(Part::Setup)
}

/// Leaves everything of PID 1 behind: session, signals, descriptors.
fn prepare(boot: &Boot, stdio: [BorrowedFd<'_>; 3], failure: &PipeWriter) -> io::Result<()> {
    rustix::process::setsid()?;
    sys::unblock_signals();
    // All numbers up to the pipe's may be taken by something we still need: go through copies
    // above them.
    let copies = stdio.map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 10));
    let failure = rustix::io::fcntl_dupfd_cloexec(failure, 10)?;
    for (number, copy) in copies.into_iter().enumerate() {
        sys::place(copy?.as_fd(), number as i32)?;
    }
    use_own_null()?;
    sys::place(failure.as_fd(), FAILURE)?;
    std::mem::forget(failure);
    if boot.close_descriptors {
        sys::close_from(FAILURE as u32 + 1)?;
    } else {
        sys::leak(FAILURE + 1..64);
    }
    if !boot.leaf_filter.is_empty() {
        let filter = seccomp::from_bytes(&boot.leaf_filter);
        seccomp::install(&filter.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?)?;
    }
    Ok(())
}

/// Takes the sandbox's own null device where the server's was handed in: that one is a file of the
/// host, and what a program does to it (locks, times, watches) the host and all others would see.
fn use_own_null() -> io::Result<()> {
    let found = rustix::fs::fstat(rustix::stdio::stdin())?;
    let device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
    if device && found.st_rdev == rustix::fs::makedev(1, 3) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let own = rustix::fs::open(c"/dev/null", flags, Mode::empty())?;
        sys::place(own.as_fd(), 0)?;
    }
    Ok(())
}

/// Becomes the user and then the program; returns only with the reason why not.
fn become_program(boot: &Boot, known: Option<&Known>, exec: &Exec) -> (Part, io::Error) {
    let errno = io::Error::from_raw_os_error;
    let Some((identity, learnt)) = users::find_again(&exec.user, &boot.user, known) else {
        return (Part::User, errno(libc::ENOENT));
    };
    if let Some(learnt) = learnt {
        let mut bytes = Vec::new();
        learnt.encode(&mut bytes);
        tell(LEARNT, &bytes);
    }
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

/// Built-in variables, then the template's and sandbox's, then the call's; a later one wins.
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
    for (name, value) in &boot.environment {
        set(name.as_bytes(), value.as_bytes());
    }
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
