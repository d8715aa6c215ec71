//! `atoll sandbox ls`, and the columns of its table.

use atoll_model::{Bytes, Error};
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use super::super::print_line;
use super::super::server_args::{ServerArgs, plain, print_each, print_json, text};
use super::filter::Filter;
use super::lifetime::until;
use crate::cli::borderless_table;
use crate::config::Config;

/// List sandboxes, newest first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox ls
  atoll sandbox ls --state running -q | xargs atoll sandbox rm
  atoll sandbox ls --json | jq -r '.[].sandboxID'")]
pub(crate) struct Ls {
    #[command(flatten)]
    filter: Filter,
    /// Print only ids.
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl Ls {
    pub(super) fn run(&self, config: &Config) -> Result<(), Error> {
        let all = self
            .server
            .remote
            .with(config, async |client| self.filter.list(client).await)?;
        if self.server.json {
            return print_json(&Value::Array(all));
        }
        if self.quiet {
            print_each(&all, "sandboxID");
            return Ok(());
        }
        let mut table = borderless_table();
        table.set_header([
            "ID", "NAME", "STATE", "TEMPLATE", "CPUS", "MEMORY", "AGE", "ENDS",
        ]);
        for sandbox in &all {
            let memory = Bytes(sandbox["memoryMB"].as_u64().unwrap_or(0) << 20);
            table.add_row([
                text(sandbox, "sandboxID").to_owned(),
                text(sandbox, "alias").to_owned(),
                state(sandbox),
                plain(text(sandbox, "templateID")),
                sandbox["cpuCount"].to_string(),
                memory.to_string(),
                since(text(sandbox, "createdAt")),
                until(sandbox),
            ]);
        }
        print_line(&table.to_string());
        Ok(())
    }
}

/// State of a sandbox, with the reason if no request caused it.
pub(crate) fn state(sandbox: &Value) -> String {
    match (text(sandbox, "state"), text(sandbox, "reason")) {
        (state, "") => state.to_owned(),
        (state, reason) => format!("{state} ({reason})"),
    }
}

/// Time since then.
pub(crate) fn since(time: &str) -> String {
    let then = time.parse::<Timestamp>();
    let passed = then.map(|then| Timestamp::now().duration_since(then).as_secs());
    passed.map_or_else(|_| String::new(), |seconds| span(seconds.max(0) as u64))
}

/// Formats a duration.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}
