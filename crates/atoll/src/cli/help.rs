//! Tests of help texts: every command, argument and option is described, and arguments are in a
//! consistent order.

use clap::{Arg, Command, CommandFactory as _};

use super::Arguments;

/// Every visible command with its full name.
pub(super) fn commands(command: &Command, words: &str, all: &mut Vec<(String, Command)>) {
    for below in command.get_subcommands() {
        let words = format!("{words} {}", below.get_name()).trim().to_owned();
        all.push((words.clone(), below.clone()));
        commands(below, &words, all);
    }
}

fn every_command() -> Vec<(String, Command)> {
    let mut top = Arguments::command();
    // Indexes and usage exist once a command is built.
    top.build();
    let mut all = vec![(String::new(), top.clone())];
    commands(&top, "", &mut all);
    all.retain(|(_, command)| !command.is_hide_set());
    all
}

/// The placeholder of a positional argument: `<SANDBOX>`, `[PATH]`.
fn placeholder(argument: &Arg) -> String {
    let name = argument.get_value_names().and_then(<[_]>::first);
    name.map_or_else(|| argument.get_id().to_string(), ToString::to_string)
}

#[test]
fn every_command_argument_and_option_has_a_help_text() {
    let mut missing = Vec::new();
    for (words, command) in every_command() {
        if command.get_about().is_none() {
            missing.push(format!("atoll {words}"));
        }
        for argument in command.get_arguments() {
            if argument.get_help().is_none() && !argument.is_hide_set() {
                missing.push(format!("atoll {words}: {argument}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn arguments_are_listed_in_the_order_of_use() {
    let mut compared = 0;
    for (words, mut command) in every_command() {
        let usage = command.render_usage().to_string();
        let help = command.render_help().to_string();
        let positionals: Vec<String> = command.get_positionals().map(placeholder).collect();
        let Some((_, listed)) = help.split_once("\nArguments:\n") else {
            assert_eq!(positionals, Vec::<String>::new(), "atoll {words}: {help}");
            continue;
        };
        let listed = listed.split("\n\n").next().unwrap_or_default();
        for text in [&usage[..], listed] {
            let places: Vec<Option<usize>> = positionals
                .iter()
                .map(|name| {
                    let bracketed = [format!("<{name}>"), format!("[{name}]")];
                    bracketed.iter().find_map(|name| text.find(name))
                })
                .collect();
            assert!(places.iter().all(Option::is_some), "atoll {words}: {text}");
            assert!(places.is_sorted(), "atoll {words}: {text}");
        }
        compared += usize::from(positionals.len() > 1);
    }
    assert!(compared > 15, "{compared}");
}

/// A sandbox is the first argument of every command that takes one: `files rm SANDBOX PATH`.
#[test]
fn sandbox_is_the_first_argument() {
    for (words, command) in every_command() {
        let names: Vec<String> = command
            .get_positionals()
            .map(|argument| argument.get_id().to_string())
            .collect();
        let place = names.iter().position(|name| name == "sandbox");
        assert!(place.is_none_or(|place| place == 0), "atoll {words}");
    }
}

#[test]
fn common_aliases_are_commands() {
    for (words, name) in [
        ("ps", "ls"),
        ("new", "create"),
        ("kill", "rm"),
        ("shell list", "ls"),
        ("shell kill", "rm"),
        ("commands ps", "ls"),
        ("commands kill", "signal"),
        ("files find", "search"),
        ("files rename", "mv"),
        ("sandbox set", "patch"),
        ("sandbox show", "get"),
        ("key list", "ls"),
        ("key revoke", "rm"),
        ("org update", "set"),
        ("template list", "ls"),
        ("template delete", "rm"),
        ("inspect", "get"),
    ] {
        let mut command = Arguments::command();
        for word in words.split(' ') {
            let below = command.find_subcommand(word);
            command = below.unwrap_or_else(|| panic!("{words}")).clone();
        }
        assert_eq!(command.get_name(), name, "{words}");
    }
}
