//! Start of a command: create its pipes and cgroup, hand descriptors to the keeper, have PID 1
//! start the program, and write the record.
//!
//! If any step fails, everything before it is undone, and a process that was already started is
//! killed.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use atoll_jail::cgroup::Leaf;
use atoll_jail::plan::IdRange;
use atoll_jail::wire::{self, Part, ToInit};
use atoll_model::{Code, Error, ExecId, ExecSpec, Program, TerminalSize};
use rustix::fs::{Gid, Uid};
use tokio::io::Interest;
use tokio::sync::{oneshot, watch};

use super::output_log::OutputLog;
use super::record::ExecRecord;
use super::stdin::StdinQueue;
use super::table::Reservation;
use super::task::{ExecTask, Pipe, TerminalPump};
use super::terminal::{self, Terminal};
use super::{
    ExecHandle, ExecState, SIGKILL, StartedExec, create_pipe, now, set_nonblocking,
    stdin_request_id,
};
use crate::error::{internal, too_many_processes};
use crate::init_channel::{Started, sandbox_ended};
use crate::journal::JournalState;
use crate::keeper::register_fd;
use crate::sandbox::Sandbox;

/// Bytes of arguments and environment that are sent to PID 1. The kernel's own limit is lower (2
/// MiB with the default stack size).
const MAX_ARGV_ENV_BYTES: usize = 3 << 20;

/// Starts a command, or returns the one that was started with the same idempotency key.
pub(crate) async fn start(sandbox: Arc<Sandbox>, spec: ExecSpec) -> Result<StartedExec, Error> {
    let exec = to_wire(&spec, &sandbox.environment())?;
    let reservation = match sandbox.execs.reserve(&spec).await? {
        Reservation::New(reservation) => reservation,
        Reservation::Existing(state) => {
            return Ok(ExecHandle::new(state, Some(Arc::clone(&sandbox))).into_streams());
        }
    };
    let (id, spec) = (ExecId::random(), Arc::new(spec));
    let stem = sandbox.execs.directory().join(id.as_str());
    let oom_kills_at_start = sandbox.group.oom_kills();
    let spawned = async {
        let streams = Streams::open(&sandbox, &spec, &stem)?;
        let spawned = PendingSpawn::new(&sandbox)?.run(exec, &streams).await?;
        let log = sandbox.execs.record_log();
        let mut record = ExecRecord::new(log, id.clone(), &spawned, &spec, now());
        // A command without a record must not run: no later server would know it.
        let written = record
            .write_start()
            .and_then(|()| streams.into_host_streams());
        match written {
            Ok(host) => Ok((spawned, record, host)),
            Err(error) => {
                let signal = ToInit::Signal {
                    request: spawned.request,
                    signal: SIGKILL,
                };
                // A kill through PID 1 also works while this process is out of descriptors; the
                // cgroup's may fail.
                let _ = sandbox.send(&signal, &[]).await;
                let _ = spawned.leaf.kill();
                record.tombstone();
                Err(error)
            }
        }
    };
    let spawned = spawned
        .await
        .inspect_err(|_| StdinQueue::remove_files(&stem));
    let (spawned, record, streams) = spawned?;
    let state = Arc::new(ExecState {
        id,
        pid: spawned.pid,
        started_at: record.started_at,
        request: spawned.request,
        leaf: Some(Arc::new(spawned.leaf)),
        log: Arc::new(
            OutputLog::new(stem)
                .with_reader_timeout(sandbox.response_timeout)
                .with_budget(sandbox.execs.budget()),
        ),
        input: streams.input,
        terminal: streams.terminal,
        progress: watch::Sender::default(),
        record: Mutex::new(record),
        journaled: JournalState::default(),
        killed: AtomicBool::default(),
        spec,
    });
    let control = ExecHandle::new(Arc::clone(&state), Some(Arc::clone(&sandbox)));
    sandbox.execs.add(Arc::clone(&state));
    drop(reservation);
    ExecTask {
        sandbox,
        exec: state,
        stdout: Some(streams.stdout),
        stderr: streams.stderr,
        stdin: streams.stdin,
        terminal_pump: streams.terminal_pump,
        ended: spawned.ended,
        oom_kills_at_start,
    }
    .spawn();
    Ok(control.into_streams())
}

