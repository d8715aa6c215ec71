//! `atoll df`: disk usage of sandboxes.

use std::collections::BTreeMap;
use std::process::ExitCode;

use atoll_model::{Bytes, Code, Error};
use atoll_worker::instance;
use atoll_worker::storage::usage::{self, SandboxUsage, StorageUsage};
use clap::Args;
use comfy_table::CellAlignment;

use super::local::Local;
use super::print_line;
use crate::cli::borderless_table;
use crate::config::Config;

/// Show how much disk space each sandbox takes, and what the host has left.
///
/// A limit in brackets is advisory. A size after ≥ is a lower bound. Prepared sandboxes that have
/// no user yet are one row.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll df
  atoll df --json | jq '.sandboxes[].used'")]
pub(crate) struct Df {
    /// Show a row for each prepared sandbox.
    #[arg(long, short)]
    all: bool,
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    local: Local,
}

impl Df {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.local.require("df", config)?;
        instance::data_directory(&config.data)?;
        let survey = usage::measure(&config.data)?;
        if self.json {
            let text = serde_json::to_string_pretty(&survey);
            print_line(&text.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
        } else {
            show(&survey, self.all);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(survey: &StorageUsage, all: bool) {
    let mut table = borderless_table();
    table.set_header(["INSTANCE", "SANDBOX", "STORAGE", "USED", "LIMIT"]);
    let is_shown = |line: &&SandboxUsage| all || !line.is_pooled;
    for line in survey.sandboxes.iter().filter(is_shown) {
        table.add_row(row(line));
    }
    for row in pools(survey).into_iter().filter(|_| !all) {
        table.add_row(row);
    }
    for column in [3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    print_line(&table.to_string());
    let host = &survey.host;
    let pooled = survey
        .sandboxes
        .iter()
        .filter(|line| line.is_pooled)
        .count();
    let count = survey.sandboxes.len() - pooled;
    print_line(&format!(
        "\n{} used by {count} sandbox{}{}, {} by images; {} of {} free on the host, {} of it reserved",
        survey.used(),
        if count == 1 { "" } else { "es" },
        if pooled == 0 {
            String::new()
        } else {
            format!(" and {pooled} prepared ones")
        },
        survey.images,
        host.free,
        host.size,
        host.reserve
    ));
}

/// One row for the prepared sandboxes of each instance and storage.
fn pools(survey: &StorageUsage) -> Vec<[String; 5]> {
    let mut pools: BTreeMap<(&str, String), (usize, Bytes)> = BTreeMap::new();
    for line in survey.sandboxes.iter().filter(|line| line.is_pooled) {
        let key = (line.instance.as_str(), line.storage.to_string());
        let (count, used) = pools.entry(key).or_default();
        *count += 1;
        used.0 += line.usage.map_or(0, |usage| usage.used.0);
    }
    let row = |((instance, storage), (count, used)): ((&str, String), (usize, Bytes))| {
        let name = format!("pool ({count} prepared)");
        [
            instance.to_owned(),
            name,
            storage,
            used.to_string(),
            String::new(),
        ]
    };
    pools.into_iter().map(row).collect()
}

fn row(line: &SandboxUsage) -> [String; 5] {
    let (used, limit) = match line.usage {
        None => ("not mounted".into(), String::new()),
        Some(usage) => (
            format!("{}{}", if usage.complete { "" } else { "≥ " }, usage.used),
            if usage.enforced {
                usage.limit.to_string()
            } else {
                format!("({})", usage.limit)
            },
        ),
    };
    [
        line.instance.clone(),
        line.id.to_string(),
        line.storage.to_string(),
        used,
        limit,
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use atoll_worker::storage::{DiskSpace, Storage};

    use super::*;

    #[test]
    fn prepared_sandboxes_are_one_row_per_instance() {
        let line = |instance: &str, pooled| SandboxUsage {
            instance: instance.into(),
            id: atoll_model::SandboxId::random(),
            is_pooled: pooled,
            storage: Storage::Plain,
            usage: Some(atoll_model::DiskUsage {
                used: Bytes(1 << 20),
                limit: Bytes(1 << 30),
                enforced: false,
                complete: true,
            }),
        };
        let mut sandboxes = vec![line("server", false)];
        sandboxes.extend((0..112).map(|_| line("server", true)));
        let survey = StorageUsage {
            sandboxes,
            host: DiskSpace::for_path(std::path::Path::new("/")).unwrap(),
            images: Bytes(0),
        };
        let rows = pools(&survey);
        let row = ["server", "pool (112 prepared)", "plain", "112 MiB", ""];
        assert_eq!(rows, [row.map(ToOwned::to_owned)]);
    }
}
