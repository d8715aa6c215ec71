//! `atoll rm`: removes sandboxes of a server and named runs of this machine.

use std::process::ExitCode;

use atoll_client::{Client, Request};
use atoll_model::{Code, Error, RunName};
use atoll_worker::instance::named::NamedRun;
use clap::Args;
use serde_json::{Value, json};

use super::run::named::{open, unknown};
use super::server_args::{Remote, below, each, text};
use super::{block_on, print_line, sandbox};
use crate::config::Config;

/// Remove sandboxes of the server in use, or named runs of this machine, with their files.
///
/// Running commands are killed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll rm web i5f2
  atoll rm build                       the run of `atoll run --name build`
  atoll ls -q | xargs atoll rm
  atoll rm --local build               the run, also if a sandbox has this name")]
pub(crate) struct Rm {
    /// Ids, names or unique prefixes of sandboxes; whole names of runs.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Remove only runs of this machine.
    #[arg(long, conflicts_with_all = ["url", "profile"])]
    local: bool,
    /// Print JSON, one line per item, instead of ids and names.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

impl Rm {
    /// Removes the items in order; a failure does not stop the others.
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let client = self.remote.client(config)?;
        block_on(async {
            let removed = each(&self.names, async |name| {
                let removed = self.remove(&client, name, config).await?;
                if self.json {
                    print_line(&removed.to_string());
                } else if text(&removed, "name").is_empty() {
                    print_line(text(&removed, "sandboxID"));
                } else {
                    print_line(text(&removed, "name"));
                }
                Ok(())
            });
            Ok(removed.await)
        })
    }

    async fn remove(&self, client: &Client, name: &str, config: &Config) -> Result<Value, Error> {
        match find_run(name, config) {
            Some(run) => {
                if !self.local {
                    self.check_unambiguous(client, name).await?;
                }
                open(&run, config, config.storage_of_run().into())
                    .await?
                    .destroy()
                    .await?;
                Ok(json!({ "name": name }))
            }
            None if self.local => Err(unknown(&name.parse::<RunName>()?)),
            None if !self.remote.exists(config)? => Err(neither(name)),
            None => sandbox::change(client, name, None).await,
        }
    }

    /// Returns an error for a name that both a run and a sandbox have.
    async fn check_unambiguous(&self, client: &Client, name: &str) -> Result<(), Error> {
        // If the server cannot be reached, runs of this machine are still removed.
        if client
            .send_json(&Request::get(below(name, &[])))
            .await
            .is_err()
        {
            return Ok(());
        }
        let message = format!("{name} is the name of a sandbox and of a run of this machine");
        let remedy = format!(
            "`atoll rm --local {name}` removes the run, `atoll sandbox rm {name}` the sandbox"
        );
        Err(Error::new(Code::Conflict, message).remedy(remedy))
    }
}

/// The named run of this machine.
pub(crate) fn find_run(name: &str, config: &Config) -> Option<NamedRun> {
    let name: RunName = name.parse().ok()?;
    let place = NamedRun::new(&config.data, &name);
    place.inspect().map(|_| place)
}

fn neither(name: &str) -> Error {
    let message = format!("there is no run with the name {name:?}, and no server runs here");
    Error::new(Code::SandboxNotFound, message).remedy(
        "`atoll ls` lists what can be removed; ATOLL_URL or `atoll login` name a server elsewhere",
    )
}
