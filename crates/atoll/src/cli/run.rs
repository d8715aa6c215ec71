//! `atoll run`: a sandbox for one command.

pub(crate) mod named;
mod served;
pub(crate) mod terminal;
mod transfer;

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use atoll_model::{
    Bytes, Caller, Code, Cpus, Error, ExecSpec, ExecStatus, HostMount, Input, Limits, Network,
    Policy, Program, Rule, RunName, SandboxId, SandboxSpec, Verdict, parse_duration,
};
use atoll_worker::{
    Config as RuntimeConfig, Control, Exec, LocalRuntime, Output, Storage, instance, template,
};
use clap::Args;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};

use super::progress::Bar;
use super::remote::Remote;
use super::template::{store, variables};
use super::{as_command, block_on, complain, note, unwritten};
use crate::config::Config;
use transfer::Transfer;

/// Make a sandbox, run a command in it, and remove it again.
///
/// Input, output and the exit code pass through. 124: the deadline was reached; 137: the sandbox ran
/// out of memory; 125: Atoll itself failed; 126 and 127: the command cannot be run or was not found.
///
/// With --name the sandbox outlives this process: if it is killed or its terminal is lost, the command
/// goes on, and `atoll run --name NAME` attaches to it.
///
/// It is a sandbox of this process, or of the server that `ATOLL_URL` or `atoll login` name.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll run -- python3 -c 'print(6*7)'
  echo hello | atoll run -- tr a-z A-Z
  atoll run --memory 512M --cpus 1 --timeout 30s -- make test
  atoll run --disk 1G -- sh -c 'head -c 2G /dev/zero > big'
  atoll run --upload ./project:work --cwd work --download work/out.txt:. -- make
  atoll run --mount /srv/data:/data --user root -- ls -l /data
  atoll run --net internet -- curl -sS https://example.com
  atoll run --net internet --allow 1.1.1.1:443 -- curl -sS https://1.1.1.1
  atoll run --name build -- make -j4     outlives this process and its terminal
  atoll run --name build                 attach: all its output, then its exit code
  atoll run -it                          a shell to stay in
  atoll run -it --user root -- vim /etc/hosts")]
