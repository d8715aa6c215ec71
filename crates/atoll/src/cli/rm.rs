//! `atoll rm`: ends runs that have a name.

use std::process::ExitCode;

use atoll_model::{Error, RunName};
use atoll_worker::instance::named::Place;
use clap::Args;

use super::run::named::{open, unknown};
use super::{block_on, complain, say};
use crate::config::Config;

/// End runs that have a name and remove them, with their files and their output.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll rm build
  atoll ls --json | jq -r '.[].name' | xargs atoll rm")]
pub(crate) struct Rm {
    /// Their names.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<RunName>,
}

impl Rm {
    pub(crate) fn run(&self, config: &Config) -> ExitCode {
        let mut failed = None;
        for name in &self.names {
            match block_on(remove(name, config)) {
                Ok(()) => say(&format!("removed {name}")),
                Err(error) => {
                    complain(&error);
                    failed = failed.or(Some(error.code.exit_code()));
                }
            }
        }
        failed.map_or(ExitCode::SUCCESS, ExitCode::from)
    }
}

async fn remove(name: &RunName, config: &Config) -> Result<(), Error> {
    let place = Place::of(&config.data, name);
    if place.look().is_none() {
        return Err(unknown(name));
    }
    open(&place, config, config.storage)
        .await?
        .take_away()
        .await
}
