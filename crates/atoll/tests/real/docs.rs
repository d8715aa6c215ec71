//! The documentation is correct: every `$ …` line of a `console` block is run, and its output is compared with the
//! lines below it. A line of `...` matches any output.

mod readme;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_testkit::{Scratch, run_within};

use crate::api::Server;
use crate::harness::{self, World};

/// A page with this line has examples that need a server.
const NEEDS_SERVER: &str = "<!-- examples: server -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README.md and every Markdown file below docs/.
fn documents() -> Vec<PathBuf> {
    let mut all = vec![root().join("README.md")];
    let mut directories = vec![root().join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                all.push(path);
            }
        }
    }
    all.sort();
    all
}

/// Commands of console blocks, each with the output that is shown.
fn commands(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => found.push((command.to_owned(), Vec::new())),
                (None, Some((_, output))) => output.push(line.to_owned()),
                (None, None) => panic!("output without a command: {line}"),
            },
        }
    }
    found
}

/// Whether the lines are as shown.
fn alike(shown: &[String], got: &[&str]) -> bool {
    match shown.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=got.len()).any(|skip| alike(rest, &got[skip..]))
        }
        Some((first, rest)) => got
            .split_first()
            .is_some_and(|(line, after)| line.trim_end() == first.trim_end() && alike(rest, after)),
    }
}

#[tokio::test]
async fn every_example_of_the_docs_gives_its_shown_output() {
    World::open().await.close().await;
    let mut count = 0;
    for document in documents() {
        let scratch = Scratch::new();
        let text = std::fs::read_to_string(&document).unwrap();
        // Examples of a page with this line have a server, which they reach by its Unix socket: they run in a
        // network namespace of their own.
        let server = if text.contains(NEEDS_SERVER) {
            Some(Server::start().await)
        } else {
            None
        };
        for (command, shown) in commands(&text) {
            let binaries = harness::binary();
            let path = format!(
                "{}:/usr/sbin:/usr/bin:/sbin:/bin",
                binaries.parent().unwrap().display()
            );
            // Examples with a network would enable IP forwarding on this machine.
            let mut shell = Command::new("unshare");
            shell
                .args(["--net", "bash", "-c", &format!("{{ {command}\n}} 2>&1")])
                .current_dir(scratch.path());
            shell
                .env("PATH", path)
                .env("ATOLL_DATA_DIR", harness::data())
                .env("XDG_CONFIG_HOME", scratch.path())
                .env_remove("ATOLL_URL")
                .stdin(Stdio::null());
            if let Some(server) = &server {
                shell.env("ATOLL_DATA_DIR", server.data());
            }
            let output = run_within(&mut shell, Duration::from_mins(2), b"");
            let got = String::from_utf8_lossy(&output.stdout).into_owned();
            let lines: Vec<&str> = got.lines().collect();
            assert!(
                alike(&shown, &lines),
                "{}: $ {command}\nshows:\n{}\nbut says:\n{got}",
                document.display(),
                shown.join("\n")
            );
            count += 1;
        }
        if let Some(server) = server {
            server.close().await;
        }
    }
    assert!(count > 5, "the documents have hardly any examples");
}

#[test]
fn every_error_code_is_documented() {
    let text = std::fs::read_to_string(root().join("docs/reference/errors.md")).unwrap();
    for code in atoll_model::Code::ALL {
        assert!(
            text.contains(code.name()),
            "{} is missing in docs/reference/errors.md",
            code.name()
        );
    }
}