pub(crate) struct Run {
    /// Outlive this process; without a command, attach to what runs under this name.
    #[arg(long)]
    name: Option<RunName>,
    /// The template to start from.
    #[arg(long, default_value = template::BASE, value_name = "NAME")]
    template: String,
    /// Processor time, in processors.
    #[arg(long, default_value = "2", value_name = "N")]
    cpus: Cpus,
    /// Memory, page cache included.
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    memory: Bytes,
    /// Processes and threads.
    #[arg(long, default_value_t = Limits::default().pids, value_name = "N")]
    pids: u32,
    /// Disk space of what is written: keeps the sandbox's files in an image of its own [default: 10G,
    /// kept only with `ATOLL_STORAGE=image`].
    #[arg(long, value_name = "SIZE", conflicts_with = "keep")]
    disk: Option<Bytes>,
    /// Kill the command and all it started after this long.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Set a variable.
    #[arg(long = "env", short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Run in this directory of the sandbox [default: the user's home].
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Run as this user of the sandbox: a name, a number, or uid:gid [default: the template's].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Copy a file or directory in before the command runs.
    #[arg(long, value_name = "SRC:DST")]
    upload: Vec<Transfer>,
    /// Copy a file or directory out after the command has ended.
    #[arg(long, value_name = "SRC:DST")]
    download: Vec<Transfer>,
    /// Show a file or directory of this machine in the sandbox, read-only.
    #[arg(long, value_name = "SRC:DST")]
    mount: Vec<Transfer>,
    /// What to connect it to: none is its own loopback; internet is public addresses, never this
    /// machine, its networks or other sandboxes.
    #[arg(long, default_value = "none", value_name = "none|internet")]
    net: Network,
    /// Let it reach these addresses: 1.1.1.1, 1.1.1.0/24, 1.1.1.1:443. Without --deny, nothing else.
    #[arg(long, value_name = "RULE")]
    allow: Vec<Rule>,
    /// Refuse it these addresses, but for what --allow names.
    #[arg(long, value_name = "RULE")]
    deny: Vec<Rule>,
    /// Keep the sandbox's files when the command has ended.
    #[arg(long)]
    keep: bool,
    /// Run the command on a terminal: this one.
    #[arg(long, short = 't')]
    tty: bool,
    /// Pass input through, which is always done; for the habit of -it.
    #[arg(long, short = 'i', hide = true)]
    interactive: bool,
    /// On this machine and in this process, whatever server is configured.
    #[arg(long, conflicts_with_all = ["url", "profile"])]
    local: bool,
    #[command(flatten)]
    remote: Remote,
    /// The command and its arguments; on a terminal, the user's shell if there is none.
    #[arg(required_unless_present_any = ["tty", "name"], last = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

impl Run {
    pub(crate) fn run(self, config: &Config) -> ExitCode {
        let server = if self.local {
            Ok(None)
        } else {
            self.remote.configured(config)
        };
        as_command(server.and_then(|server| match (server, &self.name) {
            (Some(client), _) => block_on(self.served(&client)),
            (None, Some(name)) => block_on(self.named(name, config)),
            (None, None) => block_on(self.whole(config)),
        }))
    }

    async fn whole(&self, config: &Config) -> Result<u8, Error> {
        let spec = self.sandbox();
        let exec = self.exec()?;
        spec.check_network()?;
        atoll_worker::check_host()?;
        for upload in &self.upload {
            upload.check_source()?;
        }
        if self.template == template::BASE {
            ensure_base(config)?;
        }
        let runtime = LocalRuntime::open(RuntimeConfig {
            // A limit that is asked for is kept.
            storage: self.disk.map_or(config.storage, |_| Storage::Image),
            templates: config.templates(),
            ..RuntimeConfig::new(&config.data)
        })
        .await?;
        let done = self.in_sandbox(&runtime, spec, exec, config).await;
        // Whatever happened, nothing of the sandbox stays.
        let closed = runtime.close().await;
        let code = done?;
        closed?;
        Ok(code)
    }

    async fn in_sandbox(
        &self,
        runtime: &LocalRuntime,
        spec: SandboxSpec,
        exec: ExecSpec,
        config: &Config,
    ) -> Result<u8, Error> {
        // From here on signals are ours to pass on; the sandbox must not outlive us.
        let mut signals = Signals::new()?;
        let limits = spec.limits;
        let id = runtime.create(spec).await?.id;
        let caller = caller(self.user.clone());
        let uploading = async {
            for upload in &self.upload {
                upload.upload(runtime, &id, &caller).await?;
            }
            Ok(())
        };
        signals.unless(uploading).await?;
        let exec = runtime.exec(&id, exec).await?;
        let status = if self.tty {
            on_terminal(&exec.control, &mut signals).await?
        } else {
            stream(exec, &mut signals).await?
        };
        explain(&status, limits, self.timeout);
        let code = status.exit_code() as u8;
        let bringing = bring_out(&self.download, runtime, &id, &caller, code);
        signals.unless(bringing).await?;
        if self.keep {
            keep(runtime, &id, config).await?;
        }
        Ok(code)
    }

    fn sandbox(&self) -> SandboxSpec {
        let mount = |mount: &Transfer| HostMount {
            source: PathBuf::from(&mount.source),
            target: mount.target.clone(),
        };
        SandboxSpec {
            template: self.template.clone(),
            limits: self.limits(),
            environment: std::collections::BTreeMap::new(),
            mounts: self.mount.iter().map(mount).collect(),
            network: self.net,
            policy: Policy {
                default: if self.deny.is_empty() && !self.allow.is_empty() {
                    Verdict::Deny
                } else {
                    Verdict::Allow
                },
                allow: self.allow.clone(),
                deny: self.deny.clone(),
            },
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            cpus: self.cpus,
            memory: self.memory,
            pids: self.pids,
            disk: self.disk.unwrap_or(Limits::default().disk),
        }
    }

    fn exec(&self) -> Result<ExecSpec, Error> {
        use std::os::unix::ffi::OsStrExt;
        let words = self.command.iter().map(|word| word.as_bytes().to_vec());
        let program = if self.command.is_empty() {
            Program::Shell("exec \"${SHELL:-/bin/sh}\" -l".into())
        } else {
            Program::Argv(words.collect())
        };
        let terminal = if self.tty {
            Some(terminal::size()?)
        } else {
            None
        };
        let bytes = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
        Ok(ExecSpec {
            program,
            environment: variables(&self.env)?.into_iter().map(bytes).collect(),
            directory: self.cwd.clone().map(String::into_bytes),
            user: self.user.clone(),
            input: Input::Open,
            deadline: self.timeout,
            tag: None,
            terminal,
            again: None,
        })
    }
}

/// Who does file work for a run.
fn caller(user: Option<String>) -> Caller {
    Caller {
        user,
        ..Caller::default()
    }
}

/// Says why a command was killed, if it was us or the kernel on our behalf.
fn explain(status: &ExecStatus, limits: Limits, deadline: Option<Duration>) {
    if status.oom_killed {
        note(&format!(
            "atoll: killed: the sandbox ran out of memory ({}); give it more with --memory",
            limits.memory
        ));
    } else if status.timed_out {
        let after = deadline.unwrap_or_default();
        note(&format!(
            "atoll: killed: the deadline of {after:?} was reached; set another with --timeout"
        ));
    }
}

/// Copies files out after a command has ended with a code.
async fn bring_out(
    downloads: &[Transfer],
    runtime: &LocalRuntime,
    id: &SandboxId,
    caller: &Caller,
    code: u8,
) -> Result<(), Error> {
    for download in downloads {
        if let Err(error) = download.download(runtime, id, caller).await {
            // A command that failed has said so already; its code is the one to tell.
            if code == 0 {
                return Err(error);
            }
            complain(&error);
        }
    }
    Ok(())
}

/// Makes `base` at its first use, with a bar.
pub(crate) fn ensure_base(config: &Config) -> Result<(), Error> {
    let store = store(config)?;
    let mut bar = Bar::new("making template base from this machine's system (once)");
    let made = store.ensure_base(&mut |progress| bar.show(&progress));
    drop(bar);
    made?;
    Ok(())
}

async fn keep(runtime: &LocalRuntime, id: &SandboxId, config: &Config) -> Result<(), Error> {
    let kept = instance::kept(&config.data);
    let made = std::fs::create_dir_all(&kept);
    made.map_err(|error| Error::new(Code::Internal, format!("make {}: {error}", kept.display())))?;
    let directory = kept.join(id.as_str());
    runtime.keep(id, directory.clone()).await?;
    note(&format!(
        "atoll: kept {id}: what it wrote is in {}; remove it with atoll gc --kept",
        directory.join("upper").display()
    ));
    Ok(())
}

/// The signals a shell sends to what runs in the foreground.
pub(crate) struct Signals {
    /// One was passed on already.
    pub(crate) before: bool,
    streams: Vec<(i32, tokio::signal::unix::Signal)>,
}

impl Signals {
    pub(crate) fn new() -> Result<Self, Error> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::quit(),
        ];
        let streams = kinds
            .into_iter()
            .map(|kind| Ok((kind.as_raw_value(), signal(kind)?)))
            .collect::<std::io::Result<_>>();
        streams
            .map(|streams| Self {
                before: false,
                streams,
            })
            .map_err(|error| Error::new(Code::Internal, format!("watch signals: {error}")))
    }

