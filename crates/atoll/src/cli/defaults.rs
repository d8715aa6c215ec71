//! Tests that the defaults in help texts are those of the server.

use std::collections::BTreeMap;

use atoll_model::{Bytes, ExpiryAction, Lifetime, Limits, Network, SandboxSpec};
use clap::{Arg, Command, CommandFactory as _};

use super::Arguments;
use super::help::commands;

/// Defaults that are described in words and have no value to compare with.
const IN_WORDS: [&str; 9] = [
    "`ATOLL_DATABASE_URL`",
    "that of the data directory",
    "the user's home",
    "the template's",
    "never, or with your own",
    "your own",
    "that of the last `atoll login`",
    "/var/lib/atoll, or `ATOLL_DATA_DIR`",
    "`ATOLL_URL`, a profile of `atoll login`, or the operator's socket of this machine",
];

/// The `[default: …]` texts of a command's arguments, which clap does not check.
pub(super) fn written_defaults(command: &Command) -> Vec<(String, String)> {
    let written = |argument: &Arg| {
        let help = argument
            .get_long_help()
            .or(argument.get_help())?
            .to_string();
        let (_, rest) = help.split_once("[default: ")?;
        let text = rest.split(']').next()?.split_whitespace();
        Some((name(argument), text.collect::<Vec<_>>().join(" ")))
    };
    command.get_arguments().filter_map(written).collect()
}

fn name(argument: &Arg) -> String {
    let long = argument.get_long().map(|long| format!("--{long}"));
    long.unwrap_or_else(|| argument.get_id().to_string())
}

/// The defaults that clap applies itself.
fn applied_defaults(command: &Command) -> Vec<(String, String)> {
    let applied = |argument: &Arg| {
        let value = argument.get_default_values().first()?;
        Some((name(argument), value.to_string_lossy().into_owned()))
    };
    command.get_arguments().filter_map(applied).collect()
}

/// The server's defaults for a create request without fields, by the name of the flag.
fn of_the_server() -> BTreeMap<&'static str, String> {
    let (limits, lifetime) = (Limits::default(), Lifetime::default());
    let gibibytes = |size: Bytes| format!("{}G", size.0 >> 30);
    let ending = |ending| match ending {
        ExpiryAction::Destroy => "destroy",
        ExpiryAction::Stop => "stop",
        ExpiryAction::Pause => "pause",
    };
    let minutes = lifetime.timeout.map(|seconds| format!("{}m", seconds / 60));
    assert_eq!(lifetime.idle_timeout, None);
    BTreeMap::from([
        ("--template", SandboxSpec::default().template),
        ("--cpus", limits.cpus.to_string()),
        ("--memory", gibibytes(limits.memory)),
        ("--disk", gibibytes(limits.disk)),
        ("--pids", limits.pids.to_string()),
        ("--net", Network::default().to_string()),
        ("--timeout", minutes.expect("a lifetime has an end")),
        ("--on-idle", ending(lifetime.on_idle).to_owned()),
        ("--idle-timeout", "for ever".to_owned()),
        // The command's own default for sandboxes with a name, then the server's.
        (
            "--on-timeout",
            format!("stop with --name, else {}", ending(lifetime.on_timeout)),
        ),
    ])
}

#[test]
fn help_names_the_defaults_of_the_server() {
    let real = of_the_server();
    let mut all = Vec::new();
    commands(&Arguments::command(), "", &mut all);
    let mut compared = 0;
    for (words, command) in &all {
        // The settings module compares these defaults.
        if words == "serve" {
            continue;
        }
        for (flag, described) in written_defaults(command) {
            if IN_WORDS.contains(&described.as_str()) {
                continue;
            }
            let expected = real.get(flag.as_str());
            let expected = expected.unwrap_or_else(|| panic!("{words} {flag}: {described}"));
            // A remark may follow.
            let value = described.split(", kept").next().unwrap_or_default();
            assert_eq!(value, expected, "{words} {flag}");
            compared += 1;
        }
        if ["run", "sandbox create", "mcp"].contains(&words.as_str()) {
            for (flag, described) in applied_defaults(command) {
                // This timeout of `atoll mcp` is a default of the command, not of the server.
                if words == "mcp" && flag == "--timeout" {
                    continue;
                }
                assert_eq!(Some(&described), real.get(flag.as_str()), "{words} {flag}");
                compared += 1;
            }
        }
    }
    assert!(compared > 15, "{compared}");
}
