//! Broken connections and killed servers: every byte arrives once, and every operation happens once.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use atoll_testkit::{Cutter, Scratch, fnv64, wait_for};

use super::{at, done, operator, stdout_of, with_web};
use crate::api::Server;
use crate::cli::output_text;
use crate::harness::DEADLINE;

/// In short, so that a failure can be read.
fn hash(bytes: &[u8]) -> (usize, u64) {
    (bytes.len(), fnv64(bytes))
}

fn numbers(count: u64) -> Vec<u8> {
    let all: Vec<String> = (1..=count).map(|number| format!("{number}\n")).collect();
    all.concat().into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_over_a_bad_line_runs_once_with_complete_output() {
    let server = with_web().await;
    let cutter = Cutter::new(server.address(), 11);
    let away = |args: &[&str], input: &[u8]| done(at(&server, &cutter.address(), args), input);
    let line = "echo once >> ran; seq 100000 & seq 100000 >&2; wait; exit 5";
    let output = away(&["exec", "web", "sh", "-c", line], b"");
    assert_eq!(
        output.status.code(),
        Some(5),
        "{} bytes of errors",
        output.stderr.len()
    );
    assert_eq!(hash(&output.stdout), hash(&numbers(100_000)));
    assert_eq!(hash(&output.stderr), hash(&numbers(100_000)));
    // Input is applied once, however often it is sent.
    let output = away(&["exec", "web", "cat"], &numbers(50_000));
    assert_eq!(hash(&output.stdout), hash(&numbers(50_000)));
    // Short ones, so that many requests are cut in the middle.
    for number in 0..30 {
        let word = format!("word {number}");
        let output = away(
            &[
                "exec",
                "web",
                "sh",
                "-c",
                &format!("echo {word} | tee -a ran"),
            ],
            b"",
        );
        assert_eq!(output_text(&output), format!("{word}\nexit 0"));
    }
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    let ran = stdout_of(&server, &["files", "cat", "web", "ran"]);
    assert_eq!(ran.lines().count(), 31, "{ran}");
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_and_files_work_over_a_bad_line() {
    let server = Server::start().await;
    let cutter = Cutter::new(server.address(), 5);
    let away = |args: &[&str]| {
        let output = done(at(&server, &cutter.address(), args), b"");
        assert_eq!(
            output.status.code(),
            Some(0),
            "{args:?}: {}",
            output_text(&output)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let ids: Vec<String> = (0..10)
        .map(|_| away(&["sandbox", "create", "--timeout", "0"]))
        .collect();
    let made = server.client().get("/sandboxes").await.array();
    assert_eq!(made.len(), ids.len());
    let id = ids[0].trim();
    let scratch = Scratch::new();
    let (there, back) = (scratch.join("there"), scratch.join("back"));
    fs::create_dir(&there).unwrap();
    for number in 0..20 {
        fs::write(there.join(number.to_string()), numbers(number * 50)).unwrap();
    }
    fs::write(scratch.join("big"), numbers(36_000)).unwrap();
    away(&["cp", there.to_str().unwrap(), &format!("{id}:there")]);
    away(&["cp", &format!("{id}:there"), back.to_str().unwrap()]);
    for number in 0..20 {
        let name = number.to_string();
        assert_eq!(
            fs::read(there.join(&name)).unwrap(),
            fs::read(back.join(&name)).unwrap()
        );
    }
    // A large upload restarts, and a large download resumes where it broke.
    let big = scratch.join("big");
    away(&["cp", big.to_str().unwrap(), &format!("{id}:")]);
    away(&[
        "cp",
        &format!("{id}:big"),
        scratch.join("small").to_str().unwrap(),
    ]);
    assert_eq!(
        hash(&fs::read(scratch.join("small")).unwrap()),
        hash(&numbers(36_000))
    );
    for id in &ids {
        away(&["sandbox", "pause", id.trim()]);
        away(&["sandbox", "rm", id.trim()]);
    }
    assert!(cutter.cuts() > 10, "{} cuts", cutter.cuts());
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_resumes_after_a_server_kill() {
    let mut server = with_web().await;
    let line = "for i in $(seq 400); do echo $i; sleep 0.01; done; cat; exit 9";
    let mut command = operator(&server, &["exec", "web", "sh", "-c", line]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut follow = operator(&server, &["logs", "web", "-f"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut heard = vec![0; 20];
    stdout.read_exact(&mut heard).unwrap();
    server.kill_and_start();
    wait_for("the middle", DEADLINE, || {
        let mut part = [0; 64];
        let count = stdout.read(&mut part).unwrap();
        heard.extend_from_slice(&part[..count]);
        heard.len() > 500
    });
    // At a graceful shutdown it notifies its listeners.
    server.end();
    server.kill_and_start();
    child.stdin.take().unwrap().write_all(b"the end\n").unwrap();
    stdout.read_to_end(&mut heard).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", output_text(&output));
    let expected = [&numbers(400)[..], b"the end\n"].concat();
    assert_eq!(
        String::from_utf8_lossy(&heard),
        String::from_utf8_lossy(&expected)
    );
    // Logs resume too.
    let mut logged = vec![0; expected.len()];
    follow
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut logged)
        .unwrap();
    assert_eq!(hash(&logged), hash(&expected));
    follow.kill().unwrap();
    follow.wait().unwrap();
    server.close().await;
}
