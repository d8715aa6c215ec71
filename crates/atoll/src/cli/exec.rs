//! `atoll exec`: runs a command in a sandbox of a server, as if it ran here.

mod ending;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Client, Exec as Command, ExecEvent, Exit};
use atoll_model::{Bytes as Size, Category, Error, parse_duration};
use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;

use super::run::{Signals, ended_by, pass_on, stdin_is_null};
use super::server_args::{Remote, find, print_json};
use super::template::variables;
use super::{as_command, check_stdout, eprint_line, print_error, print_line, unwritten};
use crate::config::Config;
pub(crate) use ending::{Lost, explain_lost, find_end, is_killed};

/// Run a command in a sandbox, connected to this terminal or pipe, and exit with its code.
///
/// The command is started exactly once, and its output is complete and not repeated, even if the
/// connection breaks or the server restarts. Exit codes: 124, the deadline was reached or the
/// lifetime of the sandbox ended; 137, the sandbox ran out of memory; 125, Atoll itself failed, or
/// the sandbox was stopped or deleted; 126 and 127, the command cannot be run or was not found.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll exec web ls -l
  echo hello | atoll exec web tr a-z A-Z
  atoll exec web --timeout 30s --cwd work -e CI=1 -- make test
  atoll exec web -d -- python3 -m http.server      in the background; its id is printed")]
pub(crate) struct Exec {
    /// Kill the command and all processes that it started after this time.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Set an environment variable.
    #[arg(long = "env", short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Run in this directory of the sandbox [default: the user's home].
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Run as this user of the sandbox [default: the template's].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Start the command and print its id; `atoll logs` shows its output.
    #[arg(long, short)]
    detach: bool,
    /// Print JSON instead of the id.
    #[arg(long, requires = "detach")]
    json: bool,
    #[command(flatten)]
    remote: Remote,
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// The command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(&self, config: &Config) -> ExitCode {
        as_command(self.whole(config))
    }

    fn whole(&self, config: &Config) -> Result<u8, Error> {
        let request = ExecRequest {
            command: &self.command,
            environment: variables(&self.env)?.into_iter().collect(),
            cwd: self.cwd.as_deref(),
            user: self.user.as_deref(),
            deadline: self.timeout,
        };
        self.remote.with(config, async |client| {
            let sandbox = find(client, &self.sandbox).await?;
            if self.detach {
                let id = Command::start(client, &sandbox, &request.body(Input::Null))
                    .await?
                    .id;
                if self.json {
                    print_json(&json!({ "sandboxID": sandbox, "execID": id }))?;
                } else {
                    print_line(&id);
                }
                return check_stdout().map(|()| 0);
            }
            // From here on signals are forwarded to the command.
            let mut signals = Signals::new()?;
            let exit = request.pass(client, &sandbox, &mut signals).await?;
            explain(exit, self.timeout, None);
            Ok(exit.exit_code as u8)
        })
    }
}

/// Whether standard input is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Null,
    Open,
}

/// A command for a sandbox of a server.
#[derive(Debug)]
pub(crate) struct ExecRequest<'a> {
    pub(crate) command: &'a [String],
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) cwd: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
    pub(crate) deadline: Option<Duration>,
}

impl ExecRequest<'_> {
    /// The body of the request.
    fn body(&self, input: Input) -> Value {
        let (program, args) = match self.command.split_first() {
            Some((program, args)) => (program.as_str(), args),
            None => ("", &[][..]),
        };
        let mut body = json!({
            "cmd": program,
            "args": args,
            "envs": self.environment,
            "timeout": self.deadline.map_or(0.0, |deadline| deadline.as_secs_f64()),
            "background": true,
            "openStdin": input == Input::Open,
        });
        for (name, value) in [("cwd", self.cwd), ("user", self.user)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        body
    }

    /// Runs the command with the standard streams of this process, until it ends.
    pub(crate) async fn pass(
        &self,
        client: &Client,
        sandbox: &str,
        signals: &mut Signals,
    ) -> Result<Exit, Error> {
        let input = if stdin_is_null() {
            Input::Null
        } else {
            Input::Open
        };
        let body = self.body(input);
        let starting = Command::start(client, sandbox, &body);
        let mut command = signals.unless(starting).await?;
        let remote = command.remote();
        let mut input = (input == Input::Open).then(|| (command.remote(), read_input()));
        let fed = async {
            if let Some((remote, given)) = &mut input {
                while let Some(bytes) = given.recv().await {
                    // A command need not read its input; errors of the sandbox are reported by the
                    // output stream.
                    if !remote.write(&Bytes::from(bytes)).await.unwrap_or(false) {
                        break;
                    }
                }
                let _ = remote.close().await;
            }
            std::future::pending::<()>().await;
        };
        let signalled = pass_signals(&remote, signals);
        let passed = tokio::select! {
            exit = pass_output(&mut command) => exit,
            error = signalled => Err(error),
            () = fed => Ok(Exit::default()),
        };
        explain_lost(client, sandbox, Lost::Command, passed).await
    }
}