    /// Does something that the next signal ends.
    pub(crate) async fn unless<T>(
        &mut self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::select! {
            // One that came before is not forgotten.
            biased;
            number = self.next() => Err(ended_by(number)),
            done = work => done,
        }
    }

    pub(crate) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

/// A signal came: the exit code is what a shell says of it.
pub(crate) fn ended_by(number: i32) -> Error {
    let message = format!("ended by signal {number}");
    Error::new(Code::Conflict, message).detail("exitCode", (128 + number).to_string())
}

/// Shows the command on our own terminal.
async fn on_terminal(control: &Control, signals: &mut Signals) -> Result<ExecStatus, Error> {
    let _raw = terminal::Raw::new()?;
    pass_input(control);
    let shown = async {
        if let Some(status) = terminal::show(control, control.output(0)).await? {
            return Ok(status);
        }
        control.signal(SignalKind::hangup().as_raw_value()).await?;
        Ok(control.wait().await)
    };
    tokio::select! {
        status = shown => status,
        error = forward(signals, control) => Err(error),
    }
}

/// Gives a command what we read.
fn pass_input(control: &Control) {
    let (read, given) = tokio::sync::mpsc::channel(4);
    // A thread of its own: a read of a terminal cannot be taken back.
    std::thread::spawn(move || drop(pass_on(std::io::stdin().lock(), &read)));
    tokio::spawn(feed(control.clone(), given));
}

/// Gives the command our own input and output, until it has ended and all was written.
async fn stream(exec: Exec, signals: &mut Signals) -> Result<ExecStatus, Error> {
    pass_input(&exec.control);
    let outputs = async {
        tokio::join!(
            pass_output(exec.stdout, tokio::io::stdout(), &exec.control),
            pass_output(exec.stderr, tokio::io::stderr(), &exec.control)
        )
    };
    let control = exec.control.clone();
    tokio::select! {
        copied = outputs => {
            copied.0?;
            copied.1?;
        }
        error = forward(signals, &control) => return Err(error),
    }
    tokio::select! {
        status = exec.control.wait() => Ok(status),
        error = forward(signals, &control) => Err(error),
    }
}

/// Passes the first signal on; a second one means business.
async fn forward(signals: &mut Signals, control: &Control) -> Error {
    loop {
        let number = signals.next().await;
        let passed = if signals.before {
            control.kill()
        } else {
            control.signal(number).await
        };
        signals.before = true;
        if let Err(error) = passed {
            return error;
        }
    }
}

/// Copies output until its end. When our own reader has gone, the command is told so by the signal that
/// a closed pipe would have sent it without a sandbox around it.
async fn pass_output(
    mut output: Output,
    to: impl tokio::io::AsyncWrite + Unpin,
    control: &Control,
) -> Result<(), Error> {
    match copy(&mut output, to).await? {
        None => Ok(()),
        Some(error) => {
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                complain(&unwritten(&error));
            }
            control.signal(SignalKind::pipe().as_raw_value()).await
        }
    }
}

