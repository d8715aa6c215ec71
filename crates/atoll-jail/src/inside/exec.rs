//! Start of programs.
//!
//! The child shares PID 1's memory until it executes the program, as after `vfork`, and PID 1 is suspended meanwhile:
//! no memory is copied for a process that replaces it at once, and the child stores its error where PID 1 reads it. The
//! child is in the exec's cgroup from the start: if a process inside stops it, a kill from outside resumes PID 1.
//!
//! The heap is PID 1's, and the child may be killed at any moment: it neither allocates nor frees. PID 1 prepares all
//! that it needs ([`Launch`]); the child only makes system calls.

use std::ffi::{CStr, CString, NulError};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::users::{self, Identity, Known};
use crate::seccomp::Clone3Cookie;
use crate::sys::{self, StringArray};
use crate::wire::{Boot, Exec, Part, Streams};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELL: &CStr = c"/bin/sh";

/// `oom_score_adj` of PID 1 and of programs: the process with the higher score is killed first. A child has the score of
/// PID 1 during the clone, which allocates memory; at that point PID 1 still has a lower score than running programs.
const INIT: &[u8] = b"0";
const CHILD: &[u8] = b"200";
const PROGRAM: &[u8] = b"300";
/// Time in microseconds for which PID 1 waits until it can set the score of a program.
const PAUSES: [u64; 6] = [10, 100, 1000, 10_000, 50_000, 0];

/// The part of a request that failed, and the error number.
pub(super) type Refusal = (Part, i32);

/// State of PID 1 that is shared by all starts.
pub(super) struct Launcher {
    /// `oom_score_adj` of PID 1.
    oom_score: File,
    /// The sandbox's `/proc`.
    processes: OwnedFd,
    /// User of the last program.
    known: Option<Known>,
    /// Secret that the filter requires for `clone3`.
    cookie: Clone3Cookie,
}

impl Launcher {
    pub(super) fn new(oom_score: File, cookie: Clone3Cookie) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            oom_score,
            processes: rustix::fs::open(c"/proc", flags, Mode::empty())?,
            known: None,
            cookie,
        })
    }

    /// Starts a program and returns its pid.
    pub(super) fn start(
        &mut self,
        boot: &Boot,
        exec: &Exec,
        descriptors: &[OwnedFd],
    ) -> Result<i32, Refusal> {
        let streams = match exec.streams {
            Streams::Output => 2,
            Streams::All => 3,
            Streams::Terminal => 1,
        };
        let Some((streams, cgroup)) = descriptors.split_at_checked(streams) else {
            return Err((Part::Setup, libc::EPROTO));
        };
        let cgroup = cgroup.first().map(AsFd::as_fd);
        let identity = users::find_again(&exec.user, &boot.user, &mut self.known);
        let identity = identity.ok_or((Part::User, libc::ENOENT))?;
        let with_nul = |part| move |_| (part, libc::EINVAL);
        let directory = Directory::new(&identity, &exec.directory);
        let directory = directory.map_err(with_nul(Part::Directory))?;
        let program = exec.argv.first().filter(|program| !program.is_empty());
        let program = program.ok_or((Part::Program, libc::ENOENT))?;
        let variables = environment(boot, exec, &identity);
        let path = variables.iter().rev().find(|(name, _)| name == b"PATH");
        let path = path.map_or(DEFAULT_PATH.as_bytes(), |(_, value)| value);
        let words = || {
            Ok::<_, NulError>((
                strings(places(program, path).into_iter())?,
                StringArray::with_shell(SHELL, strings(exec.argv.iter().cloned())?),
                StringArray::new(strings(joined(&variables))?),
            ))
        };
        let (places, argv, environment) = words().map_err(with_nul(Part::Program))?;
        let mut launch = Launch {
            boot,
            launcher: self,
            streams,
            terminal: exec.streams == Streams::Terminal,
            identity: &identity,
            directory,
            places: &places,
            by_path: is_path(program),
            argv,
            environment,
        };
        launch.start(cgroup)
    }

    fn score(&self, value: &[u8]) -> io::Result<usize> {
        self.oom_score.write_at(value, 0)
    }

    /// Raises the OOM score of a started program, so that it is killed before PID 1's next child. Has no effect if root
    /// inside has mounted something over the file, or if the program has ended.
    pub(super) fn give_score(&self, pid: i32) {
        let path = format!("{pid}/oom_score_adj");
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        for pause in PAUSES {
            if sys::has_ended(pid) {
                return;
            }
            match rustix::fs::openat2(&self.processes, &path, flags, Mode::empty(), resolve) {
                Ok(score) => {
                    let _ = rustix::io::write(score, PROGRAM);
                    return;
                }
                // The kernel resumes PID 1 slightly before the child has left its memory.
                Err(Errno::ACCESS) => std::thread::sleep(Duration::from_micros(pause)),
                Err(_) => return,
            }
        }
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The working directory of a program.
enum Directory {
    /// The user's home, or `/` if that is missing.
    Home(CString),
    /// A requested directory: fails if it is missing.
    Requested(CString),
}

impl Directory {
    fn new(identity: &Identity, requested: &[u8]) -> Result<Self, NulError> {
        let home = identity.home.as_bytes();
        Ok(match requested {
            [] => Self::Home(CString::new(home)?),
            [b'/', ..] => Self::Requested(CString::new(requested)?),
            _ => Self::Requested(CString::new(super::files::absolute(requested, home))?),
        })
    }

    fn enter(&self) -> io::Result<()> {
        let requested = match self {
            Self::Home(home) => {
                let entered = rustix::process::chdir(home.as_c_str());
                return Ok(entered.or_else(|_| rustix::process::chdir(c"/"))?);
            }
            Self::Requested(requested) => requested,
        };
        rustix::process::chdir(requested.as_c_str())?;
        // A directory outside of the root has no path.
        if sys::is_below_root()? {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOENT))
        }
    }
}

