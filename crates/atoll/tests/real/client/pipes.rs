//! Closed output pipes and full disks: long-running commands end, and report an error where one is due.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use atoll_testkit::wait_for;

use super::signals::code;
use super::{atoll, shell_in_web, stdout_of, with_web};
use crate::cli::output_text;

/// A command of which the first line was read, and no more will be.
fn read_once(mut command: Command, begin: impl Fn()) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = std::thread::spawn(move || lines.next().unwrap().unwrap());
    wait_for("the first line", crate::harness::DEADLINE, || {
        begin();
        line.is_finished()
    });
    assert!(!line.join().unwrap().is_empty());
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_output_pipe_ends_the_command() {
    let server = with_web().await;
    let happen = || {
        // An event that leaves the sandbox running.
        stdout_of(&server, &["sandbox", "timeout", "web", "1h"]);
        shell_in_web(&server, "echo hi; mktemp -p ~ > /dev/null");
    };
    let exec = [
        "exec",
        "-d",
        "web",
        "sh",
        "-c",
        "while :; do echo .; sleep 0.01; done",
    ];
    let exec = stdout_of(&server, &exec);
    for args in [
        &["logs", "web", "-f"][..],
        &["logs", "web", "-f", "--json"],
        &["logs", "web", "--exec", exec.trim(), "-f"],
        &["events"],
        &["events", "web", "-f", "--json"],
        &["files", "watch", "web"],
    ] {
        let mut child = read_once(atoll(&server, args), happen);
        wait_for("its end", crate::harness::DEADLINE, || {
            happen();
            child.try_wait().unwrap().is_some()
        });
        assert_eq!(code(&mut child), 141, "{args:?}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_output_write_is_an_error() {
    let server = with_web().await;
    stdout_of(&server, &["exec", "web", "echo", "hi"]);
    for (args, expected) in [
        (&["sandbox", "ls"][..], 6),
        (&["sandbox", "get", "web", "--json"], 6),
        (&["logs", "web"], 6),
        (&["files", "ls", "web", "/etc"], 6),
        (&["files", "cat", "web", "/etc/passwd"], 6),
        (&["completions", "bash"], 6),
        (&["exec", "-d", "web", "true"], 125),
        // The exit code of a command that got SIGPIPE.
        (&["exec", "web", "yes"], 141),
        (&["run", "--", "yes"], 141),
    ] {
        let mut command = atoll(&server, args);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {text}");
        assert!(text.contains("No space left"), "{args:?}: {text}");
    }
    let mut local = crate::cli::atoll(&["run", "--", "yes"]);
    local.stdout(File::options().write(true).open("/dev/full").unwrap());
    let output = local.output().unwrap();
    assert!(
        output_text(&output).contains("No space left"),
        "{}",
        output_text(&output)
    );
    assert_eq!(output.status.code(), Some(141));
    // A closed pipe alone is no error message.
    for args in [&["sandbox", "ls"][..], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = atoll(&server, args).stdout(writer).output().unwrap();
        assert_eq!(output_text(&output), "exit 141", "{args:?}");
    }
    server.close().await;
}
