//! `atoll shell`: connects this terminal to a terminal of a sandbox, which continues when the
//! connection breaks or the server restarts. After a reconnect its current screen is shown.

mod terminals;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use atoll_client::{Client, Exec, Exit, Frame, Request, RequestError, RetryPolicy, Socket};
use atoll_model::{Category, Code, Error, RequestId, TerminalSize};
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::exec::{Lost, explain_lost, read_input};
use super::run::{Signals, terminal};
use super::server_args::{Remote, below, find, text};
use super::template::variables;
use super::{as_command, eprint_line};
use crate::config::Config;
use terminals::Terminals;

/// Ctrl-C, which ends the wait for a server.
const INTERRUPT: u8 = 3;
/// Exit code of a command that was killed at its deadline.
const TIMED_OUT: i32 = 124;

/// Open a shell in a sandbox, on this terminal.
///
/// The shell continues when the connection breaks, the server restarts or this terminal is closed:
/// --attach reconnects to it. While there is no connection, Ctrl-C exits. Use the id of a sandbox
/// whose name is that of a subcommand.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  atoll shell web
  atoll shell web --user root
  atoll shell web --cwd work -- vim main.c
  atoll shell ls web
  atoll shell web --attach             the only terminal of it, or one to choose
  atoll shell web --attach pty_…"
)]
pub(crate) struct Shell {
    #[command(subcommand)]
    terminals: Option<Terminals>,
    /// Id, name, or a unique prefix of either.
    #[arg(required_unless_present = "attach")]
    sandbox: Option<String>,
    /// Set an environment variable.
    #[arg(long = "env", short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Start in this directory of the sandbox [default: the user's home].
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Act as this user of the sandbox [default: the template's].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Attach to a running terminal. Without PTY: the only one of the sandbox, or a prompt if there
    /// are several.
    #[arg(long, value_name = "PTY", num_args = 0..=1, conflicts_with_all = ["env", "cwd", "user", "command"])]
    attach: Option<Option<String>>,
    #[command(flatten)]
    remote: Remote,
    /// Program to run instead of a shell, and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Terminal to connect to.
#[derive(Debug, PartialEq, Eq)]
enum Choice<'a> {
    New,
    Named(&'a str),
    /// A running terminal: the only one, or the user's choice.
    Running,
}

impl Shell {
    /// The subcommand, which has exit codes like other commands.
    pub(crate) fn terminals(&self) -> Option<&Terminals> {
        self.terminals.as_ref()
    }

    pub(crate) fn run(&self, config: &Config) -> ExitCode {
        as_command(self.whole(config))
    }

    fn whole(&self, config: &Config) -> Result<u8, Error> {
        let environment = variables(&self.env)?.into_iter().collect();
        let (name, choice) = self.choice()?;
        self.remote.with(config, async |client| {
            let sandbox = find(client, name).await?;
            let id = match choice {
                Choice::New => None,
                Choice::Named(id) => Some(id.to_owned()),
                Choice::Running => Some(terminals::choose(client, &sandbox, name).await?),
            };
            let size = terminal::size()
                .map_err(|error| error.remedy("`atoll exec` runs commands without a terminal"))?;
            let session = if let Some(id) = id {
                Session::attach(client, &sandbox, &id)
            } else {
                let request = TerminalRequest {
                    command: &self.command,
                    environment,
                    cwd: self.cwd.as_deref(),
                    user: self.user.as_deref(),
                };
                Session::make(client, &sandbox, &request, size).await?
            };
            let mut signals = Signals::new()?;
            Ok(session.show(&mut signals).await?.exit_code as u8)
        })
    }

    /// Returns the sandbox and its terminal.
    fn choice(&self) -> Result<(&str, Choice<'_>), Error> {
        match (&self.sandbox, &self.attach) {
            (Some(sandbox), None) => Ok((sandbox, Choice::New)),
            (Some(sandbox), Some(None)) => Ok((sandbox, Choice::Running)),
            (Some(sandbox), Some(Some(id))) => Ok((sandbox, Choice::Named(id))),
            // `--attach web`: no sandbox has a name like the id or the tag of a terminal.
            (None, Some(Some(word))) if !word.contains(['_', ':']) => Ok((word, Choice::Running)),
            _ => Err(Error::invalid(
                "sandbox",
                "the sandbox of the terminal is missing",
                "name it before the option: `atoll shell SANDBOX --attach`; `atoll ls` lists sandboxes",
            )),
        }
    }
}

/// Program of a terminal; none is a shell.
#[derive(Debug)]
pub(crate) struct TerminalRequest<'a> {
    pub(crate) command: &'a [String],
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) cwd: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
}