/// A program to start, with everything that its child needs.
struct Launch<'a> {
    boot: &'a Boot,
    launcher: &'a Launcher,
    streams: &'a [OwnedFd],
    terminal: bool,
    identity: &'a Identity,
    directory: Directory,
    /// Candidate paths of the program, in the order of the search.
    places: &'a [CString],
    /// Whether the program was given by its path.
    by_path: bool,
    argv: StringArray,
    environment: StringArray,
}

impl Launch<'_> {
    /// Starts the child that executes the program and returns its pid.
    fn start(&mut self, cgroup: Option<BorrowedFd<'_>>) -> Result<i32, Refusal> {
        let launcher = self.launcher;
        // Programs are killed before PID 1 when memory runs out. The child inherits the score, because it cannot open its
        // own file.
        let scored = launcher.score(CHILD);
        scored.map_err(|error| (Part::Setup, number(&error)))?;
        let mut refused = None;
        // SAFETY: PID 1 has one thread, and the child leaves its heap alone; who panics ends in the C function that
        // called it.
        let cloned = unsafe {
            sys::clone_shared(cgroup, &launcher.cookie, &mut || {
                let (part, error) = self.run();
                refused = Some((part, number(&error)));
            })
        };
        // A child that was killed immediately has not restored the score.
        let _ = launcher.score(INIT);
        match (cloned, refused) {
            (Ok(_), Some(refusal)) => Err(refusal),
            (Ok(pid), None) => Ok(pid),
            (Err(error), _) => Err((Part::Setup, number(&error))),
        }
    }

    /// In the child: executes the program; returns only on failure.
    fn run(&mut self) -> (Part, io::Error) {
        // While both share the memory, the OOM killer could select PID 1.
        if let Err(error) = self.launcher.score(INIT).and_then(|_| self.leave()) {
            return (Part::Setup, error);
        }
        match self.become_user() {
            Ok(()) => (Part::Program, self.execute()),
            Err(refused) => refused,
        }
    }

    /// Resets session, signals and descriptors.
    fn leave(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        sys::unblock_signals();
        self.place_streams()?;
        if self.boot.close_descriptors {
            sys::close_from(3)?;
        } else {
            sys::leak(3..64);
        }
        Ok(())
    }

    fn place_streams(&self) -> io::Result<()> {
        // Numbers 0 to 2 may be in use by descriptors that are still needed, so they are copied above first.
        let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 10);
        let null = || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            rustix::fs::open(c"/dev/null", flags, Mode::empty())
        };
        let (stdin, stdout, stderr) = match self.streams {
            [terminal] => (high(terminal.as_fd())?, terminal, terminal),
            [stdout, stderr] => (high(null()?.as_fd())?, stdout, stderr),
            [stdout, stderr, stdin, ..] => (high(stdin.as_fd())?, stdout, stderr),
            [] => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
        };
        let (stdout, stderr) = (high(stdout.as_fd())?, high(stderr.as_fd())?);
        sys::place(stdin.as_fd(), 0)?;
        sys::place(stdout.as_fd(), 1)?;
        sys::place(stderr.as_fd(), 2)?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    }

    /// Sets the user and the working directory.
    fn become_user(&self) -> Result<(), (Part, io::Error)> {
        let identity = self.identity;
        own_streams(identity);
        sys::set_ids(identity.uid, identity.gid, &identity.groups)
            .map_err(|error| (Part::User, error))?;
        if self.boot.no_new_privs {
            let set = sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
            set.map_err(|error| (Part::Setup, error))?;
        }
        let entered = self.directory.enter();
        entered.map_err(|error| (Part::Directory, error))
    }

    /// Tries each path as a shell does; returns the most specific error.
    fn execute(&mut self) -> io::Error {
        let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
        sys::set_program_scheduling();
        for place in self.places {
            let error = sys::execute(place, &self.argv, &self.environment);
            if error.raw_os_error() == Some(libc::ENOEXEC) {
                // A file of unknown format is run by the shell (`ENOEXEC`).
                self.argv.use_shell(place);
                let without = sys::execute(SHELL, &self.argv, &self.environment);
                return match without.raw_os_error() {
                    Some(libc::ENOENT) => error,
                    _ => without,
                };
            }
            match error.raw_os_error() {
                _ if self.by_path => return error,
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // Another directory of `PATH` may have an executable file.
                Some(libc::EACCES) => reason = error,
                _ => return error,
            }
        }
        reason
    }
}

