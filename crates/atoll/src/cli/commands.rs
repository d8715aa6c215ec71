//! `atoll commands`: lists, awaits and signals running and recently finished commands of a sandbox.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use atoll_client::{Client, Exec, Request, query};
use atoll_model::Error;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::sandbox::since;
use super::server_args::{
    Remote, ServerArgs, below, each, fields, find, plain, print_json, quoted, shortened, text,
};
use super::{block_on, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// Seconds that one request may wait for the end of a command.
const WAIT: u32 = 30;

/// List, wait for and signal the commands of a sandbox.
///
/// The server lists running commands and the most recent finished ones. `atoll history` shows older
/// ones.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll commands ls web
  atoll commands signal web exec_… --signal INT
  atoll commands wait web \"$(atoll exec -d web -- make)\"")]
pub(crate) enum Commands {
    #[command(visible_aliases = ["list", "ps"])]
    Ls(Ls),
    /// Show one command.
    #[command(visible_alias = "show")]
    Get(One),
    /// Wait for the end of a command, and print its exit code.
    Wait(One),
    #[command(visible_alias = "kill")]
    Signal(Send),
}

/// List the commands of a sandbox, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll commands ls web --running
  atoll commands ls web -q --running | xargs atoll commands signal web
  atoll commands ls web --json | jq -r '.[] | select(.exitCode != 0) | .cmd'")]
pub(crate) struct Ls {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Only commands that have not ended.
    #[arg(long)]
    running: bool,
    /// Print only the ids of commands.
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll commands get web exec_…
  atoll commands wait web tag:build")]
pub(crate) struct One {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Id, `tag:NAME` or `pid:NUMBER` of the command.
    #[arg(value_name = "COMMAND")]
    command: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Send a signal to commands and print the id of each.
///
/// KILL ends all processes that a command started; any other signal goes only to its first process.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll commands signal web exec_…
  atoll commands signal web --signal KILL exec_… exec_…")]
pub(crate) struct Send {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Ids, `tag:NAME` or `pid:NUMBER`.
    #[arg(required = true, value_name = "COMMAND")]
    commands: Vec<String>,
    /// Name or number of the signal.
    #[arg(long, short, default_value = "TERM", value_name = "SIGNAL")]
    signal: Signal,
    #[command(flatten)]
    remote: Remote,
}

/// Parses the name or number of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Signal(i32);

/// Names of commonly used signals.
const SIGNALS: [(&str, i32); 15] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("TRAP", 5),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("WINCH", 28),
];

impl FromStr for Signal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let known = SIGNALS.iter().find(|(known, _)| *known == name);
        let number = known
            .map(|(_, number)| *number)
            .or_else(|| name.parse().ok());
        let number = number.filter(|number| (1..=64).contains(number));
        number.map(Self).ok_or_else(|| {
            let message = format!("{text:?} is not a signal");
            Error::invalid("signal", message, "write it like TERM, SIGINT or 9")
        })
    }
}

impl Commands {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Ls(ls) => ls.run(config)?,
            Self::Get(one) => one.get(config)?,
            Self::Wait(one) => one.wait(config)?,
            Self::Signal(send) => return send.run(config),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Ls {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let mut all = self.server.remote.with(config, async |client| {
            let sandbox = find(client, &self.sandbox).await?;
            client.list(&below(&sandbox, &["commands"]), &[]).await
        })?;
        all.retain(|command| !self.running || text(command, "state") == "running");
        show(&all, self.quiet, self.server.json)
    }
}

/// Prints commands of a sandbox or of its history.
pub(crate) fn show(all: &[Value], quiet: bool, json: bool) -> Result<(), Error> {
    if json {
        return print_json(&Value::Array(all.to_vec()));
    }
    if quiet {
        for command in all {
            print_line(id(command));
        }
        return Ok(());
    }
    let mut table = borderless_table();
    table.set_header(["ID", "STATE", "AGE", "COMMAND"]);
    for command in all {
        table.add_row([
            id(command).to_owned(),
            state(command),
            since(text(command, "startedAt")),
            shortened(&command_line(command)),
        ]);
    }
    print_line(&table.to_string());
    Ok(())
}

/// The id of a command; in the history also of a terminal.
fn id(command: &Value) -> &str {
    match text(command, "execID") {
        "" => text(command, "ptyID"),
        id => id,
    }
}

/// A command or a program with its arguments, on one line.
pub(crate) fn command_line(command: &Value) -> String {
    let program = text(command, "cmd");
    let args = command["args"].as_array().map(Vec::as_slice);
    match args.unwrap_or_default() {
        // A shell line, or a program without arguments.
        [] => plain(program),
        args => {
            let args = args.iter().filter_map(Value::as_str);
            let words: Vec<String> = [program].into_iter().chain(args).map(quoted).collect();
            words.join(" ")
        }
    }
}

