//! `atoll df`: who takes the disk.

use std::process::ExitCode;

use atoll_model::{Code, Error};
use atoll_worker::instance;
use atoll_worker::storage::survey::{self, Line, Survey};
use clap::Args;
use comfy_table::{CellAlignment, Table};

use super::say;
use crate::config::Config;

/// Show how much disk space each sandbox takes, and what the host has left.
///
/// A limit in brackets is advisory. What ≥ stands before has more that was not measured.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll df
  atoll df --json | jq '.sandboxes[].used'")]
pub(crate) struct Df {
    /// Print JSON, sizes in bytes.
    #[arg(long)]
    json: bool,
}

impl Df {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        instance::data_directory(&config.data)?;
        let survey = survey::take(&config.data)?;
        if self.json {
            let text = serde_json::to_string_pretty(&survey);
            say(&text.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
        } else {
            show(&survey);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show(survey: &Survey) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["INSTANCE", "SANDBOX", "STORAGE", "USED", "LIMIT"]);
    for line in &survey.sandboxes {
        table.add_row(row(line));
    }
    for column in [3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    say(&table.to_string());
    let host = &survey.host;
    say(&format!(
        "\n{} used by {} sandbox{}, {} by images; {} of {} free on the host, {} of it reserved",
        survey.used(),
        survey.sandboxes.len(),
        if survey.sandboxes.len() == 1 {
            ""
        } else {
            "es"
        },
        survey.images,
        host.free,
        host.size,
        host.reserve
    ));
}

fn row(line: &Line) -> [String; 5] {
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
