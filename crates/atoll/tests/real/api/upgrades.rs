//! Upgrades and downgrades between builds of different protocol versions, while sandboxes run commands and terminals.
//!
//! The other build is a copy of the binary in which the versions are changed (`Stamp` in `atoll_jail::wire`). Its server, its
//! keeper and its sandboxes all use them.

use std::path::PathBuf;

use atoll_jail::wire::VersionRange;
use atoll_testkit::{Scratch, wait_for};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::restart::{follow, follow_until};
use super::sockets::{open, send, until};
use super::{Client, Server};
use crate::harness::{DEADLINE, binary};
use crate::restart::versions::keepers;

const SANDBOXES: usize = 50;
/// One sandbox in five has a terminal too.
const TERMINALS: usize = 5;
/// Lines of each output that are read under each build.
const LINES: usize = 2;

/// A copy of the binary with other protocol versions.
fn build(directory: &Scratch, spoken: VersionRange) -> PathBuf {
    const MARKER: &[u8; 16] = b"\x7fatoll-protocol\x7f";
    let mut bytes = std::fs::read(binary()).unwrap();
    // The stamp is aligned to 16 bytes.
    let places = bytes.chunks(16).enumerate();
    let places: Vec<usize> = places
        .filter_map(|(number, chunk)| (chunk == MARKER).then_some(16 * (number + 1)))
        .collect();
    let [at] = places[..] else {
        panic!("the binary has its versions at {places:?}");
    };
    let ours = VersionRange::ours();
    let numbers =
        |spoken: VersionRange| [spoken.version.to_ne_bytes(), spoken.oldest.to_ne_bytes()].concat();
    assert_eq!(bytes[at..at + 8], numbers(ours));
    bytes[at..at + 8].copy_from_slice(&numbers(spoken));
    let path = directory.join("atoll-other");
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::metadata(binary()).unwrap().permissions()).unwrap();
    path
}

/// A sandbox with a command that counts until it receives the request to end, and some with a terminal.
struct Counter {
    number: usize,
    id: String,
    /// URL path of the command.
    path: String,
    terminal: Option<String>,
    output: Vec<u8>,
    position: u64,
}

impl Counter {
    async fn start(client: &Client, number: usize) -> Self {
        let body = json!({ "timeout": 0, "memoryMB": 64, "pids": 32 });
        let id = client.sandbox(&body).await;
        let line = format!(
            "i=0; until [ -e ~/end ]; do echo line $i; i=$((i+1)); sleep 0.5; done; echo end $i; exit {number}"
        );
        let request = json!({ "cmd": line, "background": true, "timeout": 0 });
        let commands = format!("/sandboxes/{id}/commands");
        let begun = client.post(&commands, &request).await;
        assert_eq!(begun.status, 202, "{begun:?}");
        let exec = begun.json()["execID"].as_str().unwrap().to_owned();
        let mut terminal = None;
        if number.is_multiple_of(TERMINALS) {
            let request = json!({ "shell": "/bin/sh" });
            let made = client.post(&format!("/sandboxes/{id}/pty"), &request).await;
            assert_eq!(made.status, 201, "{made:?}");
            let pty = made.json()["ptyID"].as_str().unwrap().to_owned();
            terminal = Some(format!("/sandboxes/{id}/pty/{pty}"));
        }
        Self {
            number,
            path: format!("{commands}/{exec}"),
            id,
            terminal,
            output: Vec::new(),
            position: 0,
        }
    }

    /// Reads on where it stopped. The terminal knows what was set in it first, and the sandbox runs other commands.
    async fn works(&mut self, client: &Client, first: bool) {
        let lines = |output: &[u8]| output.split(|byte| *byte == b'\n').count() - 1;
        let wanted = lines(&self.output) + LINES;
        let path = format!("{}/output", self.path);
        let (output, position) = (&mut self.output, &mut self.position);
        let enough = |output: &[u8]| lines(output) >= wanted;
        let reading = follow_until(client, &path, output, position, enough);
        let ended = tokio::time::timeout(DEADLINE, reading).await;
        let ended = ended.unwrap_or_else(|_| panic!("{}: {wanted} lines do not come", self.number));
        assert!(!ended, "{}: it ended", self.number);
        assert!(lines(output) >= wanted, "{}: its output ended", self.number);
        assert_eq!(client.line(&self.id, "echo on").await, "on\n");
        if let Some(terminal) = &self.terminal {
            let mut socket = open(client, terminal).await;
            if first {
                send(&mut socket, b"kept=value\n").await;
            }
            send(&mut socket, b"echo is:$kept:\n").await;
            until(&mut socket, "is:value:").await;
        }
    }

