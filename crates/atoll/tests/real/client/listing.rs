//! The short forms: `atoll ls`, `rm`, `stop` and so on, for sandboxes of a server and named runs of this machine.

use std::process::{Command, Stdio};

use atoll_testkit::{Scratch, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{done, json, operator, plain, stdout_of, with_web};
use crate::api::Server;
use crate::cli::output_text;
use crate::harness::{self, DEADLINE};

/// `atoll` on the server's machine: its data directory, and the templates that all tests share.
fn here(server: &Server, args: &[&str]) -> Command {
    let mut command = operator(server, args);
    command.env("ATOLL_TEMPLATES_DIR", harness::data().join("templates"));
    command
}

/// Output of a command that succeeds, parsed.
#[track_caller]
fn parsed(command: Command) -> Value {
    let output = done(command, b"");
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts a run that outlives its client.
fn start_run(server: &Server, name: &str) {
    let mut command = here(server, &["run", "--name", name, "--", "sleep", "1000"]);
    let mut client = command.stdout(Stdio::null()).spawn().unwrap();
    wait_for("the run", DEADLINE, || {
        let runs = parsed(here(server, &["ls", "--local", "--json"]));
        let runs = runs.as_array().unwrap().clone();
        let run = runs.into_iter().find(|run| run["name"] == name);
        run.is_some_and(|run| run["state"] == "attached" && run["command"].is_string())
    });
    kill_process(Pid::from_child(&client), Signal::KILL).unwrap();
    client.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ls_and_rm_cover_sandboxes_and_named_runs() {
    let server = with_web().await;
    start_run(&server, "build");
    start_run(&server, "web");
    let listed = parsed(here(&server, &["ls", "--json"]));
    let kinds = |name: &str| -> Vec<String> {
        let all = listed.as_array().unwrap().iter();
        let own = all.filter(|one| one["name"] == name || one["alias"] == name);
        own.map(|one| one["kind"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kinds("web"), ["sandbox", "run"]);
    assert_eq!(kinds("build"), ["run"]);
    let table = output_text(&done(here(&server, &["ls"]), b""));
    let row = table.lines().find(|row| row.contains("build")).unwrap();
    assert!(
        row.contains(" run ") && row.contains("sleep 1000"),
        "{table}"
    );
    // Filters select sandboxes, --local lists runs.
    let filtered = parsed(here(&server, &["ls", "--state", "running", "--json"]));
    assert_eq!(filtered.as_array().unwrap().len(), 1);
    let client = server.client();
    let blue = serde_json::json!({ "alias": "blue-1", "metadata": { "team": "a b&c" } });
    client.sandbox(&blue).await;
    for (words, expected) in [
        (vec!["--metadata", "team=a b&c"], vec!["blue-1"]),
        (vec!["--metadata", "team=a"], vec![]),
        (vec!["--search", "BLUE"], vec!["blue-1"]),
        (vec!["--template", "base", "--search", "web"], vec!["web"]),
        (vec!["--template", "base"], vec!["blue-1", "web"]),
        (vec!["--template", "none"], vec![]),
    ] {
        for command in [&["ls"][..], &["sandbox", "ls"]] {
            let words = [command, &words, &["--json"]].concat();
            let found = parsed(here(&server, &words));
            let found = found.as_array().unwrap().iter();
            let found: Vec<&str> = found.map(|one| one["alias"].as_str().unwrap()).collect();
            assert_eq!(found, expected, "{words:?}");
        }
    }
    let refused = done(here(&server, &["ls", "--metadata", "team"]), b"");
    assert!(
        output_text(&refused).contains("expected KEY=VALUE"),
        "{}",
        output_text(&refused)
    );
    assert_eq!(client.delete("/sandboxes/blue-1").await.status, 204);
    let local = output_text(&done(here(&server, &["ls", "--local", "-q"]), b""));
    assert_eq!(local, "build\nweb\nexit 0");

    // The name of a run is not a sandbox to stop, and the error explains that.
    let stopped = output_text(&done(here(&server, &["stop", "build"]), b""));
    assert!(stopped.contains("`atoll rm build` ends"), "{stopped}");
    // A name of both is ambiguous.
    let both = done(here(&server, &["rm", "web", "build"]), b"");
    let text = output_text(&both);
    assert_eq!(both.status.code(), Some(5), "{text}");
    assert!(
        text.starts_with("build\n") && text.contains("`atoll rm --local web`"),
        "{text}"
    );
    let run = done(here(&server, &["rm", "--local", "web"]), b"");
    assert_eq!(output_text(&run), "web\nexit 0");
    let id = parsed(here(&server, &["sandbox", "get", "web", "--json"]));
    let removed = parsed(here(&server, &["delete", "web", "--json"]));
    assert_eq!(removed, serde_json::json!({ "sandboxID": id["sandboxID"] }));
    assert_eq!(
        parsed(here(&server, &["ps", "--json"])),
        Value::Array(Vec::new())
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_forms_and_aliases_act_on_the_sandboxes_of_the_server() {
    let server = with_web().await;
    let id = stdout_of(&server, &["sandbox", "ls", "-q"]);
    for verb in ["ls", "list", "ps"] {
        assert_eq!(stdout_of(&server, &[verb, "-q"]), id, "{verb}");
        assert_eq!(stdout_of(&server, &["sandbox", verb, "-q"]), id, "{verb}");
    }
    for (verb, state) in [
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "stopped"),
        ("start", "running"),
        ("restart", "running"),
    ] {
        for form in [&[verb, "web"][..], &["sandbox", verb, "web"]] {
            assert_eq!(stdout_of(&server, form), id, "{form:?}");
            let now = json(&server, &["sandbox", "get", "web", "--json"]);
            assert_eq!(now["state"], state, "{form:?}");
        }
    }
    for verb in ["rm", "delete", "kill"] {
        for form in [&[verb][..], &["sandbox", verb]] {
            // Without an end of its lifetime, which `create` would name on standard error.
            let create = ["sandbox", "create", "--name", "other", "--timeout", "0"];
            let made = stdout_of(&server, &create);
            let removed = stdout_of(&server, &[form, &["other"]].concat());
            assert_eq!(removed, made, "{form:?}");
        }
    }
    server.close().await;
}

#[test]
fn ls_without_a_server_lists_only_named_runs() {
    let scratch = Scratch::new();
    let here = |args: &[&str]| {
        let mut command = plain(args);
        command.env("ATOLL_DATA_DIR", scratch.path());
        done(command, b"")
    };
    let listed = here(&["ls", "--json"]);
    assert_eq!(output_text(&listed), "[]\nexit 0");
    let unknown = here(&["rm", "nothing"]);
    assert_eq!(unknown.status.code(), Some(4), "{}", output_text(&unknown));
    // Filters need a server; without one the command fails.
    let filtered = here(&["ls", "--state", "running"]);
    assert_eq!(
        filtered.status.code(),
        Some(7),
        "{}",
        output_text(&filtered)
    );
    let named = here(&["ls", "--url", "http://127.0.0.1:1"]);
    assert_eq!(named.status.code(), Some(7), "{}", output_text(&named));
}
