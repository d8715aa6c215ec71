//! `atoll ports`: listening ports of a sandbox.

use std::process::ExitCode;

use atoll_client::Request;
use atoll_model::Error;
use clap::Args;

use super::print_line;
use super::server_args::{ServerArgs, below, find, print_json, text};
use crate::cli::borderless_table;
use crate::config::Config;

/// List the listening ports of a sandbox.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll ports web
  atoll ports web --json | jq '.[].port'")]
pub(crate) struct Ports {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    #[command(flatten)]
    server: ServerArgs,
}

impl Ports {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let ports = self.server.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            client
                .send_json(&Request::get(below(&id, &["ports"])))
                .await
        })?;
        if self.server.json {
            print_json(&ports)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table = borderless_table();
        table.set_header(["PORT", "ADDRESS"]);
        for port in ports.as_array().into_iter().flatten() {
            table.add_row([port["port"].to_string(), text(port, "address").to_owned()]);
        }
        print_line(&table.to_string());
        Ok(ExitCode::SUCCESS)
    }
}
