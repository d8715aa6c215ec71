//! What was typed, turned once into what it means.

mod run;

use std::process::ExitCode;

use atoll_model::Error;
use clap::{Parser, Subcommand};

use crate::config::Config;

/// Isolated Linux sandboxes on your own machine, in milliseconds.
#[derive(Debug, Parser)]
#[command(
    name = "atoll",
    version,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
}

pub(crate) fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let config = Config::read();
    match command {
        Command::Run(run) => run.run(&config),
    }
}

/// Says what went wrong and what to do about it.
#[expect(clippy::print_stderr, reason = "this is the edge")]
pub(crate) fn complain(error: &Error) {
    eprintln!("atoll: {}", error.message);
    if let Some(remedy) = &error.remedy {
        eprintln!("  hint: {remedy}");
    }
}
