//! Everyday commands: what a test runs in a template that has no shell and no other program.

pub(crate) mod facts;
pub(crate) mod files;
pub(crate) mod net;
mod plain;
pub(crate) mod process;

use crate::Command;

pub(crate) fn commands() -> impl Iterator<Item = &'static Command> {
    [
        plain::COMMANDS,
        process::COMMANDS,
        files::COMMANDS,
        facts::COMMANDS,
        net::COMMANDS,
    ]
    .into_iter()
    .flatten()
}
