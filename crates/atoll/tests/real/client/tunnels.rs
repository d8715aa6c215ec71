//! `atoll forward` at its limit of connections.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use atoll_testkit::wait_for;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use super::{atoll, stdout_of, with_web};
use crate::harness::DEADLINE;

/// Echoes the input of each connection.
const ECHO: &str = r#"
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while word := self.request.recv(100):
            self.request.sendall(word)
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Echo).serve_forever()
"#;

/// Sends a word and checks its echo.
fn echo(stream: &mut TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// The lowest number of a descriptor that a process does not have.
fn free(child: &Child) -> u64 {
    let held = |number: &u64| fs::symlink_metadata(format!("/proc/{}/fd/{number}", child.id()));
    (0..1 << 20).find(|number| held(number).is_err()).unwrap()
}

/// Processor time that a process has used, in hundredths of a second.
fn used(child: &Child) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let (_, fields) = text.rsplit_once(") ").unwrap();
    let fields = fields.split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_at_the_descriptor_limit_waits_for_room() {
    let server = with_web().await;
    stdout_of(&server, &["exec", "-d", "web", "python3", "-c", ECHO]);
    wait_for("the port", DEADLINE, || {
        stdout_of(&server, &["ports", "web"]).contains("8000")
    });
    let mut forward = atoll(&server, &["forward", "web", "0:8000", "--json"]);
    let forward = forward.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut forward = forward.spawn().unwrap();
    let mut report = String::new();
    let mut lines = BufReader::new(forward.stdout.take().unwrap());
    lines.read_line(&mut report).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let connect = || TcpStream::connect(report["local"].as_str().unwrap()).unwrap();
    let mut held = [connect(), connect(), connect()];
    held.iter_mut().for_each(echo);
    let full = Some(free(&forward));
    let limit = Rlimit {
        current: full,
        maximum: full,
    };
    let pid = Some(Pid::from_child(&forward));
    prlimit(pid, Resource::Nofile, limit).unwrap();
    let mut waiting = connect();
    let (begin, at) = (Instant::now(), used(&forward));
    wait_for("a second", DEADLINE, || {
        begin.elapsed() > Duration::from_secs(1)
    });
    let spent = used(&forward) - at;
    assert!(spent < 50, "{spent} hundredths of a second");
    // Connections are free again, also for waiting clients.
    drop(held);
    echo(&mut waiting);
    forward.kill().unwrap();
    forward.wait().unwrap();
    server.close().await;
}
