//! Commands on a pseudoterminal: their output, the input they pass on, and the restored terminal mode at their end.

use std::fs;
use std::os::unix::fs::FileExt as _;

use atoll_testkit::{Scratch, wait_for};
use rustix::process::Signal;

use super::screen::Screen;
use super::{atoll, plain, with_web};
use crate::api::Server;
use crate::harness::{DEADLINE, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_run_uses_the_terminal_and_restores_its_mode() {
    World::open().await.close().await;
    let run = |args: &[&str]| Screen::start(crate::cli::atoll(&[&["run", "-it"], args].concat()));
    // The new size is sent by another request than the keys, and may arrive before or after them.
    let line = "stty size; until stty size | grep '33 77'; do sleep 0.05; done; read x; exit $x";
    let mut screen = run(&["--", "sh", "-c", line]);
    screen.until("20 90");
    // Every key goes to the command, which echoes it.
    assert!(!screen.is_usual());
    screen.resize(33, 77);
    screen.until("33 77");
    screen.kind("5\n");
    assert_eq!(screen.end(), Some(5));
    assert!(screen.is_usual());
    // An interactive shell; Ctrl-C is ordinary input there.
    let mut screen = run(&[]);
    screen.kind("echo be''gun; sleep 1000\n");
    screen.until("begun");
    screen.kind("\x03");
    screen.kind("echo $? go''es on; exit 6\n");
    screen.until("130 goes on");
    assert_eq!(screen.end(), Some(6));
    assert!(screen.is_usual());
    // For every kind of end.
    let mut screen = run(&["--timeout", "1s", "--", "sleep", "1000"]);
    assert_eq!(screen.end(), Some(124));
    assert!(screen.is_usual());
    let mut screen = run(&["--", "sh", "-c", "echo be''gun; exec sleep 1000"]);
    screen.until("begun");
    screen.send(Signal::TERM);
    assert_eq!(screen.end(), Some(143));
    assert!(screen.is_usual());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_prompt_hides_input_and_ctrl_c_restores_the_terminal() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let url = format!("http://{}", server.address());
    let login = || {
        let mut command = plain(&["login", &url]);
        command.env("XDG_CONFIG_HOME", scratch.path());
        Screen::start(command)
    };
    let mut screen = login();
    screen.until("key: ");
    wait_for("silence", DEADLINE, || !screen.echoes());
    screen.send(Signal::INT);
    assert_eq!(screen.end(), Some(130));
    assert!(screen.is_usual());
    assert!(!scratch.join("atoll/config.toml").exists());
    let key = server.client().key.unwrap();
    let mut screen = login();
    screen.until("key: ");
    wait_for("silence", DEADLINE, || !screen.echoes());
    screen.kind(&format!("{key}\n"));
    assert_eq!(screen.end(), Some(0));
    let shown = screen.until("logged in to");
    assert!(!shown.contains(&key), "{shown}");
    assert!(screen.is_usual());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_progress_is_shown_only_on_terminals() {
    let server = with_web().await;
    let scratch = Scratch::new();
    let (big, back) = (scratch.join("big"), scratch.join("back"));
    let file = fs::File::create(&big).unwrap();
    file.set_len(300 << 20).unwrap();
    file.write_at(b"end", (300 << 20) - 3).unwrap();
    for (from, to) in [
        (big.to_str().unwrap(), "web:big"),
        ("web:big", back.to_str().unwrap()),
    ] {
        let mut screen = Screen::start(atoll(&server, &["cp", from, to]));
        assert_eq!(screen.end(), Some(0));
        let shown = screen.until("300.00 MiB");
        assert!(shown.contains("MiB/s"), "{shown}");
    }
    assert_eq!(fs::metadata(&back).unwrap().len(), 300 << 20);
    assert_eq!(
        super::stdout_of(&server, &["cp", "web:big", "/dev/null"]),
        ""
    );
    server.close().await;
}
