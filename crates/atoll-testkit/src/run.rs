//! Conditions and commands with deadlines, so that a test that hangs reports where.

#[cfg(test)]
mod tests;

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Asks until the condition holds; panics with `what` when the time is up.
#[track_caller]
pub fn wait_for(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + timeout;
    let mut pause = Duration::from_micros(200);
    while !condition() {
        assert!(
            Instant::now() < until,
            "waited {timeout:?} in vain for: {what}"
        );
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Runs a command without input for at most a minute.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    run_within(command, Duration::from_mins(1), b"")
}

/// Runs a command with this input. At the deadline its process group is killed and the test panics with its output.
/// A process that stays behind and holds the output open counts as running.
#[track_caller]
pub fn run_within(command: &mut Command, timeout: Duration, input: &[u8]) -> Output {
    let until = Instant::now() + timeout;
    let name = format!("{command:?}");
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|problem| panic!("{name} does not start: {problem}"));
    let group = Pid::from_child(&child);
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let stdout = collect(child.stdout.take().expect("stdout is piped"));
    let stderr = collect(child.stderr.take().expect("stderr is piped"));
    let input = input.to_vec();
    // A program need not read its input: a closed pipe is its right.
    thread::spawn(move || drop(stdin.write_all(&input)));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ended = drain(&stdout, &mut out, until) & drain(&stderr, &mut err, until);
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break Some(status);
        }
        if Instant::now() >= until {
            break None;
        }
        thread::sleep(Duration::from_micros(500));
    };
    if let (Some(status), true) = (status, ended) {
        return Output {
            status,
            stdout: out,
            stderr: err,
        };
    }
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    panic!(
        "{name} {} after {timeout:?}\nstdout: {}\nstderr: {}",
        status.map_or("still runs".to_owned(), held),
        String::from_utf8_lossy(&out),
        String::from_utf8_lossy(&err),
    );
}

fn held(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("died of signal {signal} but its output is still held open"),
        None => format!("ended ({status}) but its output is still held open"),
    }
}

/// Reads in a thread of its own, piece by piece, so that what came before a deadline is known.
fn collect(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Takes pieces until the end of the stream; false if the deadline came first.
fn drain(from: &mpsc::Receiver<Vec<u8>>, into: &mut Vec<u8>, until: Instant) -> bool {
    loop {
        match from.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(piece) => into.extend(piece),
            Err(mpsc::RecvTimeoutError::Disconnected) => return true,
            Err(mpsc::RecvTimeoutError::Timeout) => return false,
        }
    }
}