/// Whether a command runs, or how it ended.
fn state(command: &Value) -> String {
    let is = |field: &str| command[field].as_bool() == Some(true);
    match (text(command, "state"), command["signal"].as_i64()) {
        ("exited", _) if is("timedOut") => "timed out".to_owned(),
        ("exited", _) if is("oomKilled") => "out of memory".to_owned(),
        ("exited", Some(signal)) => {
            let known = SIGNALS
                .iter()
                .find(|(_, number)| i64::from(*number) == signal);
            let name = known.map_or_else(|| signal.to_string(), |(name, _)| (*name).to_owned());
            format!("killed ({name})")
        }
        ("exited", None) => format!("exited ({})", command["exitCode"]),
        (state, _) => state.to_owned(),
    }
}

impl One {
    fn get(&self, config: &Config) -> Result<(), Error> {
        let command = self.server.remote.with(config, async |client| {
            let sandbox = find(client, &self.sandbox).await?;
            let path = below(&sandbox, &["commands", &self.command]);
            client.send_json(&Request::get(path)).await
        })?;
        if self.server.json {
            return print_json(&command);
        }
        print_line(&fields(&command).to_string());
        Ok(())
    }

    fn wait(&self, config: &Config) -> Result<(), Error> {
        let command = self.server.remote.with(config, async |client| {
            let sandbox = find(client, &self.sandbox).await?;
            wait(
                client,
                &below(&sandbox, &["commands", &self.command, "wait"]),
            )
            .await
        })?;
        if self.server.json {
            return print_json(&command);
        }
        print_line(&command["exitCode"].to_string());
        Ok(())
    }
}

/// Repeats the request until the command has ended.
async fn wait(client: &Client, path: &str) -> Result<Value, Error> {
    let seconds = WAIT.to_string();
    let deadline = Duration::from_secs(u64::from(WAIT) * 2);
    let request = Request::get(query(path, &[("timeout", &seconds)])).deadline(deadline);
    loop {
        let command = client.send_json(&request).await?;
        if text(&command, "state") != "running" {
            return Ok(command);
        }
    }
}

impl Send {
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let client = self.remote.client(config)?;
        block_on(async {
            let sandbox = find(&client, &self.sandbox).await?;
            let send = async |command: &str| {
                let exec = Exec::find(&client, &sandbox, command)?;
                exec.remote().signal(self.signal.0).await?;
                print_line(command);
                Ok(())
            };
            Ok(each(&self.commands, send).await)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use super::*;
    use serde_json::json;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("TERM", 15),
            ("sigint", 2),
            ("9", 9),
            ("64", 64),
            ("Usr1", 10),
        ] {
            assert_eq!(text.parse::<Signal>().unwrap(), Signal(number), "{text}");
        }
        for text in ["", "0", "65", "-1", "NOTHING", "SIG"] {
            let error = text.parse::<Signal>().unwrap_err();
            assert_eq!(error.details["field"], "signal", "{text}");
        }
    }

    #[test]
    fn state_contains_exit_code_or_signal() {
        for (command, expected) in [
            (json!({ "state": "running" }), "running"),
            (json!({ "state": "exited", "exitCode": 3 }), "exited (3)"),
            (
                json!({ "state": "exited", "exitCode": 137, "signal": 9 }),
                "killed (KILL)",
            ),
            (
                json!({ "state": "exited", "exitCode": 162, "signal": 34 }),
                "killed (34)",
            ),
            (
                json!({ "state": "exited", "signal": 9, "timedOut": true }),
                "timed out",
            ),
            (
                json!({ "state": "exited", "signal": 9, "oomKilled": true }),
                "out of memory",
            ),
        ] {
            assert_eq!(state(&command), expected);
        }
    }

    #[test]
    fn a_command_line_is_quoted_and_has_no_control_characters() {
        for (command, expected) in [
            (json!({ "cmd": "ls | wc -l" }), "ls | wc -l"),
            (
                json!({ "cmd": "sh", "args": ["-c", "echo it's"] }),
                r"sh -c 'echo it'\''s'",
            ),
            (json!({ "cmd": "a\u{1b}[2J", "args": [] }), "a\u{fffd}[2J"),
            (
                json!({ "cmd": "x", "args": ["\u{7}", ""] }),
                "x '\u{fffd}' ''",
            ),
        ] {
            assert_eq!(command_line(&command), expected);
        }
    }
}
