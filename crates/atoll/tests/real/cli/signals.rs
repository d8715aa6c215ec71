//! Ctrl-C and other signals.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::atoll;
use crate::harness::DEADLINE;

/// A run whose command prints `ready` after its start.
fn started(line: &str) -> (Child, BufReader<ChildStdout>) {
    let mut command = atoll(&["run", "--", "sh", "-c", line]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    output.read_line(&mut first).unwrap();
    assert_eq!(first, "ready\n");
    (child, output)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn code(child: &mut Child) -> i32 {
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < DEADLINE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    status.code().unwrap_or_else(|| -status.signal().unwrap())
}

#[test]
fn interrupt_reaches_the_command_and_its_exit_code_returns() {
    let (mut child, _output) = started("echo ready; exec sleep 1000");
    send(&child, Signal::INT);
    assert_eq!(code(&mut child), 130);
}

#[test]
fn command_that_handles_a_signal_sets_the_exit_code() {
    let (mut child, mut output) =
        started("trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done");
    send(&child, Signal::TERM);
    let mut rest = String::new();
    output.read_line(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");
    assert_eq!(code(&mut child), 3);
}

#[test]
fn second_signal_ends_a_command_that_ignores_the_first() {
    let (mut child, mut output) =
        started("trap 'echo no' INT; echo ready; while :; do sleep 0.01; done");
    send(&child, Signal::INT);
    let mut answer = String::new();
    output.read_line(&mut answer).unwrap();
    assert_eq!(answer, "no\n");
    send(&child, Signal::INT);
    assert_eq!(code(&mut child), 137);
}
