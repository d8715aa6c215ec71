//! Running a command in a sandbox. The worker makes the pipes and passes the child's ends in; the
//! command's own cgroup is how everything it started can be ended.

pub(crate) mod spare;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::cgroup::Leaf;
use atoll_jail::wire::{self, Part, ToInit};
use atoll_model::{Code, Error, ExecSpec, ExecStatus, Input, Program};
use rustix::pipe::PipeFlags;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};

use crate::error::internal;
use crate::sandbox::Sandbox;
use spare::{NotStarted, Parts, Spare};

/// The kernel takes no more than 2 MiB of arguments and environment, and says so; what is far above
/// is not even sent.
const LONGEST: usize = 3 << 20;

/// A running command.
#[derive(Debug)]
pub struct Exec {
    /// Its pid inside the sandbox.
    pub pid: i32,
    /// Its standard input, if the caller writes it. Dropping it is the end of input.
    pub stdin: Option<pipe::Sender>,
    /// What it writes to standard output.
    pub stdout: Output,
    /// What it writes to standard error.
    pub stderr: Output,
    /// How to wait for it and to end it.
    pub control: Control,
}

/// How to wait for a command and to end it, apart from its streams.
#[derive(Debug, Clone)]
pub struct Control {
    request: u32,
    sandbox: Arc<Sandbox>,
    leaf: Arc<Leaf>,
    status: watch::Receiver<Option<ExecStatus>>,
}

/// Everything a command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub status: ExecStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Something was left out because of the limit.
    pub truncated: bool,
}

pub(crate) async fn start(sandbox: Arc<Sandbox>, spec: ExecSpec) -> Result<Exec, Error> {
    let exec = to_wire(&spec, &sandbox.environment)?;
    let (stdin_inside, stdin) = match spec.input {
        Input::Null => (None, None),
        Input::Open => {
            let (inside, outside) = spare::stream(sandbox.ids)?;
            let sender = pipe::Sender::from_owned_fd(nonblocking(outside)?).map_err(watching)?;
            (Some(inside), Some(sender))
        }
    };
    let before = sandbox.group.oom_kills();
    let (pid, parts) = begin(&sandbox, &spec, exec, stdin_inside).await?;
    let Parts {
        request,
        leaf,
        stdout,
        stderr,
        ended,
    } = parts;
    let (told, status) = watch::channel(None);
    let leaf = Arc::new(leaf);
    let watched = Supervisor {
        sandbox: Arc::clone(&sandbox),
        leaf: Arc::clone(&leaf),
        before,
    };
    tokio::spawn(watched.run(ended, spec.deadline, told));
    // The next command finds a child waiting; this one has what it needs.
    tokio::spawn(Sandbox::refill(Arc::clone(&sandbox)));
    let output = |pipe| Output {
        pipe,
        status: status.clone(),
        left: None,
    };
    Ok(Exec {
        pid,
        stdin,
        stdout: output(stdout),
        stderr: output(stderr),
        control: Control {
            request,
            sandbox,
            leaf,
            status,
        },
    })
}

/// Starts the program in a child that waits for one, or in one made now.
async fn begin(
    sandbox: &Sandbox,
    spec: &ExecSpec,
    exec: wire::Exec,
    stdin: Option<OwnedFd>,
) -> Result<(i32, Parts), Error> {
    let mut waiting = sandbox.take_spare();
    loop {
        let fresh = waiting.is_none();
        let spare = match waiting.take() {
            Some(spare) => spare,
            None => Spare::prepare(sandbox).await?,
        };
        let stdin = stdin.as_ref().map(AsFd::as_fd);
        match spare.start(sandbox, exec.clone(), stdin).await {
            Ok(begun) => return Ok(begun),
            Err(Ok(NotStarted::Gone(leaf))) => {
                sandbox.leave(leaf.into());
                if fresh {
                    let message = "the command was killed inside the sandbox before it began";
                    return Err(Error::new(Code::Conflict, message).remedy("try again"));
                }
            }
            Err(Ok(NotStarted::Refused(leaf, part, errno))) => {
                sandbox.leave(leaf.into());
                return Err(refused(part, errno, spec));
            }
            Err(Err(error)) => return Err(error),
        }
    }
}

/// Sees an exec to its end, whether or not its caller still listens.
struct Supervisor {
    sandbox: Arc<Sandbox>,
    leaf: Arc<Leaf>,
    /// The sandbox's OOM counter when it started.
    before: u64,
}

