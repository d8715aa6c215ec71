//! `--url` and `--profile` before the command: `atoll --url URL ls` is `atoll ls --url URL`.
//!
//! Clap passes the values of global options down to the command, which declares options of the same names if it
//! uses a server. The value that is closest to the end of the line wins. This module refuses what clap accepts without
//! effect: an option for a command that uses no server, and conflicts between options of different levels.

use atoll_model::Error;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command};

/// The options, as global ones. [`super::server_args::Remote`] describes them.
#[derive(Debug, Args)]
pub(super) struct ServerOptions {
    #[arg(long, global = true, hide = true, value_name = "URL")]
    url: Option<String>,
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    profile: Option<String>,
}

const NAMES: [&str; 2] = ["url", "profile"];

/// The first word of the arguments that is neither of the options nor its value: the command.
pub(super) fn command_word(words: impl Iterator<Item = String>) -> Option<String> {
    let mut words = words;
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some(option) if NAMES.contains(&option) => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => return Some(word),
        }
    }
    None
}

/// Refuses server options that have no effect, or more than one meaning.
pub(super) fn check(top: fn() -> Command, matches: &ArgMatches) -> Result<(), Error> {
    NAMES
        .iter()
        .try_for_each(|name| check_one(name, top, matches))
}

fn check_one(name: &str, top: fn() -> Command, matches: &ArgMatches) -> Result<(), Error> {
    let mut levels = vec![matches];
    let mut path = Vec::new();
    while let Some((word, below)) = levels.last().and_then(|level| level.subcommand()) {
        path.push(word);
        levels.push(below);
    }
    if !levels.iter().any(|level| is_given(level, name)) {
        return Ok(());
    }
    let invalid = |message: String, remedy: &str| Err(Error::invalid(name, message, remedy));
    let mut command = top();
    for word in &path {
        command = command.find_subcommand(word).cloned().unwrap_or_default();
    }
    let declared = command
        .get_arguments()
        .find(|argument| argument.get_id() == name);
    let Some(declared) = declared else {
        let message = format!("atoll {} uses no server", path.join(" "));
        return invalid(message, &format!("leave out --{name}"));
    };
    let Some(used) = levels.last() else {
        return Ok(());
    };
    let mut present = command.get_arguments().filter(|other| {
        used.value_source(other.get_id().as_str()) == Some(ValueSource::CommandLine)
            && (command.get_arg_conflicts_with(other).contains(&declared)
                || command.get_arg_conflicts_with(declared).contains(other))
    });
    match present.next() {
        None => Ok(()),
        Some(other) => {
            let message = format!("--{name} cannot be used with --{}", other.get_id());
            invalid(message, "give one of them")
        }
    }
}

/// Whether an option was typed at a level, or above it.
fn is_given(level: &ArgMatches, name: &str) -> bool {
    level.try_contains_id(name).unwrap_or(false)
        && level.value_source(name) == Some(ValueSource::CommandLine)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::super::{Arguments, Command};
    use super::*;

    /// Formats a parsed command line for messages of failed tests.
    fn parse(line: &str) -> Result<Command, String> {
        let matches = Arguments::command().try_get_matches_from(line.split(' '));
        let matches = matches.map_err(|error| error.to_string())?;
        check(Arguments::command, &matches).map_err(|error| error.message)?;
        let parsed = Arguments::from_arg_matches(&matches);
        parsed
            .map(|arguments| arguments.command)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn options_before_the_command_apply_to_the_command() {
        for (before, after) in [
            ("atoll --url http://a ls", "atoll ls --url http://a"),
            (
                "atoll --profile work exec web ls -l",
                "atoll exec --profile work web ls -l",
            ),
            (
                "atoll --url=http://a sandbox get web",
                "atoll sandbox get web --url=http://a",
            ),
            (
                "atoll sandbox --profile work rm web",
                "atoll sandbox rm --profile work web",
            ),
            (
                "atoll --profile work login http://a",
                "atoll login http://a --profile work",
            ),
            ("atoll --url http://a login", "atoll login http://a"),
            (
                "atoll --url http://a ls --url http://b",
                "atoll ls --url http://b",
            ),
            (
                "atoll --url http://a login http://b",
                "atoll login http://b",
            ),
            (
                "atoll --url http://a run -- ls",
                "atoll run --url http://a -- ls",
            ),
        ] {
            let [before, after] = [before, after].map(|line| format!("{:?}", parse(line)));
            assert!(before.starts_with("Ok("), "{before}");
            assert_eq!(before, after);
        }
    }

    #[test]
    fn options_without_effect_or_with_conflicts_are_refused() {
        for (line, refusal) in [
            ("atoll --url http://a serve", "atoll serve uses no server"),
            ("atoll gc --profile work", "atoll gc uses no server"),
            (
                "atoll --url http://a ls --profile b",
                "--url cannot be used with --profile",
            ),
            (
                "atoll --profile b run --local -- ls",
                "--profile cannot be used with --local",
            ),
            (
                "atoll --url http://a ls --local",
                "--url cannot be used with --local",
            ),
        ] {
            assert_eq!(parse(line).err().as_deref(), Some(refusal), "{line}");
        }
    }

    #[test]
    fn command_is_found_after_options() {
        for (line, word) in [
            ("run ls", Some("run")),
            ("--url exec run", Some("run")),
            ("--profile=exec shell", Some("shell")),
            ("--url http://a", None),
        ] {
            let words = line.split(' ').map(ToOwned::to_owned);
            assert_eq!(command_word(words).as_deref(), word, "{line}");
        }
    }
}
