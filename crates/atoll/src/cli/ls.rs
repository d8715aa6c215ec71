//! `atoll ls`: the runs that have a name.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_model::{Code, Error, ExecInfo, RunName};
use atoll_worker::instance::named::{self, Place};
use clap::Args;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::run::named::{command, find, find_written, minds, open};
use super::sandbox::span;
use super::{block_on, say};
use crate::config::Config;

/// How long a command that ended meanwhile may take to be told of.
const NEWS: Duration = Duration::from_millis(50);

/// List the runs that have a name: those of `atoll run --name`.
///
/// attached: a process passes its output on; running: it goes on by itself; ended: its output and exit
/// code wait to be read; lost: the machine was restarted, or its keeper was ended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll ls
  atoll ls --json | jq -r '.[] | select(.state == \"ended\") | .name'")]
pub(crate) struct Ls {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// A process is there and passes everything on.
    Attached,
    /// Nobody is there.
    Running,
    /// Its result waits.
    Ended,
    /// Nobody knows how it ended.
    Lost,
    /// Its beginning was cut off.
    Unfinished,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: RunName,
    state: State,
    /// Microseconds since 1970.
    started_at: Option<i64>,
    /// Seconds, while it runs.
    running_for: Option<u64>,
    exit_code: Option<i32>,
    command: Option<String>,
}

impl Ls {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let lines = block_on(async {
            let mut lines = Vec::new();
            for place in named::all(&config.data) {
                lines.extend(look(&place, config).await);
            }
            Ok(lines)
        })?;
        if self.json {
            let text = serde_json::to_string_pretty(&lines);
            say(&text.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
        } else if lines.is_empty() {
            say("no runs with a name: atoll run --name NAME -- CMD starts one");
        } else {
            show(&lines);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One that ends meanwhile is left out.
async fn look(place: &Place, config: &Config) -> Option<Line> {
    let seen = place.look()?;
    let written = seen.sandboxes.into_iter().next();
    let written = written.and_then(|(_, _, execs)| find_written(execs));
    let known = written.as_ref().is_some_and(|exec| exec.status.is_some());
    // Without a server only the sandbox's PID 1 knows whether the command still runs.
    if seen.alive && seen.served.is_none() && !known {
        if let Ok(runtime) = open(place, config, config.storage).await {
            let mut exec = None;
            if let Some((_, control)) = find(&runtime) {
                let _ = tokio::time::timeout(NEWS, control.wait()).await;
                exec = Some(control.info());
            }
            let _ = runtime.close().await;
            return Some(line(place, exec, State::Running));
        }
        // Somebody was quicker.
        return Some(line(place, written, State::Attached));
    }
    let unknown = match (seen.served, seen.alive) {
        (Some(pid), _) if !minds(&place.directory, pid) => State::Attached,
        (Some(_), _) | (None, true) => State::Running,
        (None, false) => State::Lost,
    };
    Some(line(place, written, unknown))
}

/// With the state of one whose end is not written down.
fn line(place: &Place, exec: Option<ExecInfo>, open: State) -> Line {
    let status = exec.as_ref().and_then(|exec| exec.status);
    let state = match (&exec, status) {
        (None, _) if open != State::Attached => State::Unfinished,
        (Some(_), Some(_)) => State::Ended,
        _ => open,
    };
    let started_at = exec.as_ref().map(|exec| exec.started_at);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_micros() as i64;
    let runs = matches!(state, State::Attached | State::Running);
    Line {
        name: place.name.clone(),
        state,
        started_at,
        running_for: started_at
            .filter(|_| runs)
            .map(|started| (now - started).max(0) as u64 / 1_000_000),
        exit_code: status.map(|status| status.exit_code()),
        command: exec.map(|exec| command(&exec.spec)),
    }
}

fn show(lines: &[Line]) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["NAME", "STATE", "RUNS FOR", "EXIT", "COMMAND"]);
    for line in lines {
        let state = match line.state {
            State::Attached => "attached",
            State::Running => "running",
            State::Ended => "ended",
            State::Lost => "lost",
            State::Unfinished => "unfinished",
        };
        table.add_row([
            line.name.to_string(),
            state.to_owned(),
            line.running_for.map(span).unwrap_or_default(),
            line.exit_code
                .map(|code| code.to_string())
                .unwrap_or_default(),
            shortened(line.command.as_deref().unwrap_or_default()),
        ]);
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    say(&table.to_string());
}

fn shortened(command: &str) -> String {
    const MOST: usize = 60;
    if command.chars().count() <= MOST {
        return command.to_owned();
    }
    command.chars().take(MOST - 1).chain(['…']).collect()
}