impl Supervisor {
    async fn run(
        self,
        mut ended: oneshot::Receiver<i32>,
        deadline: Option<Duration>,
        told: watch::Sender<Option<ExecStatus>>,
    ) {
        let mut timed_out = false;
        let raw = if let Some(deadline) = deadline {
            tokio::select! {
                raw = &mut ended => raw,
                () = tokio::time::sleep(deadline) => {
                    timed_out = true;
                    let _ = self.leaf.kill();
                    ended.await
                }
            }
        } else {
            ended.await
        };
        // A PID 1 that died without a word took the exec with it.
        let mut status = decode(raw.unwrap_or(9));
        status.timed_out = timed_out;
        let killed = status.signal == Some(9) || status.code == Some(137);
        status.oom_killed = killed && !timed_out && self.sandbox.group.oom_kills() > self.before;
        told.send_replace(Some(status));
        // Whoever waits goes first.
        tokio::task::yield_now().await;
        self.sandbox.leave(Arc::clone(&self.leaf));
    }
}

/// A raw wait status as the truth it encodes.
fn decode(raw: i32) -> ExecStatus {
    let signal = raw & 0x7f;
    if signal == 0 {
        ExecStatus {
            code: Some((raw >> 8) & 0xff),
            ..ExecStatus::default()
        }
    } else {
        ExecStatus {
            signal: Some(signal),
            ..ExecStatus::default()
        }
    }
}

impl Control {
    /// Waits for its end.
    pub async fn wait(&self) -> ExecStatus {
        let mut status = self.status.clone();
        match status.wait_for(Option::is_some).await {
            Ok(status) => status.unwrap_or_default(),
            Err(_) => ExecStatus {
                signal: Some(9),
                ..ExecStatus::default()
            },
        }
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.sandbox
            .init
            .send(
                &ToInit::Signal {
                    request: self.request,
                    signal,
                },
                &[],
            )
            .await
    }

    /// Ends everything it started.
    pub fn kill(&self) -> Result<(), Error> {
        self.leaf
            .kill()
            .map_err(|error| internal("kill a command", &error))
    }
}

impl Exec {
    /// Waits for its end.
    pub async fn wait(&self) -> ExecStatus {
        self.control.wait().await
    }

    /// Sends a signal to its process group.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.control.signal(signal).await
    }

    /// Ends everything it started.
    pub fn kill(&self) -> Result<(), Error> {
        self.control.kill()
    }

    /// Writes all input, reads all output up to a limit for each stream, and waits for the end.
    pub async fn finish(mut self, input: &[u8], limit: usize) -> Result<Finished, Error> {
        let stdin = self.stdin.take();
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command need not read its input.
                let _ = stdin.write_all(input).await;
            }
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let ((), first, second) = tokio::join!(
            write,
            self.stdout.collect(&mut out, limit),
            self.stderr.collect(&mut err, limit)
        );
        let truncated = first? | second?;
        let status = self.wait().await;
        Ok(Finished {
            status,
            stdout: out,
            stderr: err,
            truncated,
        })
    }
}

/// One stream of output. It ends when the command has ended and what was written until then is
/// read: children that live on may hold the pipe open, and fill it, for ever.
#[derive(Debug)]
pub struct Output {
    pipe: pipe::Receiver,
    status: watch::Receiver<Option<ExecStatus>>,
    /// Bytes still to be read, once the command has ended.
    left: Option<usize>,
}

impl Output {
    /// Reads some; 0 at the end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let failed = |error: std::io::Error| internal("read a command's output", &error);
        loop {
            if self.left.is_none() && self.status.borrow().is_some() {
                let left = rustix::io::ioctl_fionread(&self.pipe);
                self.left = Some(left.map_err(|error| failed(error.into()))? as usize);
            }
            if let Some(left) = &mut self.left {
                // Not `try_read`, which believes what it was last told of the pipe: it is there.
                let most = buffer.len().min(*left);
                let read =
                    rustix::io::retry_on_intr(|| rustix::io::read(&self.pipe, &mut buffer[..most]));
                let read = read.map_err(|error| failed(error.into()))?;
                *left -= read;
                return Ok(read);
            }
            match self.pipe.try_read(buffer) {
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            tokio::select! {
                ready = self.pipe.readable() => ready.map_err(watching)?,
                _ = self.status.wait_for(Option::is_some) => {}
            }
        }
    }

    /// Reads to the end, keeping at most `limit` bytes; says whether more was left out.
    pub async fn collect(&mut self, into: &mut Vec<u8>, limit: usize) -> Result<bool, Error> {
        let mut buffer = vec![0; 16 * 1024];
        let mut truncated = false;
        loop {
            let read = self.read(&mut buffer).await?;
            if read == 0 {
                return Ok(truncated);
            }
            let room = limit.saturating_sub(into.len()).min(read);
            into.extend_from_slice(&buffer[..room]);
            truncated |= room < read;
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "made for map_err")]
fn watching(error: std::io::Error) -> Error {
    internal("watch a pipe", &error)
}

/// The reading end, then the writing end.
pub(crate) fn new_pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|error| internal("make a pipe", &std::io::Error::from(error)))
}

