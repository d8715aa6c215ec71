//! An interactive shell, which survives broken connections and server restarts.

use std::time::{Duration, Instant};

use atoll_testkit::{Cutter, wait_for};
use rustix::process::Signal;
use serde_json::json;

use super::screen::Screen;
use super::{at, atoll, operator, plain, with_web};
use crate::api::Server;
use crate::harness::DEADLINE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shell_resumes_after_a_server_kill() {
    let mut server = with_web().await;
    let mut screen = Screen::start(operator(&server, &["shell", "web"]));
    screen.kind("x=kept; stty size; echo be''gun\n");
    assert!(screen.until("begun").contains("20 90"));
    for number in 0..2 {
        server.kill_and_start();
        // Input that was typed during the interruption is not lost.
        screen.until("waiting for the server");
        screen.kind(&format!("echo $x a''gain {number}\n"));
        screen.until(&format!("kept again {number}"));
    }
    screen.kind("exit 7\n");
    assert_eq!(screen.end(), Some(7));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shell_over_a_bad_line_keeps_one_session() {
    let server = Server::start().await;
    let client = server.client();
    let id = client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let cutter = Cutter::new(server.address(), 3);
    let mut screen = Screen::start(at(&server, &cutter.address(), &["shell", "web"]));
    screen.until("$");
    assert_eq!(
        client
            .get(&format!("/sandboxes/{id}/pty"))
            .await
            .array()
            .len(),
        1
    );
    // Keys in flight are lost with the connection; the test types again if no echo arrives.
    for round in 0..5 {
        let word = format!("round {round}");
        let mut typed = None;
        wait_for(&word, DEADLINE, || {
            if screen.shows(&word) {
                return true;
            }
            if typed.is_none_or(|typed: Instant| typed.elapsed() > Duration::from_secs(5)) {
                screen.kind(&format!("\nseq 2000; echo ro''und {round}\n"));
                typed = Some(Instant::now());
            }
            false
        });
    }
    assert!(cutter.cuts() > 1, "{} cuts", cutter.cuts());
    screen.child.kill().unwrap();
    screen.end();
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_program_is_detached_and_reattached() {
    let server = Server::start().await;
    let client = server.client();
    let id = client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let line = "echo \"$0 is here in $PWD\"; exec cat";
    let args = [
        "shell", "web", "--cwd", "/etc", "--", "sh", "-c", line, "it's",
    ];
    let mut screen = Screen::start(atoll(&server, &args));
    screen.until("it's is here in /etc");
    screen.child.kill().unwrap();
    screen.end();
    let pty = client.get(&format!("/sandboxes/{id}/pty")).await.array();
    let pty = pty[0]["ptyID"].as_str().unwrap().to_owned();
    let mut screen = Screen::start(atoll(&server, &["shell", "web", "--attach", &pty]));
    screen.until("it's is here");
    screen.kind("\x03");
    assert_eq!(screen.end(), Some(130));
    let mut screen = Screen::start(atoll(&server, &["shell", "web", "--attach", &pty]));
    assert_eq!(screen.end(), Some(130));
    // The same for `run -t`.
    let mut screen = Screen::start(atoll(
        &server,
        &["run", "-it", "--", "sh", "-c", "stty size; read x; exit $x"],
    ));
    screen.until("20 90");
    screen.kind("4\n");
    assert_eq!(screen.end(), Some(4));
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_shell_prints_the_attach_command() {
    let mut server = with_web().await;
    let mut screen = Screen::start(operator(&server, &["shell", "web"]));
    screen.kind("x=kept; echo be''gun\n");
    screen.until("begun");
    server.end();
    screen.until("waiting for the server");
    // Raw mode: the key is input, not a signal.
    screen.kind("\x03");
    assert_eq!(screen.end(), Some(125));
    let shown = screen.until("joins it");
    assert!(screen.is_usual(), "{shown}");
    let line = shown.split('`').nth(1).unwrap().to_owned();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        (words[0], words[1], words[3]),
        ("atoll", "shell", "--attach")
    );
    server.kill_and_start();
    let mut screen = Screen::start(operator(&server, &words[1..]));
    screen.kind("echo $x a''gain; exit 3\n");
    screen.until("kept again");
    assert_eq!(screen.end(), Some(3));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_shell_leaves_the_terminal_unchanged() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let gone = client.sandbox(&json!({})).await;
    let deleted = client.delete(&format!("/sandboxes/{gone}")).await;
    assert_eq!(deleted.status, 204);
    let mut wrong = atoll(&server, &["shell", &id]);
    wrong.env("ATOLL_API_KEY", format!("atl_{}", "0".repeat(64)));
    let mut unreachable = plain(&["shell", &id]);
    unreachable.env("ATOLL_URL", "http://127.0.0.1:1");
    let none = "pty_aaaaabbbbbcccccddddd";
    for (command, words) in [
        (wrong, "atoll login"),
        (unreachable, "no server can be reached"),
        (atoll(&server, &["shell", &gone]), "atoll ls"),
        (atoll(&server, &["shell", "missing"]), "atoll ls"),
        (
            atoll(&server, &["shell", &id, "--attach", none]),
            "opens another",
        ),
    ] {
        let mut screen = Screen::start(command);
        assert_eq!(screen.end(), Some(125), "{words}");
        screen.until(words);
        assert!(screen.is_usual(), "{words}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_run_on_a_server_has_a_deadline_and_can_be_ended() {
    let server = Server::start().await;
    let args = ["run", "-it", "--timeout", "1s", "--", "sleep", "1000"];
    let mut screen = Screen::start(atoll(&server, &args));
    assert_eq!(screen.end(), Some(124));
    screen.until("the deadline of 1s was reached");
    assert!(screen.is_usual());
    let line = "echo be''gun; exec sleep 1000";
    let mut screen = Screen::start(atoll(&server, &["run", "-it", "--", "sh", "-c", line]));
    screen.until("begun");
    screen.send(Signal::TERM);
    assert_eq!(screen.end(), Some(143));
    assert!(screen.is_usual());
    assert_eq!(server.client().get("/sandboxes").await.array().len(), 0);
    server.close().await;
}
