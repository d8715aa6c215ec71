//! Terminals of a sandbox: lists and closes them, and selects one to attach to.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use atoll_client::{Client, Request};
use atoll_model::{Code, Error};
use clap::{Args, Subcommand};
use comfy_table::Table;
use serde_json::Value;

use crate::cli::borderless_table;
use crate::cli::commands::command_line;
use crate::cli::sandbox::since;
use crate::cli::server_args::{
    Remote, ServerArgs, below, each, find, print_each, print_json, shortened, text,
};
use crate::cli::{block_on, print_line};
use crate::config::Config;

/// The command of a terminal for which no program was named, as the server records it.
const LOGIN_SHELL: &str = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh; fi";

#[derive(Debug, Subcommand)]
pub(crate) enum Terminals {
    #[command(visible_aliases = ["list", "ps"])]
    Ls(Ls),
    #[command(visible_aliases = ["kill", "delete"])]
    Rm(Rm),
}

/// List the running terminals of a sandbox, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll shell ls web
  atoll shell web --attach \"$(atoll shell ls web -q | head -1)\"")]
pub(crate) struct Ls {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Print only the ids of terminals.
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Close terminals and kill all their processes.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  atoll shell rm web pty_…")]
pub(crate) struct Rm {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Ids, as `atoll shell ls` shows them.
    #[arg(required = true, value_name = "PTY")]
    terminals: Vec<String>,
    #[command(flatten)]
    remote: Remote,
}

impl Terminals {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Ls(ls) => ls.run(config),
            Self::Rm(rm) => rm.run(config),
        }
    }
}

impl Ls {
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let all = self.server.remote.with(config, async |client| {
            let sandbox = find(client, &self.sandbox).await?;
            list(client, &sandbox).await
        })?;
        if self.server.json {
            print_json(&Value::Array(all))?;
        } else if self.quiet {
            print_each(&all, "ptyID");
        } else {
            print_line(&table(&all, false).to_string());
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Rm {
    fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let client = self.remote.client(config)?;
        block_on(async {
            let sandbox = find(&client, &self.sandbox).await?;
            let end = async |id: &str| {
                let request = Request::delete(below(&sandbox, &["pty", id]));
                client.send_buffered(&request).await?;
                print_line(id);
                Ok(())
            };
            Ok(each(&self.terminals, end).await)
        })
    }
}

/// The running terminals of a sandbox, newest first, each with the fields of its command.
async fn list(client: &Client, sandbox: &str) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    for mut terminal in client.list(&below(sandbox, &["pty"]), &[]).await? {
        let command = text(&terminal, "ptyID").replacen("pty_", "exec_", 1);
        let request = Request::get(below(sandbox, &["commands", &command]));
        let command = match client.send_json(&request).await {
            Ok(command) => command,
            // The terminal has ended meanwhile.
            Err(error) if error.code == Code::ExecNotFound => continue,
            Err(error) => return Err(error),
        };
        if text(&command, "state") != "running" {
            continue;
        }
        for field in ["state", "cmd", "args", "cwd", "user", "tag", "startedAt"] {
            if let Some(value) = command.get(field) {
                terminal[field] = value.clone();
            }
        }
        all.push(terminal);
    }
    Ok(all)
}

/// Table of terminals, with or without numbers for a choice.
fn table(all: &[Value], is_choice: bool) -> Table {
    let mut table = borderless_table();
    let number = |number: String| is_choice.then_some(number).into_iter();
    let titles = ["ID", "STATE", "PROGRAM", "SIZE", "AGE"].map(str::to_owned);
    table.set_header(number(String::new()).chain(titles));
    for (index, terminal) in all.iter().enumerate() {
        let program = match text(terminal, "cmd") {
            LOGIN_SHELL => "login shell".to_owned(),
            _ => shortened(&command_line(terminal)),
        };
        let cells = [
            text(terminal, "ptyID").to_owned(),
            text(terminal, "state").to_owned(),
            program,
            format!("{}x{}", terminal["cols"], terminal["rows"]),
            since(text(terminal, "startedAt")),
        ];
        table.add_row(number((index + 1).to_string()).chain(cells));
    }
    table
}

/// The only running terminal of a sandbox. If there are several, the user chooses one on the
/// terminal; without a terminal, the error lists them.
pub(super) async fn choose(client: &Client, sandbox: &str, name: &str) -> Result<String, Error> {
    let all = list(client, sandbox).await?;
    let id = |terminal: &Value| text(terminal, "ptyID").to_owned();
    match all.as_slice() {
        [] => Err(Error::new(
            Code::TerminalNotFound,
            format!("no terminal runs in the sandbox {name}"),
        )
        .remedy(format!("`atoll shell {name}` opens one"))),
        [only] => Ok(id(only)),
        several if std::io::stdin().is_terminal() => {
            let number = ask(several)?;
            several.get(number).map(id).ok_or_else(|| {
                let message = format!("{} terminals run, and none of them was chosen", all.len());
                Error::invalid("attach", message, "type one of the numbers")
            })
        }
        several => {
            let message = format!("{} terminals run in the sandbox {name}", several.len());
            let ids: Vec<String> = several.iter().map(id).collect();
            let remedy = format!("name one with --attach: {}", ids.join(", "));
            Err(Error::invalid("attach", message, remedy))
        }
    }
}

/// Prints the terminals and reads the number of one; the result counts from 0.
fn ask(several: &[Value]) -> Result<usize, Error> {
    let mut stderr = std::io::stderr();
    let table = table(several, true);
    let _ = write!(stderr, "{table}\njoin which (1 to {})? ", several.len());
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| {
        let message = format!("the choice cannot be read: {error}");
        Error::invalid("attach", message, "name a terminal: --attach PTY")
    })?;
    let number: usize = line.trim().parse().unwrap_or(0);
    Ok(number.wrapping_sub(1))
}