    /// Ends the command: all that it wrote was read once, in order, and its exit code is its own.
    async fn end(mut self, client: &Client) {
        client.line(&self.id, "touch ~/end").await;
        let path = format!("{}/output", self.path);
        let reading = follow(client, &path, &mut self.output, &mut self.position);
        assert!(tokio::time::timeout(DEADLINE, reading).await.unwrap());
        let text = String::from_utf8(self.output).unwrap();
        let count = text.lines().count() - 1;
        let lines = (0..count).map(|number| format!("line {number}\n"));
        let expected = lines.chain([format!("end {count}\n")]);
        assert_eq!(text, expected.collect::<String>(), "{}", self.number);
        let info = client.get(&self.path).await.json();
        assert_eq!(info["exitCode"], self.number, "{info}");
    }
}

async fn start(client: &Client) -> Vec<Counter> {
    join_all((0..SANDBOXES).map(|number| Counter::start(client, number))).await
}

async fn all_work(client: &Client, counters: &mut [Counter], first: bool) {
    let working = counters.iter_mut();
    join_all(working.map(|counter| counter.works(client, first))).await;
}

async fn all_end(client: &Client, counters: Vec<Counter>) {
    join_all(counters.into_iter().map(|counter| counter.end(client))).await;
}

/// Creates a sandbox under this build's keeper, and uses it. A durable sandbox never comes from the warm pool, which
/// may have been adopted with the keeper of the other build.
async fn new(client: &Client) -> String {
    let id = client
        .sandbox(&json!({ "timeout": 0, "memoryMB": 64, "durable": true }))
        .await;
    assert_eq!(client.line(&id, "echo new").await, "new\n");
    id
}

/// Waits for one keeper of each build. A new PID 1 has its keeper's process name for a moment.
fn two_keepers(server: &Server) {
    let tag = std::fs::read_to_string(server.data().join("tag")).unwrap();
    wait_for("a keeper of each build", DEADLINE, || keepers(&tag) == 2);
}

async fn state(client: &Client, id: &str) -> Value {
    client.get(&format!("/sandboxes/{id}")).await.json()["state"].clone()
}

/// Checks that a sandbox of a build without a common version continues to run and cannot be used.
async fn is_apart(client: &Client, id: &str, version: u32) {
    assert_eq!(state(client, id).await, "running");
    let path = format!("/sandboxes/{id}");
    let refused = client
        .post(&format!("{path}/commands"), &json!({ "cmd": "true" }))
        .await;
    assert_eq!(refused.refusal().1, "CONFLICT", "{refused:?}");
    let message = refused.json()["error"].as_str().unwrap().to_owned();
    assert!(
        message.contains(&format!("protocol {version}")),
        "{message}"
    );
    let refused = client.post(&format!("{path}/pty"), &json!({})).await;
    assert_eq!(refused.refusal().1, "CONFLICT", "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_busy_sandboxes_survive_an_upgrade_and_a_downgrade() {
    let mut server = Server::start().await;
    let other = Scratch::new();
    let ours = VersionRange::ours();
    let newer = VersionRange {
        version: ours.version + 1,
        oldest: ours.oldest,
    };
    let newer = build(&other, newer);
    let client = server.client();
    let mut counters = start(&client).await;
    all_work(&client, &mut counters, true).await;

    server.kill_and_start_build(&newer);
    let client = server.client();
    all_work(&client, &mut counters, false).await;
    let made = new(&client).await;
    two_keepers(&server);

    server.kill_and_start();
    let client = server.client();
    all_work(&client, &mut counters, false).await;
    assert_eq!(client.line(&made, "echo on").await, "on\n");
    new(&client).await;
    two_keepers(&server);
    all_end(&client, counters).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_busy_sandboxes_survive_an_incompatible_build() {
    let mut server = Server::start().await;
    let other = Scratch::new();
    let ours = VersionRange::ours();
    let version = ours.version + 1;
    let stranger = build(
        &other,
        VersionRange {
            version,
            oldest: version,
        },
    );
    let client = server.client();
    let mut counters = start(&client).await;
    all_work(&client, &mut counters, true).await;

    server.kill_and_start_build(&stranger);
    let client = server.client();
    for counter in &counters {
        is_apart(&client, &counter.id, ours.version).await;
    }
    let made = new(&client).await;
    // The sandboxes can be deleted, and work normally after a stop and start.
    let (deleted, restarted) = (counters.pop().unwrap(), counters.pop().unwrap());
    let path = format!("/sandboxes/{}", deleted.id);
    assert_eq!(client.delete(&path).await.status, 204);
    assert_eq!(client.get(&path).await.status, 404);
    let path = format!("/sandboxes/{}", restarted.id);
    for verb in ["stop", "start"] {
        let done = client.post(&format!("{path}/{verb}"), &json!({})).await;
        assert_eq!(done.status, 200, "{done:?}");
    }
    assert_eq!(client.line(&restarted.id, "echo on").await, "on\n");

    server.kill_and_start();
    let client = server.client();
    all_work(&client, &mut counters, false).await;
    new(&client).await;
    for id in [&made, &restarted.id] {
        is_apart(&client, id, version).await;
    }
    all_end(&client, counters).await;
    server.close().await;
}