/// A terminal of a sandbox.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    client: &'a Client,
    sandbox: &'a str,
    id: String,
}

impl<'a> Session<'a> {
    pub(crate) fn attach(client: &'a Client, sandbox: &'a str, id: &str) -> Self {
        Self {
            client,
            sandbox,
            id: id.to_owned(),
        }
    }

    /// Creates a terminal.
    pub(crate) async fn make(
        client: &'a Client,
        sandbox: &'a str,
        request: &TerminalRequest<'_>,
        size: TerminalSize,
    ) -> Result<Self, Error> {
        let mut body = json!({
            "cols": size.columns,
            "rows": size.rows,
            "envs": request.environment,
        });
        if let Some((program, args)) = request.command.split_first() {
            body["shell"] = json!(program);
            body["args"] = json!(args);
        }
        for (name, value) in [("cwd", request.cwd), ("user", request.user)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        // The idempotency key makes the request safe to retry.
        let key = RequestId::random();
        let begin = Request::post(below(sandbox, &["pty"]), &body);
        let begin = begin.header("idempotency-key", key.as_str());
        let made = client.send_json(&begin.idempotent()).await?;
        Ok(Self::attach(client, sandbox, text(&made, "ptyID")))
    }

    /// Connects it to this terminal until its program ends.
    pub(crate) async fn show(&self, signals: &mut Signals) -> Result<Exit, Error> {
        let path = below(self.sandbox, &["pty", &self.id]);
        // Before the terminal mode changes: the server may be unreachable.
        let mut next = match self.client.socket(&path).await {
            Err(failure @ RequestError::Unreachable(_)) => return Err(failure.into()),
            next => next,
        };
        let raw = terminal::Raw::new()?;
        let mut keys = read_input();
        let mut resized = signal(SignalKind::window_change())
            .map_err(|error| Error::new(Code::Internal, format!("watch signals: {error}")))?;
        let mut retry = RetryPolicy::new(true);
        // Keys that could not be sent.
        let mut held = Vec::new();
        let left = |number| Exit {
            exit_code: 128 + number,
            ..Exit::default()
        };
        let mut was_shown = false;
        let ended = loop {
            let failure = match next {
                Ok(mut socket) => {
                    was_shown = true;
                    let typed = (&mut keys, &mut held);
                    let shown = joined(&mut socket, typed, &mut resized, &mut retry);
                    let shown = tokio::select! {
                        shown = shown => shown,
                        number = signals.next() => break Ok(left(number)),
                    };
                    match shown {
                        Ok(()) => break self.ended().await,
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            if let RequestError::Rejected(error) = failure {
                break self.over(error).await;
            }
            if !retry.is_retry() {
                print_in_raw_mode("the connection broke; waiting for the server. Ctrl-C gives up");
            }
            let again = async {
                retry.after(self.client, failure).await?;
                Ok::<_, Error>(self.client.socket(&path).await)
            };
            next = tokio::select! {
                again = again => match again {
                    Ok(again) => again,
                    Err(error) => break Err(error.remedy(self.goes_on())),
                },
                () = interrupted(&mut keys, &mut held) => {
                    let message = "the connection broke, and was given up";
                    break Err(Error::new(Code::Timeout, message).remedy(self.goes_on()));
                }
                number = signals.next() => break Ok(left(number)),
            };
        };
        let ended = if was_shown {
            explain_lost(self.client, self.sandbox, Lost::Terminal, ended).await
        } else {
            ended
        };
        drop(raw);
        if ended.is_err() {
            eprint_line("");
        }
        ended
    }

    /// The same with a deadline, at which all processes of the terminal are killed.
    pub(crate) async fn show_for(
        &self,
        time: Option<Duration>,
        signals: &mut Signals,
    ) -> Result<Exit, Error> {
        let Some(time) = time else {
            return self.show(signals).await;
        };
        tokio::select! {
            exit = self.show(signals) => return exit,
            () = tokio::time::sleep(time) => {}
        }
        eprint_line("");
        let program = Exec::find(self.client, self.sandbox, &self.program())?;
        program.remote().signal(9).await?;
        Ok(Exit {
            exit_code: TIMED_OUT,
            timed_out: true,
            ..Exit::default()
        })
    }

    /// The terminal's program as a command.
    fn program(&self) -> String {
        self.id.replacen("pty_", "exec_", 1)
    }

    /// Result of its program.
    async fn ended(&self) -> Result<Exit, Error> {
        let program = self.program();
        let request = Request::get(below(self.sandbox, &["commands", &program, "wait"]));
        let about = self.client.send_json(&request).await?;
        serde_json::from_value(about).map_err(|_| {
            Error::new(
                Code::SandboxFailed,
                "the terminal was lost with its sandbox",
            )
            .remedy("`atoll get` says what became of it")
        })
    }

    /// The terminal does not exist: it may have ended while the connection was broken.
    async fn over(&self, error: Error) -> Result<Exit, Error> {
        if error.code.category() != Category::NotFound {
            return Err(error);
        }
        // The reconnect would report this first.
        let sandbox = Request::get(below(self.sandbox, &[]));
        self.client.send_json(&sandbox).await?;
        self.ended().await.map_err(|_| {
            let another = format!("`atoll shell {}` opens another", self.sandbox);
            Error::new(Code::TerminalNotFound, error.message).remedy(another)
        })
    }

    /// Prints that the terminal continues without a connection.
    fn goes_on(&self) -> String {
        format!(
            "the terminal goes on in its sandbox: `atoll shell {} --attach {}` joins it",
            self.sandbox, self.id
        )
    }
}

/// Connects to a terminal until the connection breaks.
async fn joined(
    socket: &mut Socket,
    (keys, held): (&mut mpsc::Receiver<Vec<u8>>, &mut Vec<u8>),
    resized: &mut Signal,
    retry: &mut RetryPolicy,
) -> Result<(), RequestError> {
    let mut screen = tokio::io::stdout();
    let (mut first, mut listening) = (true, true);
    resize(socket).await?;
    loop {
        if !first && !held.is_empty() {
            socket.send(Bytes::from(std::mem::take(held))).await?;
        }
        tokio::select! {
            heard = socket.next() => match heard? {
                Frame::Bytes(bytes) => {
                    retry.reset();
                    // The first message is a replay for an empty screen.
                    let before: &[u8] = if first { b"\x1b[H\x1b[2J" } else { b"" };
                    first = false;
                    let shown = async {
                        screen.write_all(before).await?;
                        screen.write_all(&bytes).await?;
                        screen.flush().await
                    };
                    if shown.await.is_err() {
                        return Ok(());
                    }
                }
                Frame::Text(_) => {}
                Frame::Over => return Ok(()),
            },
            typed = keys.recv(), if listening => match typed {
                Some(typed) => held.extend_from_slice(&typed),
                None => listening = false,
            },
            _ = resized.recv() => resize(socket).await?,
        }
    }
}

/// Sends the size of this terminal.
async fn resize(socket: &mut Socket) -> Result<(), RequestError> {
    let size = terminal::current(std::io::stdout().as_fd());
    let word = json!({ "type": "resize", "cols": size.columns, "rows": size.rows });
    socket.say(word.to_string()).await
}

/// Waits for Ctrl-C; other keys are kept.
async fn interrupted(keys: &mut mpsc::Receiver<Vec<u8>>, held: &mut Vec<u8>) {
    while let Some(typed) = keys.recv().await {
        if typed.contains(&INTERRUPT) {
            return;
        }
        held.extend_from_slice(&typed);
    }
    std::future::pending::<()>().await;
}

/// Prints a message while the terminal is in raw mode.
fn print_in_raw_mode(line: &str) {
    let _ = write!(std::io::stderr(), "\r\n[atoll: {line}]\r\n");
}