/// Runs `/bin/true` once, so that the page and dentry caches are warm before the first command of a
/// client. A template without it is not an error.
pub(crate) async fn warm_up(sandbox: &Sandbox) {
    let exec = wire::Exec {
        argv: vec![b"/bin/true".to_vec()],
        ..wire::Exec::default()
    };
    let spawned = async {
        let streams = Streams::pipes(sandbox, None)?;
        PendingSpawn::new(sandbox)?.run(exec, &streams).await
    };
    if let Ok(spawned) = spawned.await {
        let _ = spawned.ended.await;
        release_exec(sandbox, spawned.request, spawned.leaf);
    }
}

/// Both ends of a command's standard streams.
struct Streams {
    host: HostEnds,
    sandbox_ends: Vec<OwnedFd>,
}

enum HostEnds {
    Pipes {
        stdout: OwnedFd,
        stderr: OwnedFd,
        /// The stdin queue and the writing end of its pipe.
        input: Option<(StdinQueue, OwnedFd)>,
    },
    Terminal(terminal::TerminalFds, TerminalSize),
}

/// The host's ends, registered with the reactor, as the command's task uses them.
struct HostStreams {
    stdout: Pipe,
    stderr: Option<Pipe>,
    input: Option<StdinQueue>,
    stdin: Option<OwnedFd>,
    terminal: Option<Terminal>,
    terminal_pump: Option<TerminalPump>,
}

impl Streams {
    fn open(sandbox: &Sandbox, spec: &ExecSpec, stem: &Path) -> Result<Self, Error> {
        if let Some(size) = spec.terminal {
            return Self::terminal(sandbox, size);
        }
        let input =
            (spec.stdin == atoll_model::Stdin::Piped).then(|| StdinQueue::new(stem.to_owned()));
        let input = input.transpose();
        Self::pipes(
            sandbox,
            input.map_err(|error| internal("create a command's stdin queue", &error))?,
        )
    }

    fn pipes(sandbox: &Sandbox, input: Option<StdinQueue>) -> Result<Self, Error> {
        let (stdout, stdout_end) = stream_pipe(sandbox.ids)?;
        let (stderr, stderr_end) = stream_pipe(sandbox.ids)?;
        let mut sandbox_ends = vec![stdout_end, stderr_end];
        let input = match input {
            Some(input) => {
                let (stdin_end, stdin) = stream_pipe(sandbox.ids)?;
                sandbox_ends.push(stdin_end);
                Some((input, set_nonblocking(stdin)?))
            }
            None => None,
        };
        let host = HostEnds::Pipes {
            stdout,
            stderr,
            input,
        };
        Ok(Self { host, sandbox_ends })
    }

    fn terminal(sandbox: &Sandbox, size: TerminalSize) -> Result<Self, Error> {
        let (master, slave) = sandbox.open_terminal()?;
        atoll_jail::terminal::resize(&master, size.rows, size.columns)
            .map_err(|error| crate::error::jail(&error))?;
        let (reader, writer) = create_pipe()?;
        let ends = terminal::TerminalFds {
            master,
            reader,
            writer,
        };
        Ok(Self {
            host: HostEnds::Terminal(ends, size),
            sandbox_ends: vec![slave],
        })
    }

    fn kind(&self) -> wire::Streams {
        match &self.host {
            HostEnds::Terminal(..) => wire::Streams::Terminal,
            HostEnds::Pipes { input: Some(_), .. } => wire::Streams::All,
            HostEnds::Pipes { input: None, .. } => wire::Streams::Output,
        }
    }

    /// Hands the host's ends to the keeper before the command starts: descriptors that it does not
    /// hold would be lost in a restart.
    async fn hand_to_keeper(&self, sandbox: &Sandbox, request: u32) -> Result<(), Error> {
        match &self.host {
            HostEnds::Terminal(ends, _) => sandbox.hold(request, &ends.as_fds()).await,
            HostEnds::Pipes {
                stdout,
                stderr,
                input,
            } => {
                if let Some((queue, pipe)) = input {
                    let file = queue.file();
                    let both = [file.as_fd(), pipe.as_fd()];
                    sandbox.hold(stdin_request_id(request), &both).await?;
                }
                let both = [stdout.as_fd(), stderr.as_fd()];
                sandbox.hold(request, &both).await
            }
        }
    }

