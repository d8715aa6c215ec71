//! The command-line client: the real binary against a real server, over stable and over faulty connections.

mod changes;
mod choosing;
mod commands;
mod copies;
mod delaying_proxy;
mod ending;
mod error_messages;
mod listing;
mod local;
mod past;
mod pipes;
mod reconnect;
pub mod screen;
mod served;
mod server_selection;
mod shell;
mod signals;
mod terminals;
mod tunnels;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use atoll_testkit::{Cutter, run_within};
use serde_json::{Value, json};

use crate::api::Server;
use crate::cli::output_text;
use crate::harness;

/// `atoll` without a configured server.
fn plain(args: &[&str]) -> Command {
    let mut command = Command::new(harness::binary());
    command.args(args).stdin(Stdio::null());
    command
        .env_remove("ATOLL_URL")
        .env_remove("ATOLL_API_KEY")
        .env("XDG_CONFIG_HOME", "/nowhere")
        .env("ATOLL_DATA_DIR", "/nowhere");
    command
}

/// A server with a sandbox `web` that stays.
async fn with_web() -> Server {
    let server = Server::start().await;
    server
        .client()
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    server
}

/// A way to a server.
trait Line {
    /// Address that the client connects to.
    fn address(&self) -> String;
    /// The API key of the requests.
    fn key(&self) -> String;
}

impl Line for Server {
    fn address(&self) -> String {
        self.address().to_owned()
    }

    fn key(&self) -> String {
        self.client().key.unwrap()
    }
}

/// A connection that breaks repeatedly.
struct Bad<'a> {
    server: &'a Server,
    cutter: Cutter,
}

impl<'a> Bad<'a> {
    fn new(server: &'a Server, seed: u64) -> Self {
        let cutter = Cutter::hasty(server.address(), seed);
        Self { server, cutter }
    }
}

impl Line for Bad<'_> {
    fn address(&self) -> String {
        self.cutter.address()
    }

    fn key(&self) -> String {
        self.server.key()
    }
}

/// `atoll` for a server that is somewhere.
fn at(server: &Server, address: &str, args: &[&str]) -> Command {
    let mut command = atoll(server, args);
    command.env("ATOLL_URL", format!("http://{address}"));
    command
}

/// `atoll` for a server.
fn atoll(line: &impl Line, args: &[&str]) -> Command {
    let mut command = plain(args);
    command.env("ATOLL_URL", format!("http://{}", line.address()));
    command.env("ATOLL_API_KEY", line.key());
    command
}

/// `atoll` over the operator's socket, whose path stays the same across server restarts.
fn operator(server: &Server, args: &[&str]) -> Command {
    let mut command = plain(args);
    command.env("ATOLL_DATA_DIR", server.data());
    command
}

/// Runs it to its end.
#[track_caller]
fn done(mut command: Command, input: &[u8]) -> Output {
    run_within(&mut command, Duration::from_mins(2), input)
}

/// Standard output of a command that must exit with 0 and an empty standard error.
#[track_caller]
fn stdout_of(line: &impl Line, args: &[&str]) -> String {
    let output = done(atoll(line, args), b"");
    assert_eq!(
        output.status.code(),
        Some(0),
        "{args:?}: {}",
        output_text(&output)
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard output of a shell line in the sandbox `web`.
#[track_caller]
fn shell_in_web(line: &impl Line, command: &str) -> String {
    stdout_of(line, &["exec", "web", "sh", "-c", command])
}

/// The same as JSON.
#[track_caller]
fn json(line: &impl Line, args: &[&str]) -> Value {
    let text = stdout_of(line, args);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text}"))
}

/// Output and exit code of one that need not work.
#[track_caller]
fn tried(line: &impl Line, args: &[&str]) -> (String, Option<i32>) {
    let output = done(atoll(line, args), b"");
    (output_text(&output), output.status.code())
}
