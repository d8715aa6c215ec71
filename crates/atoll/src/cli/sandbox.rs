//! `atoll sandbox`: creates and lists sandboxes of a server, and changes their state.

mod create;
mod filter;
mod lifetime;
mod list;
mod network;
mod patch;
mod size;
mod transitions;

use std::process::ExitCode;
use std::time::Duration;

use atoll_client::Request;
use atoll_model::{Error, parse_duration};
use clap::{Args, Subcommand};
use serde_json::json;

use super::print_line;
use super::server_args::{ServerArgs, below, fields, find, print_json, text};
use crate::config::Config;
pub(crate) use create::{Create, create, seconds};
pub(crate) use filter::Filter;
pub(crate) use lifetime::until;
pub(crate) use list::{Ls, since, span, state};
pub(crate) use size::{Size, described};
pub(crate) use transitions::{Several, change};

/// Create and list sandboxes of a server, and change their state.
///
/// SANDBOX is an id, a name, or a unique prefix of either.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  atoll sandbox create --name web --net internet --timeout 1h
  atoll sandbox ls
  atoll sandbox rm web")]
pub(crate) enum Sandbox {
    #[command(visible_alias = "new")]
    Create(Box<Create>),
    #[command(visible_aliases = ["list", "ps"])]
    Ls(Ls),
    #[command(visible_aliases = ["show", "inspect"])]
    Get(Get),
    /// Remove sandboxes, with their files.
    #[command(visible_aliases = ["delete", "kill"])]
    Rm(Several),
    /// Stop sandboxes: end their processes, keep their files.
    Stop(Several),
    /// Start stopped sandboxes from their stored files.
    Start(Several),
    /// Stop and start sandboxes.
    Restart(Several),
    /// Pause sandboxes: freeze their processes in memory.
    Pause(Several),
    /// Resume the processes of paused sandboxes.
    Resume(Several),
    Timeout(Timeout),
    #[command(visible_aliases = ["set", "update"])]
    Patch(Box<patch::Patch>),
    Network(network::Rules),
}

/// Show one sandbox.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox get web
  atoll sandbox get i5f2 --json | jq -r .endAt")]
pub(crate) struct Get {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Set the remaining lifetime of a sandbox.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll sandbox timeout web 2h
  atoll sandbox timeout web 0      without end")]
pub(crate) struct Timeout {
    /// Id, name, or a unique prefix of either.
    sandbox: String,
    /// Lifetime from now on; 0 is no end.
    #[arg(value_parser = parse_duration)]
    duration: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

impl Sandbox {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        match self {
            Self::Create(create) => create.run(config)?,
            Self::Ls(ls) => ls.run(config)?,
            Self::Get(get) => get.run(config)?,
            Self::Rm(which) => return which.each(config, None),
            Self::Stop(which) => return which.each(config, Some("stop")),
            Self::Start(which) => return which.each(config, Some("start")),
            Self::Restart(which) => return which.each(config, Some("restart")),
            Self::Pause(which) => return which.each(config, Some("pause")),
            Self::Resume(which) => return which.each(config, Some("resume")),
            Self::Timeout(timeout) => timeout.run(config)?,
            Self::Patch(patch) => patch.run(config)?,
            Self::Network(network) => network.run(config)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Get {
    pub(crate) fn run(&self, config: &Config) -> Result<(), Error> {
        let sandbox = self.server.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            client.send_json(&Request::get(below(&id, &[]))).await
        })?;
        if self.server.json {
            return print_json(&sandbox);
        }
        print_line(&fields(&sandbox).to_string());
        Ok(())
    }
}

impl Timeout {
    fn run(&self, config: &Config) -> Result<(), Error> {
        let body = json!({ "timeout": seconds("timeout", self.duration)? });
        let sandbox = self.server.remote.with(config, async |client| {
            let id = find(client, &self.sandbox).await?;
            let request = Request::post(below(&id, &["timeout"]), &body).idempotent();
            client.send_buffered(&request).await?;
            client.send_json(&Request::get(below(&id, &[]))).await
        })?;
        if self.server.json {
            return print_json(&sandbox);
        }
        match text(&sandbox, "endAt") {
            "" => print_line("without end"),
            end => print_line(end),
        }
        Ok(())
    }
}
