//! Ctrl-C ends the intended command at any time: no signal is lost, and no process or file is left.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use atoll_testkit::{Scratch, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::delaying_proxy::Holder;
use super::screen::Screen;
use super::{at, operator};
use crate::api::Server;
use crate::harness::DEADLINE;

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Its exit code, or its negated signal number.
#[track_caller]
pub fn code(child: &mut Child) -> i32 {
    let mut code = 0;
    wait_for("its end", DEADLINE, || {
        let ended = child.try_wait().unwrap();
        code = ended.map_or(0, |status| {
            status.code().unwrap_or_else(|| -status.signal().unwrap())
        });
        ended.is_some()
    });
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_ends_a_run_in_every_phase_and_leaves_nothing() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let (file, back) = (scratch.join("file"), scratch.join("back"));
    std::fs::write(&file, "x").unwrap();
    let upload = format!("{}:there", file.display());
    let download = format!("there:{}", back.display());
    let args = [
        "run",
        "--upload",
        &upload,
        "--download",
        &download,
        "--",
        "true",
    ];
    for (words, signal, expected) in [
        ("POST /sandboxes HTTP", Signal::INT, 130),
        ("PUT /sandboxes/", Signal::INT, 130),
        ("/commands HTTP", Signal::TERM, 143),
        ("/files?path=there HTTP", Signal::HUP, 129),
    ] {
        let holder = Holder::new(server.address(), words);
        let mut command = at(&server, &holder.address(), &args);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        holder.until_held();
        send(&child, signal);
        assert_eq!(code(&mut child), expected, "{words}");
        drop(holder);
        let left = server.client().get("/sandboxes").await.array();
        assert!(left.is_empty(), "{words}: {left:?}");
    }
    assert!(!back.exists());
    // A sandbox that is created after the signal is deleted.
    let holder = Holder::new(server.address(), "POST /sandboxes HTTP");
    let mut command = at(&server, &holder.address(), &args);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    holder.until_held();
    send(&child, Signal::INT);
    holder.release();
    assert_eq!(code(&mut child), 130);
    let events = server.client().get("/sandboxes").await.array();
    assert!(events.is_empty(), "{events:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_signal_does_not_wait_for_the_first() {
    let server = Server::start().await;
    let client = server.client();
    client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let holder = Holder::new(server.address(), "/signal HTTP");
    let line = "trap '' INT; touch ready; exec sleep 1000";
    let mut command = at(
        &server,
        &holder.address(),
        &["exec", "web", "sh", "-c", line],
    );
    let mut child = command.spawn().unwrap();
    wait_for("the command", DEADLINE, || {
        super::tried(&server, &["files", "cat", "web", "ready"]).1 == Some(0)
    });
    send(&child, Signal::INT);
    holder.until_held();
    send(&child, Signal::INT);
    assert_eq!(code(&mut child), 137);
    drop(holder);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_refreshes_marks_stale_data_and_ends_on_sigint() {
    let server = Server::start().await;
    let client = server.client();
    let args = ["top", "--interval", "1"];
    let mut screen = Screen::start(operator(&server, &args));
    screen.until("made 0.0 /s");
    client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let page = screen.until("web");
    assert!(page.contains("sandboxes 1 (1 running)"), "{page}");
    // Sandboxes created and deleted between two refreshes count in the rate.
    for _ in 0..3 {
        let id = client.sandbox(&json!({})).await;
        client.delete(&format!("/sandboxes/{id}")).await;
    }
    wait_for("a rate", DEADLINE, || {
        (1..100).any(|tenths| screen.shows(&format!("deleted {}.{}", tenths / 10, tenths % 10)))
    });
    // The server is running, but does not respond.
    kill_process(server.pid(), Signal::STOP).unwrap();
    screen.until("as it was ");
    screen.send(Signal::INT);
    let code = screen.end();
    kill_process(server.pid(), Signal::CONT).unwrap();
    assert_eq!(code, Some(0));
    // The alternate screen is left, and the cursor is visible.
    screen.until("\x1b[?25h\x1b[?1049l");
    server.close().await;
}