pub(crate) fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, Error> {
    rustix::io::ioctl_fionbio(&fd, true)
        .map_err(|error| internal("change a pipe", &std::io::Error::from(error)))?;
    Ok(fd)
}

fn to_wire(spec: &ExecSpec, environment: &[(Vec<u8>, Vec<u8>)]) -> Result<wire::Exec, Error> {
    let argv = match &spec.program {
        Program::Argv(argv) => argv.clone(),
        Program::Shell(line) => vec![
            b"/bin/sh".to_vec(),
            b"-c".to_vec(),
            line.clone().into_bytes(),
        ],
    };
    if argv.first().is_none_or(Vec::is_empty) {
        return Err(Error::invalid(
            "command",
            "the command is empty",
            "name a program to run",
        ));
    }
    if argv.iter().any(|word| word.contains(&0)) {
        return Err(nul("command"));
    }
    for (name, value) in &spec.environment {
        check_variable(name, value)?;
    }
    if spec
        .directory
        .as_ref()
        .is_some_and(|directory| directory.contains(&0))
    {
        return Err(nul("cwd"));
    }
    let words = argv.iter().map(Vec::len).sum::<usize>();
    let variables = environment
        .iter()
        .chain(&spec.environment)
        .map(|(name, value)| name.len() + value.len());
    if words + variables.sum::<usize>() > LONGEST {
        return Err(too_long());
    }
    Ok(wire::Exec {
        argv,
        environment: [environment, &spec.environment].concat(),
        user: spec.user.clone().unwrap_or_default(),
        directory: spec.directory.clone().unwrap_or_default(),
    })
}

fn nul(field: &str) -> Error {
    Error::invalid(field, format!("{field} contains a NUL byte"), "remove it")
}

/// Refuses what no environment can hold.
pub(crate) fn check_variable(name: &[u8], value: &[u8]) -> Result<(), Error> {
    if name.is_empty() || name.contains(&b'=') {
        let name = String::from_utf8_lossy(name);
        let message = format!("{name:?} is not a name for a variable");
        return Err(Error::invalid(
            "env",
            message,
            "names are not empty and contain no =",
        ));
    }
    if name.contains(&0) || value.contains(&0) {
        return Err(nul("env"));
    }
    Ok(())
}

fn too_long() -> Error {
    Error::invalid(
        "command",
        "the command's arguments and environment are too long for the kernel",
        "pass what is long through standard input or a file",
    )
}

fn refused(part: Part, errno: i32, spec: &ExecSpec) -> Error {
    let cause = std::io::Error::from_raw_os_error(errno);
    let reason = rustix::io::Errno::from_raw_os_error(errno);
    match part {
        Part::User => {
            let user = spec.user.clone().unwrap_or_default();
            Error::new(
                Code::UnknownUser,
                format!("user {user:?} is not known in the sandbox"),
            )
            .remedy("name a user of the sandbox's /etc/passwd, a number, or uid:gid")
            .detail("user", user)
        }
        Part::Directory => {
            let directory =
                String::from_utf8_lossy(spec.directory.as_deref().unwrap_or_default()).into_owned();
            Error::new(
                Code::CwdNotFound,
                format!("cwd {directory:?} cannot be entered: {cause}"),
            )
            .remedy("name a directory of the sandbox that the user may enter")
            .detail("cwd", directory)
        }
        Part::Program if reason == rustix::io::Errno::TOOBIG => too_long(),
        Part::Program => {
            let program = match &spec.program {
                Program::Argv(argv) => {
                    String::from_utf8_lossy(argv.first().map_or(b"", |p| p)).into_owned()
                }
                Program::Shell(_) => "/bin/sh".to_owned(),
            };
            let missing = reason == rustix::io::Errno::NOENT;
            let message = if missing {
                format!("{program:?} was not found in the sandbox")
            } else {
                format!("{program:?} cannot be run: {cause}")
            };
            Error::new(Code::ProgramNotFound, message)
                .detail("program", program)
                .detail("exitCode", if missing { "127" } else { "126" })
        }
        Part::Setup if reason == rustix::io::Errno::AGAIN => Error::new(
            Code::QuotaExceeded,
            "the sandbox has no room for another process",
        )
        .remedy("end some of its processes, or give it more pids"),
        Part::Setup => internal("the command could not be set up", &cause),
    }
}
