//! A server that starts while its predecessor still holds the lock, port or socket.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Instant;

use atoll_testkit::Scratch;

use super::Server;
use super::client::clear;
use crate::cli::atoll;
use crate::harness::{DEADLINE, World, private};

fn serve(data: &Path, at: &str) -> Child {
    let mut command = atoll(&["serve", "--listen", at, "--metrics-listen", "off"]);
    command
        .arg("--data-dir")
        .arg(data)
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::harness::data().join("templates"),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Reads log lines until the server reports that it waits.
fn waits(child: &mut Child) -> BufReader<ChildStderr> {
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 0 {
        if line.contains("is taken: waiting up to") {
            return reader;
        }
    }
    panic!("it did not wait: {line}");
}

/// Reads log lines until the server is ready.
fn serves(child: &mut Child) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("serving")), "{child:?}");
}

/// Ends it; it had no sandboxes.
fn end(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

async fn place() -> Scratch {
    // Creates the templates.
    World::open().await.close().await;
    let scratch = Scratch::new();
    private(&scratch.join("data"));
    scratch
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_a_port_that_becomes_free() {
    let scratch = place().await;
    let data = scratch.join("data");
    // A port outside the ephemeral range, so that no other process gets it in between.
    let first = 20_000 + std::process::id() as u16 % 10_000;
    let mut ports = first..first + 2000;
    let holder = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let holder = holder.unwrap();
    let at = holder.local_addr().unwrap().to_string();
    let mut server = serve(&data, &at);
    let _said = waits(&mut server);
    drop(holder);
    serves(&mut server);
    // A killed server holds its port until the kernel has ended the process.
    for _ in 0..5 {
        server.kill().unwrap();
        let next = serve(&data, &at);
        server.wait().unwrap();
        server = next;
        serves(&mut server);
    }
    end(server);
    clear(&data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_waits_for_a_data_directory_that_becomes_free() {
    let scratch = place().await;
    let data = scratch.join("data");
    let lock = std::fs::File::create(data.join("lock")).unwrap();
    lock.lock().unwrap();
    let mut server = serve(&data, "127.0.0.1:0");
    let _said = waits(&mut server);
    drop(lock);
    serves(&mut server);
    end(server);
    clear(&data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn occupied_port_or_data_directory_is_reported_quickly() {
    let scratch = place().await;
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = holder.local_addr().unwrap().to_string();
    let begin = Instant::now();
    let refused = serve(&scratch.join("data"), &at)
        .wait_with_output()
        .unwrap();
    assert!(begin.elapsed() < DEADLINE, "{refused:?}");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(5), "{stderr}");
    assert!(
        stderr.contains(&format!("cannot listen on {at}")),
        "{stderr}"
    );
    assert!(stderr.contains("--listen ADDR:PORT"), "{stderr}");

    let server = Server::start().await;
    let refused = serve(&server.data(), "127.0.0.1:0")
        .wait_with_output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    let holder = format!("is served by process {}", server.pid().as_raw_nonzero());
    assert!(stderr.contains(&holder), "{stderr}");
    server.close().await;
}
