//! Starting a program.
//!
//! The child shares PID 1's memory until it becomes the program, as after `vfork`, and PID 1 stands still meanwhile:
//! nothing is copied for a process that leaves it all behind at once, and why it could not is read where the child wrote
//! it. It is in the exec's cgroup from its first moment: if something inside stops it on its way, a kill from outside
//! sets PID 1 free.
//!
//! What the child takes from the heap is PID 1's. Whatever is alive when it becomes the program must therefore be in its
//! [`Launch`], which PID 1 drops.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{FileType, Mode, OFlags};

use super::users::{self, Identity, Known};
use crate::seccomp;
use crate::sys::{self, Words};
use crate::wire::{Boot, Exec, Part, Streams};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELL: &CStr = c"/bin/sh";

/// The part of a request that could not be met, and the kernel's answer.
pub(super) type Refusal = (Part, i32);

/// What PID 1 keeps from one program to the next.
pub(super) struct Launcher {
    /// PID 1's own score.
    oom_score: File,
    /// Whom the last one ran as.
    known: Option<Known>,
}

impl Launcher {
    pub(super) fn new(oom_score: File) -> Self {
        Self {
            oom_score,
            known: None,
        }
    }

    /// Starts a program; its pid.
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
        // Programs die before PID 1 when memory runs out. A child inherits the score; its own it could not open.
        self.score(b"300")
            .map_err(|error| (Part::Setup, number(&error)))?;
        let mut launch = Launch {
            boot,
            exec,
            streams,
            launcher: self,
            identity: None,
            argv: None,
            script: None,
            environment: None,
            places: Vec::new(),
            refused: None,
        };
        // SAFETY: PID 1 has one thread. For the heap see above; who panics here ends in the C function that called it.
        let cloned = unsafe {
            sys::clone_shared(cgroup.first().map(AsFd::as_fd), &mut || {
                let (part, error) = launch.run();
                launch.refused = Some((part, number(&error)));
            })
        };
        let refused = launch.refused;
        // One that was killed at once has not done it itself.
        let _ = self.score(b"0");
        match (cloned, refused) {
            (Ok(_), Some(refusal)) => Err(refusal),
            (Ok(pid), None) => Ok(pid),
            (Err(error), _) => Err((Part::Setup, number(&error))),
        }
    }

    fn score(&self, value: &[u8]) -> io::Result<usize> {
        self.oom_score.write_at(value, 0)
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A program on its way.
struct Launch<'a> {
    boot: &'a Boot,
    exec: &'a Exec,
    streams: &'a [OwnedFd],
    launcher: &'a mut Launcher,
    identity: Option<Identity>,
    argv: Option<Words>,
    /// The shell's, for a script whose first line does not say whose it is.
    script: Option<Words>,
    environment: Option<Words>,
    /// Where the program may be, in the order in which it is looked for.
    places: Vec<CString>,
    refused: Option<Refusal>,
}

impl Launch<'_> {
    /// Becomes the program; returns only with the reason why not.
    fn run(&mut self) -> (Part, io::Error) {
        // While it has ours, PID 1 itself could be chosen.
        if let Err(error) = self.launcher.score(b"0").and_then(|_| self.leave()) {
            return (Part::Setup, error);
        }
        match self.become_user().and_then(|()| self.find_words()) {
            Ok(()) => (Part::Program, self.execute()),
            Err(refused) => refused,
        }
    }

    /// Leaves everything of PID 1 behind: session, signals, descriptors.
    fn leave(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        sys::unblock_signals();
        self.place_streams()?;
        if self.boot.close_descriptors {
            sys::close_from(3)?;
        } else {
            sys::leak(3..64);
        }
        if !self.boot.leaf_filter.is_empty() {
            let filter = seccomp::from_bytes(&self.boot.leaf_filter);
            seccomp::install(&filter.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?)?;
        }
        Ok(())
    }

    fn place_streams(&self) -> io::Result<()> {
        // The numbers of the three may be taken by what we still need: go through copies above them.
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
        if self.exec.streams == Streams::Terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    }

    /// Becomes the user, where it wants to be.
    fn become_user(&mut self) -> Result<(), (Part, io::Error)> {
        let known = &mut self.launcher.known;
        let identity = users::find_again(&self.exec.user, &self.boot.user, known);
        let unknown = || (Part::User, io::Error::from_raw_os_error(libc::ENOENT));
        let identity = self.identity.insert(identity.ok_or_else(unknown)?);
        own_streams(identity);
        sys::set_ids(identity.uid, identity.gid, &identity.groups)
            .map_err(|error| (Part::User, error))?;
        if self.boot.no_new_privs {
            let set = sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
            set.map_err(|error| (Part::Setup, error))?;
        }
        enter(identity, &self.exec.directory).map_err(|error| (Part::Directory, error))
    }

    /// Puts together what the kernel is told.
    fn find_words(&mut self) -> Result<(), (Part, io::Error)> {
        let refused = |errno| (Part::Program, io::Error::from_raw_os_error(errno));
        let (Some(identity), Some(program)) = (
            &self.identity,
            self.exec.argv.first().filter(|program| !program.is_empty()),
        ) else {
            return Err(refused(libc::ENOENT));
        };
        let variables = environment(self.boot, self.exec, identity);
        let path = variables.iter().rev().find(|(name, _)| name == b"PATH");
        let path = path.map_or(DEFAULT_PATH.as_bytes(), |(_, value)| value);
        let with_nul = |_| refused(libc::EINVAL);
        self.places = strings(places(program, path).into_iter()).map_err(with_nul)?;
        let argv = strings(self.exec.argv.iter().cloned()).map_err(with_nul)?;
        self.argv = Some(Words::new(argv));
        let environment = strings(joined(&variables)).map_err(with_nul)?;
        self.environment = Some(Words::new(environment));
        Ok(())
    }

    /// Tries each place as a shell does; the most telling reason why none had it.
    fn execute(&mut self) -> io::Error {
        let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
        let (Some(argv), Some(environment)) = (&self.argv, &self.environment) else {
            return reason;
        };
        sys::be_ordinary();
        for place in &self.places {
            let mut error = sys::execute(place, argv, environment);
            if error.raw_os_error() == Some(libc::ENOEXEC) {
                let shell = [SHELL.to_owned(), place.clone()].into_iter();
                let rest = self.exec.argv.iter().skip(1).cloned();
                let Ok(rest) = strings(rest) else {
                    return error;
                };
                let script = self.script.insert(Words::new(shell.chain(rest).collect()));
                let without = sys::execute(SHELL, script, environment);
                if without.raw_os_error() != Some(libc::ENOENT) {
                    error = without;
                }
            }
            match error.raw_os_error() {
                _ if is_path(self.exec.argv.first()) => return error,
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // Perhaps another directory has one that we may run.
                Some(libc::EACCES) => reason = error,
                _ => return error,
            }
        }
        reason
    }
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

/// It says where the program is.
fn is_path(program: Option<&Vec<u8>>) -> bool {
    program.is_some_and(|program| program.contains(&b'/'))
}

/// Where a program may be: by its path, or in each directory of `PATH`.
fn places(program: &Vec<u8>, path: &[u8]) -> Vec<Vec<u8>> {
    if is_path(Some(program)) {
        return vec![program.clone()];
    }
    let directories = path.split(|byte| *byte == b':');
    let places = directories.map(|directory| match directory {
        [] => [b"./", &program[..]].concat(),
        _ => [directory, b"/", program].concat(),
    });
    places.collect()
}