/// Copies output until its end, or until our own reader has gone: then it says how.
async fn copy(
    output: &mut Output,
    mut to: impl tokio::io::AsyncWrite + Unpin,
) -> Result<Option<std::io::Error>, Error> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = output.read(&mut buffer).await?;
        if read == 0 {
            return Ok(None);
        }
        let written = async {
            to.write_all(&buffer[..read]).await?;
            to.flush().await
        };
        if let Err(error) = written.await {
            return Ok(Some(error));
        }
    }
}

/// Reads our own input to its end, or for as long as somebody wants it.
pub(crate) fn pass_on(
    mut from: impl Read,
    to: &tokio::sync::mpsc::Sender<Vec<u8>>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 || to.blocking_send(buffer[..read].to_vec()).is_err() {
            return Ok(());
        }
    }
}

/// Gives the command what we read, to the end. It need not want it.
async fn feed(control: Control, mut given: tokio::sync::mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = given.recv().await {
        if control.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = control.close_input();
}

/// There is no input, nor will there be.
pub(crate) fn stdin_is_null() -> bool {
    use std::os::unix::fs::MetadataExt;
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    match (rustix::fs::fstat(std::io::stdin()), null) {
        (Ok(stdin), Ok(null)) => stdin.st_rdev == null,
        // Closed: nothing comes from there either.
        _ => true,
    }
}