/// Prints why a command was killed, if by Atoll or by the kernel's OOM killer.
pub(crate) fn explain(exit: Exit, deadline: Option<Duration>, memory: Option<Size>) {
    if exit.oom_killed {
        let much = memory.map_or_else(String::new, |memory| {
            format!(" ({memory}); give it more with --memory")
        });
        eprint_line(&format!(
            "atoll: killed: the sandbox ran out of memory{much}"
        ));
    } else if exit.timed_out {
        let after = deadline.unwrap_or_default();
        eprint_line(&format!(
            "atoll: killed: the deadline of {after:?} was reached; set another with --timeout"
        ));
    }
}

/// Whether it is unknown if the request was processed.
fn is_broken(error: &Error) -> bool {
    matches!(
        error.code.category(),
        Category::ProviderUnavailable | Category::ProviderTimeout
    )
}

/// Forwards the first signal; the second one kills the command; the third one detaches from it.
async fn pass_signals(remote: &atoll_client::ExecInput<'_>, signals: &mut Signals) -> Error {
    let mut number = signals.next().await;
    loop {
        let last = signals.before;
        signals.before = true;
        let sent = remote.signal(if last { 9 } else { number });
        number = tokio::select! {
            sent = sent => {
                match sent {
                    Ok(()) => {}
                    // The command has ended meanwhile; the output stream reports it.
                    Err(error) if error.code.category() == Category::NotFound => {}
                    // The signal may not have been delivered: the next one counts as the first.
                    Err(error) if !last && is_broken(&error) => {
                        signals.before = false;
                        eprint_line("atoll: the connection broke: the signal may not have come");
                    }
                    Err(error) => return error,
                }
                signals.next().await
            }
            next = signals.next() => {
                if last {
                    return ended_by(next);
                }
                next
            }
        };
    }
}

/// Reads standard input on a separate thread, because a read of a terminal cannot be cancelled.
pub(crate) fn read_input() -> mpsc::Receiver<Vec<u8>> {
    let (read, given) = mpsc::channel(4);
    std::thread::spawn(move || drop(pass_on(std::io::stdin().lock(), &read)));
    given
}

/// Copies the output of a command to standard output and standard error until it ends.
async fn pass_output(command: &mut Command<'_>) -> Result<Exit, Error> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        let written = match command.next().await? {
            ExecEvent::Stdout(bytes) => {
                let written = stdout.write_all(&bytes).await;
                written.and(stdout.flush().await)
            }
            ExecEvent::Stderr(bytes) => {
                let written = stderr.write_all(&bytes).await;
                written.and(stderr.flush().await)
            }
            ExecEvent::Gap(bytes) => {
                eprint_line(&format!(
                    "atoll: {} of its output are missing here: more was written than is kept",
                    Size(bytes)
                ));
                Ok(())
            }
            ExecEvent::Exit(exit) => return Ok(exit),
        };
        if let Err(error) = written {
            if error.kind() != std::io::ErrorKind::BrokenPipe {
                print_error(&unwritten(&error));
            }
            // The signal that the command would receive from a closed pipe without a sandbox.
            let pipe = SignalKind::pipe().as_raw_value();
            command.remote().signal(pipe).await?;
            return finish(command).await;
        }
    }
}

/// The readers have exited: wait for the end of the command.
async fn finish(command: &mut Command<'_>) -> Result<Exit, Error> {
    loop {
        if let ExecEvent::Exit(exit) = command.next().await? {
            return Ok(exit);
        }
    }
}
