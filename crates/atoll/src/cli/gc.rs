//! `atoll gc`.

use std::process::ExitCode;

use atoll_jail::facts::Facts;
use atoll_model::{Code, Error};
use atoll_worker::instance::{self, Scope};
use atoll_worker::template::TemplateStore;
use clap::Args;

use super::local::Local;
use super::{print_error, print_line};
use crate::config::Config;

/// Remove leftovers of runs that were killed: processes, cgroups, files, network rules and links.
///
/// Network rules and links are removed for every data directory of this host. Sandboxes of active
/// runs and servers are not touched, nor are kept sandboxes and the output and exit codes of named
/// runs (`atoll rm` removes those).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll gc            what runs of this data directory left
  atoll gc --all      what runs of any data directory left
  atoll gc --kept     also the sandboxes kept by atoll run --keep")]
pub(crate) struct Gc {
    /// Act on every data directory of this host.
    #[arg(long)]
    all: bool,
    /// Remove the sandboxes kept by `atoll run --keep` too.
    #[arg(long)]
    kept: bool,
    #[command(flatten)]
    local: Local,
}

impl Gc {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.local.require("gc", config)?;
        let scope = if self.all {
            Scope::Host
        } else {
            Scope::Below(&config.data)
        };
        let facts = Facts::read();
        let mut collected = instance::collect(scope, &facts)?;
        if self.all {
            // Directories whose registration was lost at a reboot.
            let mine = instance::collect(Scope::Below(&config.data), &facts)?;
            collected.instances.extend(mine.instances);
            collected.networks.extend(mine.networks);
            collected.problems.extend(mine.problems);
        }
        let swept = if config.templates().exists() {
            let store = TemplateStore::open(config.templates());
            let swept = store.and_then(|store| store.sweep());
            swept.map_err(|error| Error::new(Code::Internal, format!("old templates: {error}")))?
        } else {
            0
        };
        let mut kept = 0;
        if self.kept {
            kept = instance::remove_kept(&config.data)?;
        }
        print_line(&format!(
            "removed {} dead run{}, {} old template{}{}{}",
            collected.instances.len(),
            if collected.instances.len() == 1 {
                ""
            } else {
                "s"
            },
            swept,
            if swept == 1 { "" } else { "s" },
            match collected.networks.len() {
                0 => String::new(),
                1 => ", 1 stale network".into(),
                many => format!(", {many} stale networks"),
            },
            if self.kept {
                format!(", {kept} kept")
            } else {
                String::new()
            },
        ));
        for problem in &collected.problems {
            print_error(&Error::new(Code::Internal, problem.clone()));
        }
        Ok(if collected.problems.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