/// Changes the owner of standard streams that were created for this exec: when a program opens `/dev/stdout`, the kernel
/// checks its permissions.
fn own_streams(identity: &Identity) {
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        let uid = Some(rustix::fs::Uid::from_raw(identity.uid));
        let gid = rustix::fs::Gid::from_raw(identity.gid);
        let kind = rustix::fs::fstat(stream).map(|found| FileType::from_raw_mode(found.st_mode));
        // Other descriptors keep their owner.
        let _ = match kind {
            Ok(FileType::Fifo) => rustix::fs::fchown(stream, uid, Some(gid)),
            // The group of terminals is `tty`.
            Ok(FileType::CharacterDevice) if rustix::termios::isatty(stream) => {
                rustix::fs::fchown(stream, uid, None)
            }
            _ => Ok(()),
        };
    }
}

/// Built-in variables, then those of the server; later ones take precedence.
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

fn strings(bytes: impl Iterator<Item = Vec<u8>>) -> Result<Vec<CString>, NulError> {
    bytes.map(CString::new).collect()
}

/// Whether the program is given by its path.
fn is_path(program: &[u8]) -> bool {
    program.contains(&b'/')
}

/// Candidate paths of a program: its path, or one in each directory of `PATH`.
fn places(program: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if is_path(program) {
        return vec![program.to_vec()];
    }
    let directories = path.split(|byte| *byte == b':');
    let places = directories.map(|directory| match directory {
        [] => [b"./", program].concat(),
        _ => [directory, b"/", program].concat(),
    });
    places.collect()
}
