//! `atoll ls`: the sandboxes of a server and the named runs of this machine.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_model::{Code, Error, ExecInfo, RunName};
use atoll_worker::instance::named::{self, NamedRun};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::run::named::{command, find, find_written, is_background_holder, open};
use super::sandbox::{self, Filter, span};
use super::server_args::{ServerArgs, plain, print_each, print_json, shortened, text};
use super::{block_on, eprint_line, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// Timeout for the state of a command that may have ended meanwhile.
const NEWS: Duration = Duration::from_millis(50);

/// List the sandboxes of the server in use, newest first, and the named runs of this machine.
///
/// States of a run (`atoll run --name`): attached, a client is attached; running, no client is
/// attached; ended, its output and exit code can be read; lost, the machine was restarted or its
/// keeper was killed; unfinished, its command was not started. With a filter, only sandboxes are
/// listed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll ls
  atoll ls --template node --metadata team=web
  atoll ls -q | xargs atoll rm
  atoll ls --json | jq -r '.[] | select(.kind == \"run\" and .state == \"ended\") | .name'")]
pub(crate) struct Ls {
    #[command(flatten)]
    filter: Filter,
    /// List only the runs of this machine.
    #[arg(long, conflicts_with_all = ["url", "profile", "state", "template", "metadata", "search"])]
    local: bool,
    /// Print only the ids of sandboxes and the names of runs.
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// A client is attached and copies the output.
    Attached,
    /// The command runs without an attached client.
    Running,
    /// The command has ended and its result is stored.
    Ended,
    /// The command has ended and its result is lost.
    Lost,
    /// The command was not started.
    Unfinished,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: RunName,
    state: State,
    /// Microseconds since 1970.
    started_at: Option<i64>,
    /// Seconds since the start, while the command runs.
    running_for: Option<u64>,
    exit_code: Option<i32>,
    template: Option<String>,
    command: Option<String>,
}

impl Ls {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        // Without a server, only runs are listed.
        let wanted = !self.filter.is_empty() || !self.local && self.server.remote.exists(config)?;
        let sandboxes = if wanted {
            let listing = async |client: &_| self.filter.list(client).await;
            self.server.remote.with(config, listing)?
        } else {
            Vec::new()
        };
        let runs = if self.filter.is_empty() {
            block_on(runs(config))?
        } else {
            Vec::new()
        };
        if self.server.json {
            print_list_json(sandboxes, &runs)?;
        } else if self.quiet {
            print_each(&sandboxes, "sandboxID");
            for run in &runs {
                print_line(run.name.as_str());
            }
        } else {
            show(&sandboxes, &runs);
            if sandboxes.is_empty() && runs.is_empty() && self.filter.is_empty() {
                eprint_line(
                    "nothing is here: `atoll sandbox create` makes a sandbox of a server, \
                     `atoll run --name NAME -- CMD` starts a run",
                );
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn runs(config: &Config) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    for place in named::list(&config.data) {
        lines.extend(look(&place, config).await);
    }
    Ok(lines)
}

/// Sandboxes as in the API and runs, each with its `kind`.
fn print_list_json(mut sandboxes: Vec<Value>, runs: &[Line]) -> Result<(), Error> {
    for sandbox in &mut sandboxes {
        sandbox["kind"] = json!("sandbox");
    }
    for run in runs {
        let mut run = serde_json::to_value(run)
            .map_err(|error| Error::new(Code::Internal, error.to_string()))?;
        run["kind"] = json!("run");
        sandboxes.push(run);
    }
    print_json(&Value::Array(sandboxes))
}

/// A run that is removed meanwhile is skipped.
async fn look(place: &NamedRun, config: &Config) -> Option<Line> {
    let seen = place.inspect()?;
    let written = seen.sandboxes.into_iter().next();
    let template = written.as_ref().map(|(_, spec, _)| spec.template.clone());
    let written = written.and_then(|(_, _, execs)| find_written(execs));
    let line = |exec, state| line(place, template, exec, state);
    let known = written.as_ref().is_some_and(|exec| exec.status.is_some());
    // Without a client, only the sandbox's PID 1 knows whether the command still runs.
    if seen.alive && seen.served.is_none() && !known {
        if let Ok(runtime) = open(place, config, config.storage_of_run().into()).await {
            let mut exec = None;
            if let Some((_, control)) = find(&runtime) {
                let _ = tokio::time::timeout(NEWS, control.wait()).await;
                exec = Some(control.info());
            }
            let _ = runtime.close().await;
            return Some(line(exec, State::Running));
        }
        // The run was removed meanwhile.
        return Some(line(written, State::Attached));
    }
    let unknown = match (seen.served, seen.alive) {
        (Some(pid), _) if !is_background_holder(&place.directory, pid) => State::Attached,
        (Some(_), _) | (None, true) => State::Running,
        (None, false) => State::Lost,
    };
    Some(line(written, unknown))
}

/// Determines the state of a run whose end is not recorded.
fn line(place: &NamedRun, template: Option<String>, exec: Option<ExecInfo>, open: State) -> Line {
    let status = exec.as_ref().and_then(|exec| exec.status);
    let state = match (&exec, status) {
        (None, _) if open != State::Attached => State::Unfinished,
        (Some(_), Some(_)) => State::Ended,
        _ => open,
    };
    let started_at = exec.as_ref().map(|exec| exec.started_at);
    let runs = matches!(state, State::Attached | State::Running);
    Line {
        name: place.name.clone(),
        state,
        started_at,
        running_for: started_at
            .filter(|_| runs)
            .map(|started| (now() - started).max(0) as u64 / 1_000_000),
        exit_code: status.map(|status| status.exit_code()),
        template,
        command: exec.map(|exec| command(&exec.spec)),
    }
}

/// Microseconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as i64
}

fn show(sandboxes: &[Value], runs: &[Line]) {
    let mut table = borderless_table();
    table.set_header([
        "ID", "NAME", "KIND", "STATE", "AGE", "ENDS", "TEMPLATE", "COMMAND",
    ]);
    for sandbox in sandboxes {
        table.add_row([
            text(sandbox, "sandboxID").to_owned(),
            text(sandbox, "alias").to_owned(),
            "sandbox".to_owned(),
            sandbox::state(sandbox),
            sandbox::since(text(sandbox, "createdAt")),
            sandbox::until(sandbox),
            plain(text(sandbox, "templateID")),
            String::new(),
        ]);
    }
    for run in runs {
        table.add_row([
            String::new(),
            run.name.to_string(),
            "run".to_owned(),
            run.state(),
            run.started_at.map(age).unwrap_or_default(),
            "-".to_owned(),
            run.template.clone().unwrap_or_default(),
            shortened(&plain(run.command.as_deref().unwrap_or_default())),
        ]);
    }
    print_line(&table.to_string());
}

impl Line {
    fn state(&self) -> String {
        match (self.state, self.exit_code) {
            (State::Ended, Some(code)) => format!("ended (exit {code})"),
            (State::Ended, None) => "ended".to_owned(),
            (State::Attached, _) => "attached".to_owned(),
            (State::Running, _) => "running".to_owned(),
            (State::Lost, _) => "lost".to_owned(),
            (State::Unfinished, _) => "unfinished".to_owned(),
        }
    }
}

/// How long ago a time in microseconds was.
fn age(started_at: i64) -> String {
    span((now() - started_at).max(0) as u64 / 1_000_000)
}