    /// Registers the host's ends and closes the sandbox's.
    fn into_host_streams(self) -> Result<HostStreams, Error> {
        match self.host {
            HostEnds::Terminal(ends, size) => {
                let (terminal, (stdout, pump)) = ends.open(size)?;
                Ok(HostStreams {
                    stdout,
                    stderr: None,
                    input: None,
                    stdin: None,
                    terminal: Some(terminal),
                    terminal_pump: Some(pump),
                })
            }
            HostEnds::Pipes {
                stdout,
                stderr,
                input,
            } => {
                let (input, stdin) = input.unzip();
                Ok(HostStreams {
                    stdout: watch_readable(stdout)?,
                    stderr: Some(watch_readable(stderr)?),
                    input,
                    stdin,
                    terminal: None,
                    terminal_pump: None,
                })
            }
        }
    }
}

/// A started program.
pub(super) struct SpawnedExec {
    pub(super) request: u32,
    pub(super) pid: i32,
    pub(super) leaf: Leaf,
    /// Receives the raw wait status.
    ended: oneshot::Receiver<i32>,
}

/// A program that is being started. Dropping it undoes everything.
struct PendingSpawn<'a> {
    sandbox: &'a Sandbox,
    request: u32,
    started: oneshot::Receiver<Started>,
    ended: Option<oneshot::Receiver<i32>>,
    leaf: Option<Leaf>,
    /// The request was sent to PID 1.
    sent: bool,
}

impl<'a> PendingSpawn<'a> {
    fn new(sandbox: &'a Sandbox) -> Result<Self, Error> {
        let (request, started, ended) = sandbox.init.register_exec()?;
        Ok(Self {
            leaf: Some(sandbox.leaf(request)?),
            sandbox,
            request,
            started,
            ended: Some(ended),
            sent: false,
        })
    }

    async fn run(mut self, mut exec: wire::Exec, streams: &Streams) -> Result<SpawnedExec, Error> {
        let (sandbox, request) = (self.sandbox, self.request);
        streams.hand_to_keeper(sandbox, request).await?;
        exec.streams = streams.kind();
        let mut descriptors: Vec<_> = streams.sandbox_ends.iter().map(AsFd::as_fd).collect();
        descriptors.extend(self.leaf.as_ref().and_then(Leaf::directory));
        let message = ToInit::Exec {
            request,
            exec: exec.clone(),
            forget: sandbox.take_acked(),
        };
        let _starting = sandbox.begin_start().await?;
        self.sent = true;
        sandbox.send(&message, &descriptors).await?;
        let started = tokio::select! {
            biased;
            started = &mut self.started => started,
            refusal = sandbox.until_paused() => return Err(refusal),
            () = tokio::time::sleep(sandbox.response_timeout) => return Err(sandbox.timeout_error()),
        };
        match started {
            Ok(Ok(pid)) => match (self.leaf.take(), self.ended.take()) {
                (Some(leaf), Some(ended)) => Ok(SpawnedExec {
                    request,
                    pid,
                    leaf,
                    ended,
                }),
                _ => Err(sandbox_ended()),
            },
            Ok(Err((part, errno))) => {
                self.sent = false;
                Err(spawn_error(part, errno, &exec))
            }
            Err(_) => Err(sandbox_ended()),
        }
    }
}

impl Drop for PendingSpawn<'_> {
    fn drop(&mut self) {
        let Some(leaf) = self.leaf.take() else {
            return;
        };
        if self.sent {
            // It must not start later, without a record.
            let _ = leaf.kill();
        }
        release_exec(self.sandbox, self.request, leaf);
    }
}

/// Releases the cgroup and descriptors of a program that does not run.
fn release_exec(sandbox: &Sandbox, request: u32, leaf: Leaf) {
    sandbox.retire_leaf(leaf.into());
    sandbox.release(request);
    sandbox.release(stdin_request_id(request));
    sandbox.ack_exec_end(request);
}

