//! A shell on a terminal, which stays whatever becomes of the line and of the server.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use atoll_testkit::{Cutter, wait_for};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;

use super::{at, atoll, operator};
use crate::api::Server;
use crate::world::DEADLINE;

/// A command on a terminal of ours, and what it shows.
struct Screen {
    master: File,
    seen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Screen {
    fn start(mut command: Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: 20,
            ws_col: 90,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let peer = || -> OwnedFd { ioctl_tiocgptpeer(&master, flags).unwrap() };
        let child = command
            .stdin(peer())
            .stdout(peer())
            .stderr(peer())
            .spawn()
            .unwrap();
        // Else the terminal would not end with the child.
        drop(command);
        let master = File::from(master);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (master.try_clone().unwrap(), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut part) {
                into.lock().unwrap().extend_from_slice(&part[..count]);
            }
        });
        Self {
            master,
            seen,
            child,
        }
    }

    fn kind(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// What it shows, once it shows this; all before is forgotten.
    #[track_caller]
    fn until(&self, text: &str) -> String {
        let mut shown = String::new();
        let wanted = format!("{text:?}");
        wait_for(&wanted, DEADLINE, || {
            let seen = self.seen.lock().unwrap();
            shown = String::from_utf8_lossy(&seen).into_owned();
            shown.contains(text)
        });
        self.seen.lock().unwrap().clear();
        shown
    }

    fn end(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_goes_on_when_the_server_was_killed_and_started_again() {
    let mut server = Server::start().await;
    server
        .client()
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let mut screen = Screen::start(operator(&server, &["shell", "web"]));
    screen.kind("x=kept; stty size; echo be''gun\n");
    assert!(screen.until("begun").contains("20 90"));
    for number in 0..2 {
        server.kill_and_start();
        // Nothing is lost that was typed while nobody was there.
        screen.until("waiting for the server");
        screen.kind(&format!("echo $x a''gain {number}\n"));
        screen.until(&format!("kept again {number}"));
    }
    screen.kind("exit 7\n");
    assert_eq!(screen.end(), Some(7));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_over_a_bad_line_is_one_shell() {
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
    // Keys on their way are lost with the line; what was typed is seen, and typed again if it was not.
    for round in 0..5 {
        let word = format!("round {round}");
        wait_for(&word, DEADLINE, || {
            screen.kind(&format!("\nseq 2000; echo ro''und {round}\n"));
            let begin = std::time::Instant::now();
            loop {
                if String::from_utf8_lossy(&screen.seen.lock().unwrap()).contains(&word) {
                    return true;
                }
                if begin.elapsed().as_secs() > 5 {
                    return false;
                }
                std::thread::yield_now();
            }
        });
    }
    assert!(cutter.cuts() > 1, "{} cuts", cutter.cuts());
    screen.child.kill().unwrap();
    screen.end();
    drop(cutter);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_runs_a_program_is_left_and_joined_again() {
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
    let screen = Screen::start(atoll(&server, &["shell", "web", "--attach", &pty]));
    assert_eq!(screen.end(), Some(130));
    // A run on a terminal is the same.
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
