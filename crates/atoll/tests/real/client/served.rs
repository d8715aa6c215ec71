//! `atoll run` behaves the same with and without a server.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use atoll_testkit::Scratch;
use rustix::process::{Pid, Signal, kill_process};

use super::{atoll, done, stdout_of, tried};
use crate::api::Server;
use crate::cli::output_text;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_on_a_server_behaves_like_a_local_run() {
    let server = Server::start().await;
    let client = server.client();
    let output = done(
        atoll(
            &server,
            &["run", "--", "sh", "-c", "cat; echo err >&2; exit 3"],
        ),
        b"in",
    );
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"in"[..], &b"err\n"[..])
    );
    assert_eq!(output.status.code(), Some(3));
    let (text, code) = tried(&server, &["run", "--timeout", "1s", "--", "sleep", "60"]);
    assert!(
        code == Some(124) && text.contains("the deadline of 1s was reached"),
        "{text}"
    );
    let (text, code) = tried(
        &server,
        &[
            "run",
            "--memory",
            "64M",
            "--",
            "python3",
            "-c",
            "bytearray(1 << 30)",
        ],
    );
    assert!(
        code == Some(137) && text.contains("ran out of memory (64 MiB)"),
        "{text}"
    );
    assert_eq!(
        tried(&server, &["run", "--", "no-such-program"]).1,
        Some(127)
    );
    assert_eq!(
        tried(&server, &["run", "--template", "nothing", "--", "true"]).1,
        Some(125)
    );
    let seen = stdout_of(
        &server,
        &[
            "run",
            "--cpus",
            "1",
            "--user",
            "root",
            "-e",
            "A=b",
            "--",
            "sh",
            "-c",
            "nproc; id -u; echo $A",
        ],
    );
    assert_eq!(seen, "1\n0\nb\n");
    let scratch = Scratch::new();
    std::fs::write(scratch.join("seven.c"), "int main(void) { return 7; }").unwrap();
    let (from, to) = (scratch.join("seven.c"), scratch.join("out"));
    let (from, to) = (
        format!("{}:.", from.display()),
        format!("copy.c:{}", to.display()),
    );
    stdout_of(
        &server,
        &[
            "run",
            "--upload",
            &from,
            "--download",
            &to,
            "--",
            "cp",
            "seven.c",
            "copy.c",
        ],
    );
    assert_eq!(
        std::fs::read(scratch.join("out")).unwrap(),
        std::fs::read(scratch.join("seven.c")).unwrap()
    );
    // No sandbox is left.
    assert_eq!(client.get("/sandboxes").await.array().len(), 0);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_reaches_a_command_on_a_server() {
    let server = Server::start().await;
    let client = server.client();
    client
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    for (args, count) in [
        (&["run", "--"][..], 1),
        (&["exec", "web", "--"], 1),
        (&["run", "--"], 2),
    ] {
        let line = if count == 1 {
            "echo ready; exec sleep 1000"
        } else {
            "trap 'echo no' INT; echo ready; while :; do sleep 0.01; done"
        };
        let mut command = atoll(&server, &[args, &["sh", "-c", line]].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        for number in 0..count {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
            if number + 1 < count {
                assert_eq!(lines.next().unwrap().unwrap(), "no");
            }
        }
        let output = child.wait_with_output().unwrap();
        let code = if count == 1 { 130 } else { 137 };
        assert_eq!(output.status.code(), Some(code), "{}", output_text(&output));
    }
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    server.close().await;
}