/// A pipe for a standard stream: reading end, writing end. It is owned by the sandbox's root, and
/// PID 1 passes it on to the program's user, because opening `/dev/stdout` checks permissions.
fn stream_pipe(ids: IdRange) -> Result<(OwnedFd, OwnedFd), Error> {
    let pipe = create_pipe()?;
    let (uid, gid) = (Uid::from_raw(ids.base), Gid::from_raw(ids.base));
    rustix::fs::fchown(&pipe.0, Some(uid), Some(gid))
        .map_err(|error| internal("change the owner of a pipe", &std::io::Error::from(error)))?;
    Ok(pipe)
}

/// Registers the reading end of a pipe with the reactor.
pub(super) fn watch_readable(fd: OwnedFd) -> Result<Pipe, Error> {
    register_fd(set_nonblocking(fd)?, Interest::READABLE)
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
        return Err(nul_byte_error("command"));
    }
    for (name, value) in &spec.environment {
        check_variable(name, value)?;
    }
    if spec
        .directory
        .as_ref()
        .is_some_and(|directory| directory.contains(&0))
    {
        return Err(nul_byte_error("cwd"));
    }
    // The default `TERM`; the request's variables follow and override it.
    let terminal: Vec<_> = spec
        .terminal
        .map(|_| (b"TERM".to_vec(), b"xterm-256color".to_vec()))
        .into_iter()
        .collect();
    let words = argv.iter().map(Vec::len).sum::<usize>();
    let variables = environment
        .iter()
        .chain(&spec.environment)
        .map(|(name, value)| name.len() + value.len());
    if words + variables.sum::<usize>() > MAX_ARGV_ENV_BYTES {
        return Err(too_long_error());
    }
    Ok(wire::Exec {
        argv,
        environment: [&terminal[..], environment, &spec.environment].concat(),
        user: spec.user.clone().unwrap_or_default(),
        directory: spec.directory.clone().unwrap_or_default(),
        streams: wire::Streams::default(),
    })
}

fn nul_byte_error(field: &str) -> Error {
    Error::invalid(field, format!("{field} contains a NUL byte"), "remove it")
}

/// Rejects a variable that `execve` cannot represent.
pub(crate) fn check_variable(name: &[u8], value: &[u8]) -> Result<(), Error> {
    if name.is_empty() || name.contains(&b'=') {
        let name = String::from_utf8_lossy(name);
        let message = format!("{name:?} is not a valid variable name");
        return Err(Error::invalid(
            "env",
            message,
            "names are not empty and contain no =",
        ));
    }
    if name.contains(&0) || value.contains(&0) {
        return Err(nul_byte_error("env"));
    }
    Ok(())
}

fn too_long_error() -> Error {
    Error::invalid(
        "command",
        "the command's arguments and environment are too long for the kernel",
        "pass what is long through standard input or a file",
    )
}

fn spawn_error(part: Part, errno: i32, exec: &wire::Exec) -> Error {
    let cause = std::io::Error::from_raw_os_error(errno);
    let reason = rustix::io::Errno::from_raw_os_error(errno);
    match part {
        Part::User => {
            let user = exec.user.clone();
            Error::new(
                Code::UnknownUser,
                format!("user {user:?} is not known in the sandbox"),
            )
            .remedy("name a user of the sandbox's /etc/passwd, a number, or uid:gid")
            .detail("user", user)
        }
        Part::Directory => {
            let directory = String::from_utf8_lossy(&exec.directory).into_owned();
            Error::new(
                Code::CwdNotFound,
                format!("cwd {directory:?} cannot be entered: {cause}"),
            )
            .remedy("name a directory of the sandbox that the user may enter")
            .detail("cwd", directory)
        }
        Part::Program if reason == rustix::io::Errno::TOOBIG => too_long_error(),
        Part::Program => {
            let program = exec.argv.first().map_or(&b""[..], |program| program);
            let program = String::from_utf8_lossy(program).into_owned();
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
        Part::Setup if reason == rustix::io::Errno::AGAIN => too_many_processes(),
        Part::Setup => internal("set up the command's process", &cause),
    }
}
